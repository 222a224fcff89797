"""Reads the description of an application's job: a document in Parameter Store, written when the infrastructure is deployed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.aws_errors import Cause, cause_of, code_of
from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.emr.projects import split

SCHEMA_VERSION: Final = 1


class Deployment(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Where and how a job of an application runs.

    Attributes:
        schema_version: Version of this document's schema.
        application: Name of the application.
        environment: Name of the environment; `lake.dev` for `dev` in project `lake`.
        region: AWS region.
        manifest: Location of the manifest.
        target: The target in the format of `Target.parse`; None if there is neither a declared job nor an EMR Serverless application.
        role_arn: Execution role of the job; None for the cluster's role.
        artifacts: S3 location of archives and programs.
        logs: S3 location to which EMR writes logs.
        logs_key_arn: KMS key for the logs.
        release_label: EMR release.
        architecture: Architecture of the target's processors.
        python: Python version to package for.
        program: The declared job's program, relative to the project; None if no job is declared.
        arguments: The declared job's arguments.
        spark: The declared job's Spark settings.
        schedule: Schedule expression for EventBridge Scheduler; None if the job runs continuously.
        time_zone: Time zone of the schedule.
        schedule_group: The environment's schedule group; None if there is none.
        schedule_role_arn: The role that starts scheduled jobs.
    """

    schema_version: int
    application: str
    environment: str
    region: str
    manifest: str
    target: str | None = None
    role_arn: str | None = None
    artifacts: str
    logs: str | None = None
    logs_key_arn: str | None = None
    release_label: str
    architecture: str
    python: str
    program: str | None = None
    arguments: Sequence[str] = ()
    spark: dict[str, str] = {}
    schedule: str | None = None
    time_zone: str = "UTC"
    schedule_group: str | None = None
    schedule_role_arn: str | None = None


def parameter_name(environment: str, application: str) -> str:
    """Return the name of the SSM parameter with the description of an application's job. `environment`: `NAME` or `PREFIX.NAME`.

    >>> parameter_name("dev", "flights")
    '/kinesis-efo/dev/flights/job'
    >>> parameter_name("lake.dev", "flights")
    '/lake/dev/flights/job'
    """
    project, name = split(environment)
    return f"/{project}/{name}/{application}/job"


def load_deployment(environment: str, application: str, ssm: Any) -> Deployment:
    """Load the description of an application's job from Parameter Store."""
    name = parameter_name(environment, application)
    try:
        text = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    except ClientError as error:
        if code_of(error) == "ParameterNotFound":
            raise ConfigurationError(
                f"there is no parameter {name} in {ssm.meta.region_name}: does the environment file of {environment!r} have "
                f"'emr' and an application {application!r}, and was it deployed, to this account and region? "
                "Or give --target, --manifest and --artifacts"
            ) from None
        raise ConfigurationError(f"parameter {name} cannot be read: {error}") from error
    except BotoCoreError as error:
        if cause_of(error) is Cause.NO_CREDENTIALS:
            raise ConfigurationError(
                f"there are no credentials to read parameter {name} with: {error}; `aws sso login` with AWS_PROFILE, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        raise ConfigurationError(f"parameter {name} cannot be read: {error}") from error
    try:
        deployment = msgspec.json.decode(text, type=Deployment)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"parameter {name} is not a description of a job: {error}; deploy the infrastructure again"
        ) from None
    if deployment.schema_version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"parameter {name} has schemaVersion {deployment.schema_version}; this version of kinesis-efo reads {SCHEMA_VERSION}. "
            "Deploy the infrastructure and submit with the same release"
        )
    return deployment
