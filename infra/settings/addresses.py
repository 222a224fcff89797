"""Terraform addresses of an environment's resources: those with an identity, those that are imported, and those scaled elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.settings.access import OtherAccount
from infra.settings.model import Environment, OwnStream
from infra.settings.names import ARTIFACTS, ENVIRONMENT_KEY, JOBS, Names, entry_place
from kinesis_efo_infra.places import Place


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """A resource with an identity: replacing it would lose data, or change an ARN that running jobs use.

    Attributes:
        address: Terraform address in the environment's stack.
        name: Name of the resource in AWS; for a key, the name of the resource that it encrypts.
        before: Its former address if the settings move it (`moved_from`); otherwise the same as `address`.
    """

    address: str
    name: str
    before: str


def declared_consumers(environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield the keys of stream and application for each consumer that is declared here, instead of registered by the stream's owner."""
    for application_key, application in environment.applications.items():
        if not application.subscribes:
            continue
        for stream_key in application.streams:
            stream = environment.streams[stream_key]
            if isinstance(stream, OwnStream) or application_key not in stream.consumers:
                yield stream_key, application_key


def imports(environment: Environment) -> Iterator[str]:
    """Yield the Terraform addresses of existing resources that Terraform imports."""
    for key, stream in environment.streams.items():
        if isinstance(stream, OwnStream) and stream.import_existing:
            yield f"aws_kinesis_stream.{entry_place(key, stream).now}"
        for reader in stream.import_consumers:
            yield f"aws_kinesis_stream_consumer.{Names(environment).consumer_place(key, reader).now}"
    for key, application in environment.applications.items():
        if application.import_lease_table:
            yield f"aws_dynamodb_table.{entry_place(key, application).now}"


def scaled_elsewhere(environment: Environment) -> Iterator[str]:
    """Yield the Terraform addresses of streams whose number of shards is changed by something else, such as a scaler."""
    for key, stream in environment.streams.items():
        if isinstance(stream, OwnStream) and stream.scaled_elsewhere:
            yield f"aws_kinesis_stream.{entry_place(key, stream).now}"


def handed_over(environment: Environment) -> Iterator[str]:
    """Yield Terraform addresses to remove from the state without destroying the resources (`handed_over` and `retain`)."""
    for key in (*environment.handed_over, *environment.retain):
        for kind in ("aws_kinesis_stream", "aws_kms_key", "aws_kms_alias", "aws_kinesis_resource_policy"):
            yield f"{kind}.{key}"


def identities(environment: Environment) -> Iterator[Identity]:
    """Yield all resources of an environment that have an identity."""

    names = Names(environment)

    def identity(kind: str, at: Place, name: str) -> Identity:
        return Identity(f"{kind}.{at.now}", name, f"{kind}.{at.before}")

    if environment.key == "own":
        yield identity("aws_kms_key", ENVIRONMENT_KEY, names.qualified)
    for key, stream in environment.streams.items():
        if isinstance(stream, OwnStream):
            yield identity("aws_kinesis_stream", entry_place(key, stream), names.stream_name(key))
            if "own" in stream.all_keys:
                yield identity("aws_kms_key", entry_place(key, stream), names.stream_name(key))
    for stream_key, key in declared_consumers(environment):
        name = f"{names.stream_name(stream_key)}/{names.consumer_name(stream_key, key)}"
        yield identity("aws_kinesis_stream_consumer", names.consumer_place(stream_key, key), name)
    for key, application in environment.applications.items():
        if not isinstance(application.access, OtherAccount):
            yield identity("aws_dynamodb_table", entry_place(key, application), names.lease_table_name(key))
    if environment.emr is not None:
        yield identity("aws_s3_bucket", ARTIFACTS, names.artifacts_bucket)
        if environment.emr.serverless is not None:
            yield identity("aws_emrserverless_application", JOBS, names.stack_name)
