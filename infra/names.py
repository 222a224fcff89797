"""Names, ARNs and Terraform addresses that follow from the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from infra.settings import AdoptedStream, Application, Environment, Head, Job, RoleAccess, Stream
from infra.values import DEFAULT_PROJECT
from kinesis_efo_infra.locations import Location
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.regions import partition

GITHUB_ISSUER = "token.actions.githubusercontent.com"
"""Issuer of the tokens by which GitHub identifies workflows."""
MANAGED_BY = "kinesis-efo"
"""Value of the tag `managed-by`, of what an environment of any project declares."""
PIPELINE_MANAGED_BY = "kinesis-efo-bootstrap"
"""Value of the tag `managed-by`, of what its pipeline needs: the role that applies may not manage that."""
ENVIRONMENTS, PROGRAMS, STOPS, LOGS = "environments/", "programs/", "stops/", "logs/"
"""Prefixes in the bucket of artifacts, as the library writes them."""


def github_repository(given: str) -> tuple[str, str]:
    """A repository of GitHub as `owner/name`, and its id, which is empty if it is not given.

    >>> github_repository("acme@1/lake@2"), github_repository("acme/lake")
    (('acme/lake', '2'), ('acme/lake', ''))
    """
    owner, _, name = given.partition("/")
    return f"{owner.partition('@')[0]}/{name.partition('@')[0]}", name.partition("@")[2]


def qualified(environment: Environment) -> str:
    """An environment's name among those of all projects: `dev`, or `lake.dev` in project `lake`; no environment has a dot.

    It is the value of the tag `environment`, what manifests say, and what names of streams begin with.
    """
    project = environment.project
    return environment.environment if project == DEFAULT_PROJECT else f"{project}.{environment.environment}"


def prefix(environment: Head) -> str:
    """What the names of an environment's resources begin with, but for those of streams."""
    return f"{environment.project}-{environment.environment}"


def path(environment: Environment) -> str:
    """The same for names that are paths, as those of parameters are."""
    return f"{environment.project}/{environment.environment}"


def stack_name(environment: Environment) -> str:
    """Name of the stack of an environment."""
    return prefix(environment)


def environment_of(stack: str) -> str:
    """The environment that a stack, or a bootstrap stack, is called after.

    >>> [environment_of(stack) for stack in ("kinesis-efo-eu-dev", "lake-eu-dev", "lake-dev-bootstrap")]
    ['eu-dev', 'eu-dev', 'dev']
    """
    default = f"{DEFAULT_PROJECT}-"
    rest = stack.removeprefix(default) if stack.startswith(default) else stack.partition("-")[2]
    return rest.removesuffix("-bootstrap")


def pipeline_path(environment: Environment) -> str:
    """IAM path of the own roles and policies of a project's pipelines."""
    return f"/{environment.project}-pipeline/"


def pipeline_role_name(environment: Environment, kind: str) -> str:
    """Name of a role of the pipeline: `plan` or `apply`."""
    return f"{environment.project}-pipeline-{environment.environment}-{kind}"


def pipeline_role_arn(environment: Environment, kind: str) -> str:
    """ARN of a role of the pipeline; its path is out of reach of the role that applies."""
    role = f"role{pipeline_path(environment)}{pipeline_role_name(environment, kind)}"
    return iam_arn(environment, role)


def pipeline_policy_name(environment: Environment, kind: str) -> str:
    """Name of a policy of the pipeline; `kind` is a key of `permissions.policies`."""
    return f"{environment.project}-pipeline-{environment.environment}-{kind}"


def iam_arn(environment: Environment, resource: str) -> str:
    """ARN of something of IAM in the environment's account; IAM knows no regions."""
    return f"arn:{partition(environment.region)}:iam::{environment.account_id}:{resource}"


def service_role_arn(environment: Environment, service: str) -> str:
    """ARN pattern of a service's service-linked roles in the account."""
    return iam_arn(environment, f"role/aws-service-role/{service}/*")


def boundary_arn(environment: Environment) -> str:
    """ARN of the permissions boundary of roles that the pipeline creates."""
    policy = f"policy{pipeline_path(environment)}{pipeline_policy_name(environment, 'boundary')}"
    return iam_arn(environment, policy)


def schedule_group(environment: Environment) -> str:
    """Name of the group of the schedules of an environment's jobs."""
    return prefix(environment)


def schedule_group_arn(environment: Environment) -> str:
    """ARN of the group of schedules."""
    return arn(environment, "scheduler", f"schedule-group/{schedule_group(environment)}")


def schedules_arn(environment: Environment) -> str:
    """ARN pattern of the schedules of an environment's jobs."""
    return arn(environment, "scheduler", f"schedule/{schedule_group(environment)}/*")


def schedules_role_name(environment: Environment) -> str:
    """Name of the role by which schedules start jobs, and of its policy. No application's can have it."""
    return f"{prefix(environment)}-jobs@schedules"


def serverless_arn(environment: Environment, target: str) -> str:
    """ARN of the application of EMR Serverless that a job names as its target."""
    return arn(environment, "emr-serverless", f"/applications/{target.removeprefix('serverless:')}")


def roles_boundary_name(environment: Environment) -> str:
    """Name of the boundary of the roles of an environment that has no pipeline. No application's policy can have it."""
    return f"{prefix(environment)}-roles@boundary"


def bootstrap_stack_name(environment: Environment) -> str:
    """Name of an environment's bootstrap stack, which its pipeline needs."""
    return f"{prefix(environment)}-bootstrap"


def bootstrap_state_key(environment: Environment) -> str:
    """Key of the bootstrap stack's Terraform state in the state bucket."""
    return f"{environment.project}/bootstrap/{environment.environment}.tfstate"


def state_key(environment: Environment) -> str:
    """Key of the Terraform state in the state bucket."""
    return f"{path(environment)}.tfstate"


def record_key(environment: Environment) -> str:
    """Key of the record of what is deployed, beside the state."""
    return f"{path(environment)}.deployed.json"


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


def arn(environment: Environment, service: str, resource: str) -> str:
    """ARN of something in the environment's own region and account."""
    region = environment.region
    return f"arn:{partition(region)}:{service}:{region}:{environment.account_id}:{resource}"


def stream_name(environment: Environment, key: str) -> str:
    """Name of a stream in Kinesis."""
    stream = environment.streams[key]
    if isinstance(stream, AdoptedStream):
        return parse_arn(stream.existing_arn).resource.removeprefix("stream/")
    return stream.name or f"{qualified(environment)}-{key}"


def stream_arn(environment: Environment, key: str) -> str:
    """ARN of a stream, declared or adopted."""
    stream = environment.streams[key]
    if isinstance(stream, AdoptedStream):
        return stream.existing_arn
    return arn(environment, "kinesis", f"stream/{stream_name(environment, key)}")


def application_name(key: str, application: Application) -> str:
    """Name of an application and of its consumers."""
    return application.name or key


def consumer_name(environment: Environment, stream_key: str, application_key: str) -> str:
    """Name of an application's consumer on a stream: the application's, or that of the consumer it was given."""
    stream = environment.streams[stream_key]
    if isinstance(stream, AdoptedStream) and application_key in stream.consumers:
        return stream.consumers[application_key].rpartition("/")[2].partition(":")[0]
    return application_name(application_key, environment.applications[application_key])


def is_ours(environment: Environment, stream_key: str) -> bool:
    """Whether a stream, declared or adopted, is in the environment's account, and so its metrics."""
    return parse_arn(stream_arn(environment, stream_key)).account == environment.account_id


def lease_table_name(environment: Environment, key: str) -> str:
    """Name of an application's lease table."""
    application = environment.applications[key]
    default = f"{prefix(environment)}-{application_name(key, application)}"
    return application.lease_table or default


def lease_table_arn(environment: Environment, key: str) -> str:
    """ARN of an application's lease table."""
    return arn(environment, "dynamodb", f"table/{lease_table_name(environment, key)}")


def parameter_name(environment: Environment, key: str) -> str:
    """Parameter that holds an application's manifest."""
    return f"/{path(environment)}/{application_name(key, environment.applications[key])}"


def parameter_arn(environment: Environment, key: str) -> str:
    """ARN of the parameter that holds an application's manifest."""
    return arn(environment, "ssm", f"parameter{parameter_name(environment, key)}")


def manifest_bucket(environment: Environment) -> str | None:
    """Name of the bucket of manifests; None where they are in Parameter Store."""
    return (
        (environment.manifest_bucket or artifacts_bucket(environment)) if environment.manifest_store == "s3" else None
    )


def manifest_key(environment: Environment, key: str) -> str:
    """Key of an application's manifest in its bucket, if it is in one."""
    return parameter_name(environment, key).removeprefix("/")


def manifest_location(environment: Environment, key: str) -> str:
    """Where an application's manifest is, as jobs name it."""
    bucket = manifest_bucket(environment)
    return f"s3://{bucket}/{manifest_key(environment, key)}" if bucket else f"ssm://{parameter_name(environment, key)}"


def manifest_arn(environment: Environment, key: str) -> str:
    """ARN of an application's manifest."""
    bucket = manifest_bucket(environment)
    if bucket is None:
        return parameter_arn(environment, key)
    return f"{bucket_arn(environment, bucket)}/{manifest_key(environment, key)}"


def deployment_parameter_name(environment: Environment, key: str) -> str:
    """Name of the parameter that says how an application is run."""
    return f"{parameter_name(environment, key)}/job"


def artifacts_bucket(environment: Head) -> str:
    """Name of the bucket of archives, programs and logs; meaningful where `emr` is declared."""
    given = environment.emr.artifacts_bucket if environment.emr else None
    # Bucket names are global; the account's id makes this one unique.
    return given or f"{prefix(environment)}-{environment.account_id}"


_REFERENCE = re.compile(r"\$(output|checkpoint)\b")


def references(text: str) -> set[str]:
    """What an argument of a job refers to: settings of its application."""
    return set(_REFERENCE.findall(text))


def job_arguments(environment: Environment, job: Job) -> list[str]:
    """The arguments of a job, with the locations that they refer to."""
    return [_resolved(environment, job, each) for each in job.arguments]


def job_spark(environment: Environment, job: Job) -> dict[str, str]:
    """The settings of Spark of a job, with the locations that they refer to."""
    return {name: _resolved(environment, job, each) for name, each in job.spark.items()}


def _resolved(environment: Environment, job: Job, text: str) -> str:
    application = environment.applications[job.application]
    return _REFERENCE.sub(lambda found: str(getattr(application, found[1])), text)


def locations(application: Application) -> dict[str, Location]:
    """Where an application writes, by setting."""
    given = {"output": application.output, "checkpoint": application.checkpoint}
    return {setting: Location.parse(uri) for setting, uri in given.items() if uri}


def s3_uris(text: str) -> Iterator[tuple[str, str]]:
    """Bucket and key of each place in S3 that a text names."""
    return ((found[1], (found[2] or "").strip("/")) for found in _S3_URI.finditer(text))


def job_buckets(environment: Environment) -> tuple[str, ...]:
    """Buckets that jobs may use: that of their programs, those they write to or name in arguments, and those the pipeline is told."""
    texts = [text for job in environment.jobs for text in (*job.arguments, *job.spark.values())]
    found = {bucket for text in texts for bucket, _ in s3_uris(text)}
    found |= {
        each.bucket for application in environment.applications.values() for each in locations(application).values()
    }
    own = {artifacts_bucket(environment)} if environment.emr else set()
    told = environment.pipeline.buckets if environment.pipeline else []
    return tuple(sorted(found | own | set(told)))


def bucket_arn(environment: Environment, name: str) -> str:
    """ARN of a bucket."""
    return f"arn:{partition(environment.region)}:s3:::{name}"


def policy_name(environment: Environment, key: str) -> str:
    """Name of an application's managed policy."""
    return f"{prefix(environment)}-{application_name(key, environment.applications[key])}"


def policy_arn(environment: Environment, key: str) -> str:
    """ARN of an application's managed policy."""
    return iam_arn(environment, f"policy/{policy_name(environment, key)}")


def batch_policy_name(environment: Environment, key: str) -> str:
    """Name of the policy for batch reads of an application's streams. No application's own can be the same: names have no `@`."""
    return f"{policy_name(environment, key)}@batch"


def role_name(environment: Environment, key: str) -> str:
    """Name of an application's role, where one is declared."""
    access = environment.applications[key].access
    given = access.role_name if isinstance(access, RoleAccess) else None
    return given or policy_name(environment, key)


def role_arn(environment: Environment, key: str) -> str:
    """ARN of an application's role, where one is declared."""
    return iam_arn(environment, f"role/{role_name(environment, key)}")


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


def place(key: str, entry: Stream | Application) -> Place:
    """The place of the resources of an entry of the file."""
    return Place(key, entry.moved_from or key)


def consumer_place(environment: Environment, stream_key: str, application_key: str) -> Place:
    """The place of a consumer."""
    return place(stream_key, environment.streams[stream_key]).join(
        place(application_key, environment.applications[application_key])
    )
