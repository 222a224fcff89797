"""The manifest and the IAM statements, written once for tokens and for literal values alike. Pure.

The shape of the manifest is agreed with the library, which reads it; the actions are those that the library calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infra import names
from infra.settings import Access, AdoptedStream, EmrEc2, Environment, OwnStream, PolicyOnly

MANIFEST_VERSION = 1
DEPLOYMENT_VERSION = 1
ENVIRONMENTS, PROGRAMS, STOPS, LOGS = "environments/", "programs/", "stops/", "logs/"
"""Prefixes in the bucket of artifacts, as the library writes them."""
READ_STREAM = ("kinesis:DescribeStreamSummary", "kinesis:ListShards")
POLL_STREAM = ("kinesis:GetRecords", "kinesis:GetShardIterator")
SUBSCRIBE = ("kinesis:DescribeStreamConsumer", "kinesis:SubscribeToShard")
WRITE_STREAM = ("kinesis:DescribeStreamSummary", "kinesis:ListShards", "kinesis:PutRecords")
LEASES = (
    "dynamodb:DeleteItem",
    "dynamodb:DescribeTable",
    "dynamodb:PutItem",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
)
REGISTRATION = ("kinesis:DeregisterStreamConsumer", "kinesis:RegisterStreamConsumer")


@dataclass(frozen=True, slots=True)
class StreamRef:
    """What a manifest says of one stream; tokens or literal values."""

    name: str
    arn: str
    consumer_arn: str


def manifest(
    environment: Environment, key: str, *, table_arn: str, table_name: str, streams: Mapping[str, StreamRef]
) -> dict[str, Any]:
    """The manifest of an application, with whatever stands for the values that only AWS knows."""
    return {
        "schemaVersion": MANIFEST_VERSION,
        "application": names.application_name(key, environment.applications[key]),
        "environment": environment.environment,
        "region": environment.region,
        "leaseTable": {"name": table_name, "arn": table_arn},
        "streams": {
            name: {"streamName": ref.name, "streamArn": ref.arn, "consumerArn": ref.consumer_arn}
            for name, ref in streams.items()
        },
    }


def deployment(
    environment: Environment, key: str, *, bucket: str, key_arn: str | None, target: str | None, role_arn: str | None
) -> dict[str, Any]:
    """How jobs of an application are submitted, with whatever stands for the values that only AWS knows.

    The shape is agreed with `kinesis-efo emr submit`, which reads it.
    """
    emr, job = environment.emr, environment.job(key)
    assert emr is not None
    application = names.application_name(key, environment.applications[key])
    document = {
        "schemaVersion": DEPLOYMENT_VERSION,
        "application": application,
        "environment": environment.environment,
        "region": environment.region,
        "manifest": f"ssm://{names.parameter_name(environment, key)}",
        "target": target,
        "roleArn": role_arn,
        "artifacts": f"s3://{bucket}",
        "logs": f"s3://{bucket}/{LOGS}{application}",
        "logsKeyArn": key_arn,
        "releaseLabel": emr.release_label,
        "architecture": emr.architecture,
        "python": emr.python,
        "program": job.program if job else None,
        "arguments": job.arguments if job else [],
        "spark": job.spark if job else {},
    }
    # Terraform's jsonencode of CDKTF leaves out what is null; so does this, wherever it is written.
    return {name: value for name, value in document.items() if value is not None}


def runtime_role(access: Access, role_arn: str | None) -> str | None:
    """The role that a job is submitted with; None where it has that of its cluster, or none is declared."""
    return None if isinstance(access, EmrEc2 | PolicyOnly) else role_arn


def tls_only(bucket_arn: str) -> Statement:
    """For a bucket's policy: nobody reads or writes without TLS."""
    return Statement(
        "TlsOnly",
        ("s3:*",),
        (bucket_arn, f"{bucket_arn}/*"),
        effect="Deny",
        conditions=(Condition("Bool", "aws:SecureTransport", ("false",)),),
        principals={"*": ("*",)},
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a statement."""

    test: str
    variable: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of an IAM policy; tokens or literal values.

    Attributes:
        sid: Its id.
        actions: What it is about.
        resources: ARNs; none in a role's trust policy.
        effect: `Allow` or `Deny`.
        conditions: All of them must hold.
        principals: By type (`AWS`, `Service`, `Federated`), for resource and trust policies.
    """

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    effect: str = "Allow"
    conditions: tuple[Condition, ...] = ()
    principals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def through(region: str, *services: str) -> tuple[Condition]:
    """The condition that a key is used through these services only (kms:ViaService)."""
    hosts = tuple(f"{service}.{region}.{names.dns_suffix(region)}" for service in services)
    return (Condition("StringEquals", "kms:ViaService", hosts),)


def decrypt_through(region: str, service: str, *, principals: Sequence[str]) -> Statement:
    """For a key's own policy: principals of other accounts decrypt through a service."""
    return Statement(
        "OtherAccounts",
        ("kms:Decrypt",),
        ("*",),
        conditions=through(region, service),
        principals={"AWS": tuple(principals)},
    )


def share_consumer(consumer_arn: str, principals: Sequence[str]) -> Statement:
    """For a consumer's resource policy: principals of another account subscribe with it."""
    return Statement("Subscribe", SUBSCRIBE, (consumer_arn,), principals={"AWS": tuple(principals)})


def share_stream(application: str, stream_arn: str, principals: Sequence[str], *, polling: bool) -> Statement:
    """For a stream's resource policy: principals of another account list its shards, and poll where that is allowed."""
    sid = "Read" + "".join(part.capitalize() for part in application.split("-"))
    return Statement(sid, _read_actions(polling), (stream_arn,), principals={"AWS": tuple(principals)})


def _read_actions(polling: bool) -> tuple[str, ...]:
    return tuple(sorted(READ_STREAM + (POLL_STREAM if polling else ())))


@dataclass(slots=True)
class Policy:
    """Gathers what a runtime may do. The same sid twice is one statement with both resources.

    Args:
        region: For the names of the services that keys are used through.
    """

    region: str
    statements: dict[str, Statement] = field(default_factory=dict)

    def add(self, statement: Statement) -> None:
        """Add a statement, or its resources to the one with its sid."""
        known = self.statements.get(statement.sid)
        if known is not None:
            statement = replace(known, resources=tuple(dict.fromkeys(known.resources + statement.resources)))
        self.statements[statement.sid] = statement

    def read_stream(self, stream_arn: str, consumer_arn: str, key_arn: str | None, *, polling: bool = False) -> None:
        """Read a stream through one consumer.

        Args:
            stream_arn: The stream.
            consumer_arn: The consumer.
            key_arn: Customer key of the stream, if it has one.
            polling: Also allow GetRecords.
        """
        self.add(Statement("ReadStreams", _read_actions(polling), (stream_arn,)))
        self.add(Statement("SubscribeToConsumers", SUBSCRIBE, (consumer_arn,)))
        if key_arn:
            via = through(self.region, "kinesis")
            self.add(Statement("DecryptStreams", ("kms:Decrypt",), (key_arn,), conditions=via))

    def write_stream(self, stream_arn: str, key_arn: str | None) -> None:
        """Put records into a stream."""
        self.add(Statement("WriteStreams", WRITE_STREAM, (stream_arn,)))
        if key_arn:
            via = through(self.region, "kinesis")
            self.add(Statement("EncryptStreams", ("kms:GenerateDataKey",), (key_arn,), conditions=via))

    def read_write_leases(self, table_arn: str, key_arn: str) -> None:
        """Keep leases in a table."""
        self.add(Statement("KeepLeases", LEASES, (table_arn,)))
        self._decrypt_state(key_arn)

    def read_manifest(self, parameter_arn: str, key_arn: str) -> None:
        """Load a manifest from Parameter Store."""
        self.add(Statement("LoadManifest", ("ssm:GetParameter",), (parameter_arn,)))
        self._decrypt_state(key_arn)

    def use_artifacts(self, bucket_arn: str, environment: str, application: str, key_arn: str) -> None:
        """Load an archive and a program, see that the job should stop, and write logs."""
        stops = f"{STOPS}kinesis-efo-{environment}-*"
        readable = (f"{ENVIRONMENTS}*", f"{PROGRAMS}*", stops)
        self.add(Statement("LoadPrograms", ("s3:GetObject",), tuple(f"{bucket_arn}/{each}" for each in readable)))
        # Without it, what is not there is forbidden instead of missing.
        listed = (Condition("StringLike", "s3:prefix", readable),)
        self.add(Statement("FindPrograms", ("s3:ListBucket",), (bucket_arn,), conditions=listed))
        self.add(Statement("WriteLogs", ("s3:PutObject",), (f"{bucket_arn}/{LOGS}{application}/*",)))
        via = through(self.region, "s3")
        self.add(Statement("EncryptArtifacts", ("kms:Decrypt", "kms:GenerateDataKey"), (key_arn,), conditions=via))

    def deny_registration(self) -> None:
        """Consumers are Terraform's: whatever else a role is allowed, it never registers or deregisters one."""
        self.add(Statement("NeverRegisterConsumers", REGISTRATION, ("*",), effect="Deny"))

    def json(self) -> str:
        """The policy document; meaningful for literal values only."""
        return policy_json(list(self.statements.values()))

    def _decrypt_state(self, key_arn: str) -> None:
        via = through(self.region, "dynamodb", "ssm")
        self.add(Statement("DecryptLeasesAndManifest", ("kms:Decrypt",), (key_arn,), conditions=via))


def policy_json(statements: Sequence[Statement]) -> str:
    """A policy document from statements without tokens."""
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [_statement_json(statement) for statement in statements]},
        separators=(",", ":"),
    )


def _statement_json(statement: Statement) -> dict[str, Any]:
    document: dict[str, Any] = {"Sid": statement.sid, "Effect": statement.effect}
    if statement.principals:
        document["Principal"] = {kind: list(each) for kind, each in statement.principals.items()}
    document["Action"] = list(statement.actions)
    if statement.resources:
        document["Resource"] = list(statement.resources)
    for condition in statement.conditions:
        tests = document.setdefault("Condition", {})
        tests.setdefault(condition.test, {})[condition.variable] = list(condition.values)
    return document


def literal_manifest(environment: Environment, key: str) -> str:
    """The manifest as long as Terraform will write it: every value is known but a consumer's time of creation."""
    document = manifest(
        environment,
        key,
        table_arn=names.lease_table_arn(environment, key),
        table_name=names.lease_table_name(environment, key),
        streams={
            stream_key: StreamRef(
                names.stream_name(environment, stream_key),
                names.stream_arn(environment, stream_key),
                literal_consumer_arn(environment, stream_key, key),
            )
            for stream_key in environment.applications[key].streams
        },
    )
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def literal_policy(environment: Environment, key: str) -> Policy:
    """The reader policy as long as Terraform will write it."""
    application = environment.applications[key]
    policy = Policy(environment.region)
    for stream_key in application.streams:
        consumer_arn = literal_consumer_arn(environment, stream_key, key)
        stream_arn = names.stream_arn(environment, stream_key)
        policy.read_stream(stream_arn, consumer_arn, _literal_key(environment, stream_key), polling=application.polling)
    for stream_key in application.writes:
        policy.write_stream(names.stream_arn(environment, stream_key), _literal_key(environment, stream_key))
    policy.read_write_leases(names.lease_table_arn(environment, key), _some_key(environment))
    policy.read_manifest(names.parameter_arn(environment, key), _some_key(environment))
    if environment.emr is not None:
        bucket = names.bucket_arn(environment, names.artifacts_bucket(environment))
        name = names.application_name(key, application)
        policy.use_artifacts(bucket, environment.environment, name, _some_key(environment))
    policy.deny_registration()
    return policy


def literal_deployment(environment: Environment, key: str) -> str:
    """The description of an application's jobs, at least as long as Terraform will write it."""
    job, access = environment.job(key), environment.applications[key].access
    document = deployment(
        environment,
        key,
        bucket=names.artifacts_bucket(environment),
        key_arn=_some_key(environment),
        target=(job.target if job else None) or f"serverless:{'0' * 16}",
        role_arn=runtime_role(access, names.role_arn(environment, key)),
    )
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def literal_consumer_arn(environment: Environment, stream_key: str, key: str) -> str:
    """A consumer's ARN, with ten digits where AWS writes the time of its creation if it is declared here."""
    stream = environment.streams[stream_key]
    if isinstance(stream, AdoptedStream) and key in stream.consumers:
        return stream.consumers[key]
    name = names.consumer_name(environment, stream_key, key)
    return f"{names.stream_arn(environment, stream_key)}/consumer/{name}:{'0' * 10}"


def _literal_key(environment: Environment, stream_key: str) -> str | None:
    stream = environment.streams[stream_key]
    if isinstance(stream, OwnStream) and stream.key == "own":
        return _some_key(environment, 1 + list(environment.streams).index(stream_key))
    return stream.key if stream.key and stream.key.startswith("arn:") else None


def _some_key(environment: Environment, number: int = 0) -> str:
    """ARN of a key, as long as a real one; each number is another key."""
    return names.arn(environment, "kms", f"key/{number:036}")
