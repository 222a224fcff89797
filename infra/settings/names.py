"""Names, ARNs and Terraform names that are derived from the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from infra.settings.access import RoleAccess
from infra.settings.model import AdoptedStream, Application, Environment, Head, Job, Stream
from infra.settings.values import DEFAULT_PROJECT
from kinesis_efo_infra.locations import Location
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.regions import partition

MANAGED_BY = "kinesis-efo"
"""Value of the tag `managed-by` of resources that environments declare, in any project."""
PIPELINE_MANAGED_BY = "kinesis-efo-bootstrap"
"""Value of the tag `managed-by` of resources that bootstrap stacks declare, which the apply role must not change."""
ENVIRONMENTS, PROGRAMS, STOPS, LOGS = "environments/", "programs/", "stops/", "logs/"
"""Prefixes in the artifacts bucket that the library uses."""


def environment_of(stack: str) -> str:
    """Return the environment of a stack, or of a bootstrap stack, given the stack's name.

    >>> [environment_of(stack) for stack in ("kinesis-efo-eu-dev", "lake-eu-dev", "lake-dev-bootstrap")]
    ['eu-dev', 'eu-dev', 'dev']
    """
    default = f"{DEFAULT_PROJECT}-"
    rest = stack.removeprefix(default) if stack.startswith(default) else stack.partition("-")[2]
    return rest.removesuffix("-bootstrap")


_S3_URI = re.compile(r"s3[an]?://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?![a-z0-9.-])(?:/([^\s,;'\"]*))?")


@dataclass(frozen=True, slots=True)
class ArnParts:
    """The parts of an ARN."""

    partition: str
    service: str
    region: str
    account: str
    resource: str


def parse_arn(arn: str) -> ArnParts:
    """Split an ARN, which must be valid, into its parts."""
    _, *parts = arn.split(":", 5)
    return ArnParts(*parts)


def application_name(key: str, application: Application) -> str:
    """Return the name of an application, which is also the name of its consumers."""
    return application.name or key


def artifacts_bucket(head: Head) -> str:
    """Return the name of the bucket of archives, programs and logs. Only environments with `emr` declare the bucket."""
    given = head.emr.artifacts_bucket if head.emr else None
    # The account's id makes the name unique, because bucket names are global.
    return given or f"{head.project}-{head.environment}-{head.account_id}"


_REFERENCE = re.compile(r"\$(output|checkpoint)\b")


def references(text: str) -> set[str]:
    """Return the names of the application's settings to which an argument of a job refers (`output`, `checkpoint`)."""
    return set(_REFERENCE.findall(text))


def keys_of(key: str, stream: Stream) -> Iterator[tuple[str, str]]:
    """Yield the path and the ARN of each current or former customer key that a stream's settings name by ARN."""
    if stream.key and stream.key.startswith("arn:"):
        yield f"streams.{key}.key", stream.key
    for arn in stream.former_keys:
        if arn.startswith("arn:"):
            yield f"streams.{key}.former_keys.{arn}", arn


def locations(application: Application) -> dict[str, Location]:
    """Return the S3 locations that an application writes to, by setting."""
    given = {"output": application.output, "checkpoint": application.checkpoint}
    return {setting: Location.parse(uri) for setting, uri in given.items() if uri}


def s3_uris(text: str) -> Iterator[tuple[str, str]]:
    """Yield the bucket and key of each S3 URI in a text."""
    return ((found[1], (found[2] or "").strip("/")) for found in _S3_URI.finditer(text))


# Terraform names depend only on the entries' keys, so that reordering or adding entries renames nothing. Keys have no underscores, so
# that joined names are unique.
ENVIRONMENT_KEY = Place("environment_key")
"""Terraform name of the environment's own KMS key."""
ARTIFACTS = Place("artifacts")
"""Terraform name of the bucket of archives, programs and logs."""
JOBS = Place("jobs")
"""Terraform name of the environment's EMR Serverless application."""
BOUNDARY = Place("roles_boundary")
"""Terraform name of the roles' permissions boundary, which only environments without a pipeline declare."""
SCHEDULES = Place("schedules")
"""Terraform name of the schedule group, and of the role with which schedules start jobs."""
WORKERS = Place("workers")
"""Terraform name of the security group of EMR Serverless workers."""


def entry_place(key: str, entry: Stream | Application) -> Place:
    """Return the Terraform name of the resources that an entry of the file declares."""
    return Place(key, entry.moved_from or key)


@dataclass(frozen=True, slots=True)
class Names:
    """Names, ARNs and Terraform names of an environment's resources.

    Attributes:
        environment: The environment.
    """

    environment: Environment

    @property
    def qualified(self) -> str:
        """A name that is unique across projects: `dev`, or `lake.dev` in project `lake`. Names of environments have no dots.

        It is the value of the tag `environment`, the environment in manifests, and the prefix of stream names.
        """
        project = self.environment.project
        return (
            self.environment.environment if project == DEFAULT_PROJECT else f"{project}.{self.environment.environment}"
        )

    @property
    def tags(self) -> dict[str, str]:
        """Tags of all resources that an environment declares. Its roles' permissions depend on them."""
        return {**self.environment.tags, "environment": self.qualified, "managed-by": MANAGED_BY}

    @property
    def prefix(self) -> str:
        """Prefix of the names of an environment's resources, except for streams."""
        return f"{self.environment.project}-{self.environment.environment}"

    @property
    def path(self) -> str:
        """The same as `prefix` for names that are paths, such as names of parameters."""
        return f"{self.environment.project}/{self.environment.environment}"

    @property
    def stack_name(self) -> str:
        """Name of the stack of an environment."""
        return self.prefix

    @property
    def pipeline_path(self) -> str:
        """IAM path of the roles and policies of a project's pipelines."""
        return f"/{self.environment.project}-pipeline/"

    def pipeline_role_name(self, kind: str) -> str:
        """Name of the pipeline's `plan` or `apply` role."""
        return f"{self.environment.project}-pipeline-{self.environment.environment}-{kind}"

    def pipeline_role_arn(self, kind: str) -> str:
        """ARN of the pipeline's `plan` or `apply` role. The apply role has no permissions for roles with this path."""
        role = f"role{self.pipeline_path}{self.pipeline_role_name(kind)}"
        return self.iam_arn(role)

    def pipeline_policy_name(self, kind: str) -> str:
        """Name of a policy of the pipeline; `kind` is a key of `permissions.policies`."""
        return f"{self.environment.project}-pipeline-{self.environment.environment}-{kind}"

    def iam_arn(self, resource: str) -> str:
        """ARN of an IAM resource in the environment's account, without a region."""
        return f"arn:{partition(self.environment.region)}:iam::{self.environment.account_id}:{resource}"

    def service_role_arn(self, service: str) -> str:
        """ARN pattern of a service's service-linked roles in the account."""
        return self.iam_arn(f"role/aws-service-role/{service}/*")

    @property
    def boundary_arn(self) -> str:
        """ARN of the permissions boundary of roles that the pipeline creates."""
        policy = f"policy{self.pipeline_path}{self.pipeline_policy_name('boundary')}"
        return self.iam_arn(policy)

    @property
    def schedule_group(self) -> str:
        """Name of the schedule group for an environment's jobs."""
        return self.prefix

    @property
    def schedule_group_arn(self) -> str:
        """ARN of the schedule group."""
        return self.arn("scheduler", f"schedule-group/{self.schedule_group}")

    @property
    def schedules_arn(self) -> str:
        """ARN pattern of the schedules of an environment's jobs."""
        return self.arn("scheduler", f"schedule/{self.schedule_group}/*")

    @property
    def schedules_role_name(self) -> str:
        """Name of the role with which schedules start jobs, and of its policy. Its `@` keeps it distinct from applications' roles."""
        return f"{self.prefix}-jobs@schedules"

    def serverless_arn(self, target: str) -> str:
        """ARN of the EMR Serverless application that a job names as its target."""
        return self.arn("emr-serverless", f"/applications/{target.removeprefix('serverless:')}")

    @property
    def roles_boundary_name(self) -> str:
        """Name of the permissions boundary in an environment without a pipeline. Its `@` keeps it distinct from applications' policies."""
        return f"{self.prefix}-roles@boundary"

    @property
    def bootstrap_stack_name(self) -> str:
        """Name of an environment's bootstrap stack, which its pipeline needs."""
        return f"{self.prefix}-bootstrap"

    @property
    def bootstrap_state_key(self) -> str:
        """Key of the bootstrap stack's Terraform state in the state bucket."""
        return f"{self.environment.project}/bootstrap/{self.environment.environment}.tfstate"

    @property
    def state_key(self) -> str:
        """Key of the Terraform state in the state bucket."""
        return f"{self.path}.tfstate"

    @property
    def record_key(self) -> str:
        """Key of the record of what is deployed, beside the state."""
        return f"{self.path}.deployed.json"

    def arn(self, service: str, resource: str) -> str:
        """ARN of a resource in the environment's region and account."""
        region = self.environment.region
        return f"arn:{partition(region)}:{service}:{region}:{self.environment.account_id}:{resource}"

    def stream_name(self, key: str) -> str:
        """Name of a stream in Kinesis."""
        stream = self.environment.streams[key]
        if isinstance(stream, AdoptedStream):
            return parse_arn(stream.existing_arn).resource.removeprefix("stream/")
        return stream.name or f"{self.qualified}-{key}"

    def stream_arn(self, key: str) -> str:
        """ARN of a stream, declared or adopted."""
        stream = self.environment.streams[key]
        if isinstance(stream, AdoptedStream):
            return stream.existing_arn
        return self.arn("kinesis", f"stream/{self.stream_name(key)}")

    def consumer_name(self, stream_key: str, application_key: str) -> str:
        """Name of an application's consumer on a stream: the application's name, or that of a consumer registered by the stream's owner."""
        stream = self.environment.streams[stream_key]
        if isinstance(stream, AdoptedStream) and application_key in stream.consumers:
            return stream.consumers[application_key].rpartition("/")[2].partition(":")[0]
        return application_name(application_key, self.environment.applications[application_key])

    def is_ours(self, stream_key: str) -> bool:
        """Whether a stream, declared or adopted, is in the environment's account. If so, its metrics are there, too."""
        return parse_arn(self.stream_arn(stream_key)).account == self.environment.account_id

    def lease_table_name(self, key: str) -> str:
        """Name of an application's lease table."""
        application = self.environment.applications[key]
        default = f"{self.prefix}-{application_name(key, application)}"
        return application.lease_table or default

    def lease_table_arn(self, key: str) -> str:
        """ARN of an application's lease table."""
        return self.arn("dynamodb", f"table/{self.lease_table_name(key)}")

    def parameter_name(self, key: str) -> str:
        """Name of the parameter that stores an application's manifest."""
        return f"/{self.path}/{application_name(key, self.environment.applications[key])}"

    def parameter_arn(self, key: str) -> str:
        """ARN of the parameter that stores an application's manifest."""
        return self.arn("ssm", f"parameter{self.parameter_name(key)}")

    @property
    def manifest_bucket(self) -> str | None:
        """Name of the bucket that stores manifests; None if they are in Parameter Store."""
        return (
            (self.environment.manifest_bucket or self.artifacts_bucket)
            if self.environment.manifest_store == "s3"
            else None
        )

    def manifest_key(self, key: str) -> str:
        """Key of an application's manifest, if manifests are stored in a bucket."""
        return self.parameter_name(key).removeprefix("/")

    def manifest_location(self, key: str) -> str:
        """Location of an application's manifest: the value of the jobs' `manifest` option."""
        bucket = self.manifest_bucket
        return f"s3://{bucket}/{self.manifest_key(key)}" if bucket else f"ssm://{self.parameter_name(key)}"

    def manifest_arn(self, key: str) -> str:
        """ARN of an application's manifest."""
        bucket = self.manifest_bucket
        if bucket is None:
            return self.parameter_arn(key)
        return f"{self.bucket_arn(bucket)}/{self.manifest_key(key)}"

    def deployment_parameter_name(self, key: str) -> str:
        """Name of the parameter with the description of an application's jobs."""
        return f"{self.parameter_name(key)}/job"

    @property
    def artifacts_bucket(self) -> str:
        """Name of the bucket of archives, programs and logs, which only environments with `emr` declare."""
        return artifacts_bucket(self.environment)

    def job_arguments(self, job: Job) -> list[str]:
        """The arguments of a job, with `$output` and `$checkpoint` replaced by the application's locations."""
        return [self._resolved(job, each) for each in job.arguments]

    def job_spark(self, job: Job) -> dict[str, str]:
        """The Spark settings of a job, with `$output` and `$checkpoint` replaced by the application's locations."""
        return {name: self._resolved(job, each) for name, each in job.spark.items()}

    def _resolved(self, job: Job, text: str) -> str:
        application = self.environment.applications[job.application]
        return _REFERENCE.sub(lambda found: str(getattr(application, found[1])), text)

    @property
    def job_buckets(self) -> tuple[str, ...]:
        """Buckets that jobs may use: the artifacts bucket, those in locations, arguments and Spark settings, and `pipeline.buckets`."""
        texts = [text for job in self.environment.jobs for text in (*job.arguments, *job.spark.values())]
        found = {bucket for text in texts for bucket, _ in s3_uris(text)}
        found |= {
            each.bucket
            for application in self.environment.applications.values()
            for each in locations(application).values()
        }
        own = {self.artifacts_bucket} if self.environment.emr else set()
        told = self.environment.pipeline.buckets if self.environment.pipeline else []
        return tuple(sorted(found | own | set(told)))

    def bucket_arn(self, name: str) -> str:
        """ARN of a bucket."""
        return f"arn:{partition(self.environment.region)}:s3:::{name}"

    def policy_name(self, key: str) -> str:
        """Name of an application's managed policy."""
        return f"{self.prefix}-{application_name(key, self.environment.applications[key])}"

    def policy_arn(self, key: str) -> str:
        """ARN of an application's managed policy."""
        return self.iam_arn(f"policy/{self.policy_name(key)}")

    def batch_policy_name(self, key: str) -> str:
        """Name of the policy for batch reads of an application's streams. It is unique, because names of applications have no `@`."""
        return f"{self.policy_name(key)}@batch"

    def role_name(self, key: str) -> str:
        """Name of an application's role, if one is declared."""
        access = self.environment.applications[key].access
        given = access.role_name if isinstance(access, RoleAccess) else None
        return given or self.policy_name(key)

    def role_arn(self, key: str) -> str:
        """ARN of an application's role, if one is declared."""
        return self.iam_arn(f"role/{self.role_name(key)}")

    def consumer_place(self, stream_key: str, application_key: str) -> Place:
        """Terraform name of an application's consumer on a stream."""
        return entry_place(stream_key, self.environment.streams[stream_key]).join(
            entry_place(application_key, self.environment.applications[application_key])
        )
