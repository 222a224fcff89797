"""Names, ARNs and Terraform addresses that follow from the settings."""

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
"""Value of the tag `managed-by`, of what an environment of any project declares."""
PIPELINE_MANAGED_BY = "kinesis-efo-bootstrap"
"""Value of the tag `managed-by`, of what its pipeline needs: the role that applies may not manage that."""
ENVIRONMENTS, PROGRAMS, STOPS, LOGS = "environments/", "programs/", "stops/", "logs/"
"""Prefixes in the bucket of artifacts, as the library writes them."""


def environment_of(stack: str) -> str:
    """The environment that a stack, or a bootstrap stack, is called after.

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
    """Split an ARN, which the settings have checked."""
    _, *parts = arn.split(":", 5)
    return ArnParts(*parts)


def application_name(key: str, application: Application) -> str:
    """Name of an application and of its consumers."""
    return application.name or key


def artifacts_bucket(head: Head) -> str:
    """Name of the bucket of archives, programs and logs; meaningful where `emr` is declared."""
    given = head.emr.artifacts_bucket if head.emr else None
    # Bucket names are global; the account's id makes this one unique.
    return given or f"{head.project}-{head.environment}-{head.account_id}"


_REFERENCE = re.compile(r"\$(output|checkpoint)\b")


def references(text: str) -> set[str]:
    """What an argument of a job refers to: settings of its application."""
    return set(_REFERENCE.findall(text))


def keys_of(key: str, stream: Stream) -> Iterator[tuple[str, str]]:
    """The customer keys of a stream that the file names by ARN, present and former ones, each with its path."""
    if stream.key and stream.key.startswith("arn:"):
        yield f"streams.{key}.key", stream.key
    for arn in stream.former_keys:
        if arn.startswith("arn:"):
            yield f"streams.{key}.former_keys.{arn}", arn


def locations(application: Application) -> dict[str, Location]:
    """Where an application writes, by setting."""
    given = {"output": application.output, "checkpoint": application.checkpoint}
    return {setting: Location.parse(uri) for setting, uri in given.items() if uri}


def s3_uris(text: str) -> Iterator[tuple[str, str]]:
    """Bucket and key of each place in S3 that a text names."""
    return ((found[1], (found[2] or "").strip("/")) for found in _S3_URI.finditer(text))


# Places are built from keys only, so that neither the order nor the neighbours of an entry matter. Keys have no underscore, so
# that joined names never collide.
ENVIRONMENT_KEY = Place("environment_key")
"""The environment's own KMS key."""
ARTIFACTS = Place("artifacts")
"""The bucket of archives, programs and logs."""
JOBS = Place("jobs")
"""The environment's application of EMR Serverless."""
BOUNDARY = Place("roles_boundary")
"""The boundary of roles, where no pipeline brings one."""
SCHEDULES = Place("schedules")
"""The group of schedules, and the role by which they start jobs."""
WORKERS = Place("workers")
"""The security group of the application's workers."""


def entry_place(key: str, entry: Stream | Application) -> Place:
    """The place of the resources of an entry of the file."""
    return Place(key, entry.moved_from or key)


@dataclass(frozen=True, slots=True)
class Names:
    """Names, ARNs and addresses of an environment.

    Attributes:
        environment: The environment.
    """

    environment: Environment

    @property
    def qualified(self) -> str:
        """An environment's name among those of all projects: `dev`, or `lake.dev` in project `lake`; no environment has a dot.

        It is the value of the tag `environment`, what manifests say, and what names of streams begin with.
        """
        project = self.environment.project
        return (
            self.environment.environment if project == DEFAULT_PROJECT else f"{project}.{self.environment.environment}"
        )

    @property
    def tags(self) -> dict[str, str]:
        """Tags of all that an environment declares, by which its roles know what is its own."""
        return {**self.environment.tags, "environment": self.qualified, "managed-by": MANAGED_BY}

    @property
    def prefix(self) -> str:
        """What the names of an environment's resources begin with, but for those of streams."""
        return f"{self.environment.project}-{self.environment.environment}"

    @property
    def path(self) -> str:
        """The same for names that are paths, as those of parameters are."""
        return f"{self.environment.project}/{self.environment.environment}"

    @property
    def stack_name(self) -> str:
        """Name of the stack of an environment."""
        return self.prefix

    @property
    def pipeline_path(self) -> str:
        """IAM path of the own roles and policies of a project's pipelines."""
        return f"/{self.environment.project}-pipeline/"

    def pipeline_role_name(self, kind: str) -> str:
        """Name of a role of the pipeline: `plan` or `apply`."""
        return f"{self.environment.project}-pipeline-{self.environment.environment}-{kind}"

    def pipeline_role_arn(self, kind: str) -> str:
        """ARN of a role of the pipeline; its path is out of reach of the role that applies."""
        role = f"role{self.pipeline_path}{self.pipeline_role_name(kind)}"
        return self.iam_arn(role)

    def pipeline_policy_name(self, kind: str) -> str:
        """Name of a policy of the pipeline; `kind` is a key of `permissions.policies`."""
        return f"{self.environment.project}-pipeline-{self.environment.environment}-{kind}"

    def iam_arn(self, resource: str) -> str:
        """ARN of something of IAM in the environment's account; IAM knows no regions."""
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
        """Name of the group of the schedules of an environment's jobs."""
        return self.prefix

    @property
    def schedule_group_arn(self) -> str:
        """ARN of the group of schedules."""
        return self.arn("scheduler", f"schedule-group/{self.schedule_group}")

    @property
    def schedules_arn(self) -> str:
        """ARN pattern of the schedules of an environment's jobs."""
        return self.arn("scheduler", f"schedule/{self.schedule_group}/*")

    @property
    def schedules_role_name(self) -> str:
        """Name of the role by which schedules start jobs, and of its policy. No application's can have it."""
        return f"{self.prefix}-jobs@schedules"

    def serverless_arn(self, target: str) -> str:
        """ARN of the application of EMR Serverless that a job names as its target."""
        return self.arn("emr-serverless", f"/applications/{target.removeprefix('serverless:')}")

    @property
    def roles_boundary_name(self) -> str:
        """Name of the boundary of the roles of an environment that has no pipeline. No application's policy can have it."""
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
        """ARN of something in the environment's own region and account."""
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
        """Name of an application's consumer on a stream: the application's, or that of the consumer it was given."""
        stream = self.environment.streams[stream_key]
        if isinstance(stream, AdoptedStream) and application_key in stream.consumers:
            return stream.consumers[application_key].rpartition("/")[2].partition(":")[0]
        return application_name(application_key, self.environment.applications[application_key])

    def is_ours(self, stream_key: str) -> bool:
        """Whether a stream, declared or adopted, is in the environment's account, and so its metrics."""
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
        """Parameter that holds an application's manifest."""
        return f"/{self.path}/{application_name(key, self.environment.applications[key])}"

    def parameter_arn(self, key: str) -> str:
        """ARN of the parameter that holds an application's manifest."""
        return self.arn("ssm", f"parameter{self.parameter_name(key)}")

    @property
    def manifest_bucket(self) -> str | None:
        """Name of the bucket of manifests; None where they are in Parameter Store."""
        return (
            (self.environment.manifest_bucket or self.artifacts_bucket)
            if self.environment.manifest_store == "s3"
            else None
        )

    def manifest_key(self, key: str) -> str:
        """Key of an application's manifest in its bucket, if it is in one."""
        return self.parameter_name(key).removeprefix("/")

    def manifest_location(self, key: str) -> str:
        """Where an application's manifest is, as jobs name it."""
        bucket = self.manifest_bucket
        return f"s3://{bucket}/{self.manifest_key(key)}" if bucket else f"ssm://{self.parameter_name(key)}"

    def manifest_arn(self, key: str) -> str:
        """ARN of an application's manifest."""
        bucket = self.manifest_bucket
        if bucket is None:
            return self.parameter_arn(key)
        return f"{self.bucket_arn(bucket)}/{self.manifest_key(key)}"

    def deployment_parameter_name(self, key: str) -> str:
        """Name of the parameter that says how an application is run."""
        return f"{self.parameter_name(key)}/job"

    @property
    def artifacts_bucket(self) -> str:
        """Name of the bucket of archives, programs and logs; meaningful where `emr` is declared."""
        return artifacts_bucket(self.environment)

    def job_arguments(self, job: Job) -> list[str]:
        """The arguments of a job, with the locations that they refer to."""
        return [self._resolved(job, each) for each in job.arguments]

    def job_spark(self, job: Job) -> dict[str, str]:
        """The settings of Spark of a job, with the locations that they refer to."""
        return {name: self._resolved(job, each) for name, each in job.spark.items()}

    def _resolved(self, job: Job, text: str) -> str:
        application = self.environment.applications[job.application]
        return _REFERENCE.sub(lambda found: str(getattr(application, found[1])), text)

    @property
    def job_buckets(self) -> tuple[str, ...]:
        """Buckets that jobs may use: that of their programs, those they write to or name in arguments, and those the pipeline is told."""
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
        """Name of the policy for batch reads of an application's streams. No application's own can be the same: names have no `@`."""
        return f"{self.policy_name(key)}@batch"

    def role_name(self, key: str) -> str:
        """Name of an application's role, where one is declared."""
        access = self.environment.applications[key].access
        given = access.role_name if isinstance(access, RoleAccess) else None
        return given or self.policy_name(key)

    def role_arn(self, key: str) -> str:
        """ARN of an application's role, where one is declared."""
        return self.iam_arn(f"role/{self.role_name(key)}")

    def consumer_place(self, stream_key: str, application_key: str) -> Place:
        """The place of a consumer."""
        return entry_place(stream_key, self.environment.streams[stream_key]).join(
            entry_place(application_key, self.environment.applications[application_key])
        )
