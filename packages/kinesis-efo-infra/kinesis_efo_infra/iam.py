"""IAM statements and policies, with literal values or CDKTF tokens (placeholders for values that are unknown until Terraform runs).

They allow the API actions that the library calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from kinesis_efo_infra import regions
from kinesis_efo_infra.locations import Location

READ_STREAM = ("kinesis:DescribeStreamSummary", "kinesis:ListShards")
POLL_STREAM = ("kinesis:GetRecords", "kinesis:GetShardIterator")
"""Actions for `readMode=polling`, for batch reads, and for queries that use GetRecords to catch up with another query of their program."""
SUBSCRIBE = ("kinesis:DescribeStreamConsumer", "kinesis:SubscribeToShard")
WRITE_STREAM = ("kinesis:DescribeStreamSummary", "kinesis:ListShards", "kinesis:PutRecords")
LEASES = (
    "dynamodb:DeleteItem",
    "dynamodb:DescribeTable",
    "dynamodb:PutItem",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
)
USE_OBJECTS = (
    "s3:AbortMultipartUpload",
    "s3:DeleteObject",
    "s3:GetObject",
    "s3:ListMultipartUploadParts",
    "s3:PutObject",
)
FIND_UPLOADS = ("s3:GetBucketLocation", "s3:ListBucketMultipartUploads")
REGISTRATION = ("kinesis:DeregisterStreamConsumer", "kinesis:RegisterStreamConsumer")


class Polling(Enum):
    """Whether an application may read with GetRecords."""

    ALLOWED = True
    NEVER = False
    ONLY = "only"


@dataclass(frozen=True, slots=True)
class ArnPrincipal:
    """A principal that resource policies can name: a role, a user or a whole account (`arn:aws:iam::111122223333:root`)."""

    arn: str


@dataclass(frozen=True, slots=True)
class ServicePrincipal:
    """An AWS service that resource policies can name, such as `firehose.amazonaws.com`. It may only act on behalf of this account."""

    service: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an IAM statement: an operator, a condition key, and the accepted values."""

    test: str
    variable: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of an IAM policy.

    Attributes:
        sid: Id of the statement.
        actions: API actions that the statement allows or denies.
        resources: ARNs that the statement applies to; empty in a role's trust policy.
        effect: `Allow` or `Deny`.
        conditions: Conditions, which must all hold.
        principals: For resource and trust policies: principals by type (`AWS`, `Service`, `Federated`).
        excepted: Instead of `resources`: the only ARNs that the statement does not apply to (`NotResource`).
        but_actions: Instead of `actions`: the only actions that the statement does not apply to (`NotAction`).
    """

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    effect: str = "Allow"
    conditions: tuple[Condition, ...] = ()
    principals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    excepted: tuple[str, ...] = ()
    but_actions: tuple[str, ...] = ()


def through(region: str, *services: str, dns_suffix: str = "") -> tuple[Condition]:
    """Return the condition that a key is used only through these services (`kms:ViaService`).

    Args:
        region: The services' region.
        services: The first part of the services' host names, such as `kinesis`.
        dns_suffix: The last part of the services' host names; default: derived from `region`, which must then be literal.
    """
    hosts = tuple(f"{service}.{region}.{dns_suffix or regions.dns_suffix(region)}" for service in services)
    return (Condition("StringEquals", "kms:ViaService", hosts),)


def decrypt_through(region: str, service: str, *, principals: Sequence[str], dns_suffix: str = "") -> Statement:
    """Return a statement for a key policy that lets principals of other accounts decrypt through a service."""
    return Statement(
        "OtherAccounts",
        ("kms:Decrypt",),
        ("*",),
        conditions=through(region, service, dns_suffix=dns_suffix),
        principals={"AWS": tuple(principals)},
    )


def share_consumer(consumer_arn: str, principals: Sequence[str]) -> Statement:
    """Return a statement for a consumer's resource policy that lets principals of another account subscribe."""
    return Statement("Subscribe", SUBSCRIBE, (consumer_arn,), principals={"AWS": tuple(principals)})


def share_stream(application: str, stream_arn: str, principals: Sequence[str], *, polling: bool) -> Statement:
    """Return a statement for a stream's resource policy that lets principals of another account list its shards.

    With `polling`, they may also call GetRecords, which a query uses to catch up with another query of the same program.
    """
    # A sid may have letters and digits only. `application` has no capitals, so replacing `-` with X cannot result in equal sids.
    sid = f"Read{application.capitalize().replace('-', 'X')}"
    return Statement(sid, _read_actions(polling), (stream_arn,), principals={"AWS": tuple(principals)})


def _read_actions(polling: bool) -> tuple[str, ...]:
    return tuple(sorted(READ_STREAM + (POLL_STREAM if polling else ())))


def tls_only(bucket_arn: str) -> Statement:
    """Return a statement for a bucket policy that denies all access without TLS."""
    return Statement(
        "TlsOnly",
        ("s3:*",),
        (bucket_arn, f"{bucket_arn}/*"),
        effect="Deny",
        conditions=(Condition("Bool", "aws:SecureTransport", ("false",)),),
        principals={"*": ("*",)},
    )


@dataclass(slots=True)
class Policy:
    """An IAM policy for jobs. Each grant adds statements to it.

    Args:
        region: Region of the services through which keys are used.
        dns_suffix: The last part of these services' host names; default: derived from `region`, which must then be literal.

    >>> policy = Policy("eu-west-1")
    >>> policy.write_stream("arn:aws:kinesis:eu-west-1:111122223333:stream/orders", None)
    >>> sorted(policy.statements)
    ['WriteStreams']
    """

    region: str
    dns_suffix: str = ""
    statements: dict[str, Statement] = field(default_factory=dict)

    def add(self, statement: Statement) -> None:
        """Add a statement. If there is a statement that differs only in its resources, add the resources to it instead."""
        sid, number = statement.sid, 1
        while (known := self.statements.get(sid)) is not None:
            resources = tuple(dict.fromkeys(known.resources + statement.resources))
            if known == replace(statement, sid=sid, resources=known.resources):
                self.statements[sid] = replace(known, resources=resources)
                return
            number += 1
            sid = f"{statement.sid}{number}"
        self.statements[sid] = replace(statement, sid=sid)

    def through(self, *services: str) -> tuple[Condition]:
        """Return the condition that a key is used only through these services of the policy's region."""
        return through(self.region, *services, dns_suffix=self.dns_suffix)

    def read_stream(
        self,
        stream_arn: str,
        consumer_arn: str,
        key_arn: str | None,
        *,
        former_keys: Sequence[str] = (),
        polling: bool = True,
    ) -> None:
        """Allow reading a stream through one consumer.

        Args:
            stream_arn: ARN of the stream.
            consumer_arn: ARN of the consumer.
            key_arn: ARN of the stream's customer key, if it has one.
            former_keys: ARNs of earlier customer keys, with which some of the retained records are encrypted.
            polling: Also allow GetRecords, which a query uses to catch up with another query of the same program. Without it, a
                program's queries wait for the slowest one.
        """
        self.add(Statement("ReadStreams", _read_actions(polling), (stream_arn,)))
        self.add(Statement("SubscribeToConsumers", SUBSCRIBE, (consumer_arn,)))
        self._decrypt_stream(key_arn, *former_keys)

    def poll_stream(self, stream_arn: str, key_arn: str | None, *, former_keys: Sequence[str] = ()) -> None:
        """Allow reading a stream with GetRecords, without a consumer; for `former_keys`, see `read_stream`."""
        self.add(Statement("ReadStreams", _read_actions(polling=True), (stream_arn,)))
        self._decrypt_stream(key_arn, *former_keys)

    def write_stream(self, stream_arn: str, key_arn: str | None) -> None:
        """Allow putting records into a stream."""
        self.add(Statement("WriteStreams", WRITE_STREAM, (stream_arn,)))
        if key_arn:
            via = self.through("kinesis")
            self.add(Statement("EncryptStreams", ("kms:GenerateDataKey",), (key_arn,), conditions=via))

    def read_write_leases(self, table_arn: str, key_arn: str | None) -> None:
        """Allow reading and writing leases in a DynamoDB table."""
        self.add(Statement("KeepLeases", LEASES, (table_arn,)))
        self._decrypt_state(key_arn)

    def read_manifest(self, arn: str, key_arn: str | None, *, in_s3: bool = False) -> None:
        """Allow loading a manifest from Parameter Store, or from S3.

        Args:
            arn: ARN of the parameter or the object.
            key_arn: ARN of the customer key that encrypts the manifest, if there is one.
            in_s3: Whether the manifest is an object in S3.
        """
        self.add(Statement("LoadManifest", ("s3:GetObject" if in_s3 else "ssm:GetParameter",), (arn,)))
        if not in_s3:
            self._decrypt_state(key_arn)
        elif key_arn:
            self.add(Statement("DecryptManifest", ("kms:Decrypt",), (key_arn,), conditions=self.through("s3")))

    def use_location(self, what: str, location: Location, bucket_arn: str, key_arn: str | None) -> None:
        """Allow reading, writing, deleting and listing objects below a prefix of a bucket.

        Hadoop's S3A committers list incomplete uploads. S3 allows this only for a whole bucket, so uploads outside of the prefix can be
        listed, too. Source: Service Authorization Reference, Amazon S3.

        Args:
            what: What is stored there, as a part of statement ids, such as `Output`.
            location: The bucket and the prefix.
            bucket_arn: ARN of the bucket.
            key_arn: ARN of the customer key that encrypts the objects, if there is one.
        """
        self.add(Statement("UseObjects", USE_OBJECTS, tuple(f"{bucket_arn}/{each}" for each in location.keys)))
        listed = (Condition("StringLike", "s3:prefix", location.keys),)
        self.add(Statement(f"List{what}", ("s3:ListBucket",), (bucket_arn,), conditions=listed))
        self.add(Statement("FindUploads", FIND_UPLOADS, (bucket_arn,)))
        if key_arn:
            actions = ("kms:Decrypt", "kms:GenerateDataKey")
            self.add(Statement("EncryptObjects", actions, (key_arn,), conditions=self.through("s3")))

    def deny_registration(self) -> None:
        """Deny registering and deregistering consumers, even if other policies of a role allow it. Only Terraform may do this."""
        self.add(Statement("NeverRegisterConsumers", REGISTRATION, ("*",), effect="Deny"))

    def json(self) -> str:
        """Return the policy as a JSON document. Terraform inserts the values of tokens later, without escaping them."""
        return policy_json(list(self.statements.values()))

    def _decrypt_stream(self, *key_arns: str | None) -> None:
        for each in filter(None, key_arns):
            via = self.through("kinesis")
            self.add(Statement("DecryptStreams", ("kms:Decrypt",), (each,), conditions=via))

    def _decrypt_state(self, key_arn: str | None) -> None:
        if key_arn:
            via = self.through("dynamodb", "ssm")
            self.add(Statement("DecryptLeasesAndManifest", ("kms:Decrypt",), (key_arn,), conditions=via))


def policy_json(statements: Sequence[Statement]) -> str:
    """Return a policy with these statements as a JSON document. Terraform inserts the values of tokens later, without escaping them."""
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [_statement_json(statement) for statement in statements]},
        separators=(",", ":"),
    )


def _statement_json(statement: Statement) -> dict[str, Any]:
    document: dict[str, Any] = {"Sid": statement.sid, "Effect": statement.effect}
    if statement.principals:
        document["Principal"] = {kind: list(each) for kind, each in statement.principals.items()}
    if statement.actions:
        document["Action"] = list(statement.actions)
    if statement.but_actions:
        document["NotAction"] = list(statement.but_actions)
    if statement.resources:
        document["Resource"] = list(statement.resources)
    if statement.excepted:
        document["NotResource"] = list(statement.excepted)
    for condition in statement.conditions:
        tests = document.setdefault("Condition", {})
        tests.setdefault(condition.test, {})[condition.variable] = list(condition.values)
    return document
