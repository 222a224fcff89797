"""IAM statements and policies, in CDKTF tokens (placeholders for values that only AWS knows) or in literal values.

The actions are those that the library calls.
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
"""For `readMode=polling`, batch reads, and queries with a consumer, which use GetRecords while they catch up with another query of the
same program."""
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
    """A role, a user or a whole account (`arn:aws:iam::111122223333:root`), which resource policies name."""

    arn: str


@dataclass(frozen=True, slots=True)
class ServicePrincipal:
    """An AWS service, such as `firehose.amazonaws.com`, which resource policies name. It must act for this account."""

    service: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a statement."""

    test: str
    variable: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of an IAM policy.

    Attributes:
        sid: Its id.
        actions: API actions that it allows or denies.
        resources: ARNs; none in a role's trust policy.
        effect: `Allow` or `Deny`.
        conditions: Conditions, which must all hold.
        principals: For resource and trust policies: principals by type (`AWS`, `Service`, `Federated`).
        excepted: ARNs to which it does not apply, in place of `resources`.
        but_actions: Actions to which it does not apply, in place of `actions`.
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
    """Condition: a key is used only through these services (kms:ViaService).

    Args:
        region: The services' region.
        services: The first parts of their hosts' names, as `kinesis`.
        dns_suffix: The last part of their hosts' names; default: the region's, which must then be literal.
    """
    hosts = tuple(f"{service}.{region}.{dns_suffix or regions.dns_suffix(region)}" for service in services)
    return (Condition("StringEquals", "kms:ViaService", hosts),)


def decrypt_through(region: str, service: str, *, principals: Sequence[str], dns_suffix: str = "") -> Statement:
    """Statement of a key's policy: principals of other accounts may decrypt through a service."""
    return Statement(
        "OtherAccounts",
        ("kms:Decrypt",),
        ("*",),
        conditions=through(region, service, dns_suffix=dns_suffix),
        principals={"AWS": tuple(principals)},
    )


def share_consumer(consumer_arn: str, principals: Sequence[str]) -> Statement:
    """Statement of a consumer's resource policy: principals of another account may subscribe with it."""
    return Statement("Subscribe", SUBSCRIBE, (consumer_arn,), principals={"AWS": tuple(principals)})


def share_stream(application: str, stream_arn: str, principals: Sequence[str], *, polling: bool) -> Statement:
    """Statement of a stream's resource policy: principals of another account may list its shards.

    With `polling`, they may also get its records, as a query does to catch up with another one of its program.
    """
    # Keys have no capitals, so that no two keys give one sid, which may have letters and digits only.
    sid = f"Read{application.capitalize().replace('-', 'X')}"
    return Statement(sid, _read_actions(polling), (stream_arn,), principals={"AWS": tuple(principals)})


def _read_actions(polling: bool) -> tuple[str, ...]:
    return tuple(sorted(READ_STREAM + (POLL_STREAM if polling else ())))


def tls_only(bucket_arn: str) -> Statement:
    """Statement of a bucket's policy: denies all access without TLS."""
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
    """The permissions of a runtime, collected grant by grant.

    Args:
        region: For the names of the services that keys are used through.
        dns_suffix: The same; default: the region's, which must then be literal.

    >>> policy = Policy("eu-west-1")
    >>> policy.write_stream("arn:aws:kinesis:eu-west-1:111122223333:stream/orders", None)
    >>> sorted(policy.statements)
    ['WriteStreams']
    """

    region: str
    dns_suffix: str = ""
    statements: dict[str, Statement] = field(default_factory=dict)

    def add(self, statement: Statement) -> None:
        """Add a statement; if an equal statement for other resources exists, add the resources to that statement."""
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
        """Condition: a key is used only through these services of the region."""
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
            stream_arn: The stream.
            consumer_arn: The consumer.
            key_arn: Customer key of the stream, if it has one.
            former_keys: Customer keys that encrypt records which it still retains.
            polling: Also allow GetRecords, which a query uses to catch up with another query of the same program. Without it, all
                of these queries wait for the slowest.
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
        """Allow keeping leases in a table."""
        self.add(Statement("KeepLeases", LEASES, (table_arn,)))
        self._decrypt_state(key_arn)

    def read_manifest(self, arn: str, key_arn: str | None, *, in_s3: bool = False) -> None:
        """Allow loading a manifest from Parameter Store, or from S3.

        Args:
            arn: The parameter or the object.
            key_arn: Customer key of it, if it has one.
            in_s3: Whether it is an object.
        """
        self.add(Statement("LoadManifest", ("s3:GetObject" if in_s3 else "ssm:GetParameter",), (arn,)))
        if not in_s3:
            self._decrypt_state(key_arn)
        elif key_arn:
            self.add(Statement("DecryptManifest", ("kms:Decrypt",), (key_arn,), conditions=self.through("s3")))

    def use_location(self, what: str, location: Location, bucket_arn: str, key_arn: str | None) -> None:
        """Allow reading, writing, deleting and listing objects below a prefix of a bucket.

        Outside of the prefix, only the names of incomplete uploads can be listed, because S3 lists these for whole buckets. Source: Service
        Authorization Reference, Amazon S3; Hadoop's S3A committers list uploads.

        Args:
            what: What is stored there, as a part of statement ids, such as `Output`.
            location: The bucket and the prefix.
            bucket_arn: The bucket.
            key_arn: Customer key of what is written there, if it has one.
        """
        self.add(Statement("UseObjects", USE_OBJECTS, tuple(f"{bucket_arn}/{each}" for each in location.keys)))
        listed = (Condition("StringLike", "s3:prefix", location.keys),)
        self.add(Statement(f"List{what}", ("s3:ListBucket",), (bucket_arn,), conditions=listed))
        self.add(Statement("FindUploads", FIND_UPLOADS, (bucket_arn,)))
        if key_arn:
            actions = ("kms:Decrypt", "kms:GenerateDataKey")
            self.add(Statement("EncryptObjects", actions, (key_arn,), conditions=self.through("s3")))

    def deny_registration(self) -> None:
        """Deny registering and deregistering consumers, even if other policies of a role allow it: only Terraform does this."""
        self.add(Statement("NeverRegisterConsumers", REGISTRATION, ("*",), effect="Deny"))

    def json(self) -> str:
        """Return the policy document, for literal values only."""
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
    """Return a policy document from statements without tokens."""
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
