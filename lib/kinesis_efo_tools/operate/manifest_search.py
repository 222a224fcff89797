"""Looks up the resources for a manifest in an AWS account: streams, their consumers and the lease table. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from kinesis_efo.arns import CONSUMER_ARN, STREAM_ARN, STREAM_NAME
from kinesis_efo.errors import ConfigurationError, ManifestError
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import SCHEMA_VERSION, Manifest, StreamRef
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.checkup import consumers_of
from kinesis_efo_tools.operate.documentation import address
from kinesis_efo_tools.operate.findings import CheckFailed, Finding, Status, existing, finding

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream to look up for a manifest, as given on the command line."""

    name: str
    stream_name: str
    stream_arn: str | None = None
    consumer_arn: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `STREAM` or `NAME=STREAM`, where STREAM is the stream's name in Kinesis, its ARN, or its consumer's ARN.

        Raises:
            ConfigurationError: The text has a different form.

        >>> StreamSpec.parse("orders=prod-orders")
        StreamSpec(name='orders', stream_name='prod-orders', stream_arn=None, consumer_arn=None)
        >>> StreamSpec.parse("arn:aws:kinesis:eu-west-1:111122223333:stream/orders/consumer/lake:1").name
        'orders'
        """
        given, equals, target = text.rpartition("=")
        consumer = CONSUMER_ARN.fullmatch(target)
        arn = consumer["stream"] if consumer else target
        stream = STREAM_ARN.fullmatch(arn)
        stream_name = stream["name"] if stream else target
        name = given if equals else stream_name
        if not (STREAM_NAME.fullmatch(stream_name) and STREAM_NAME.fullmatch(name)):
            raise ConfigurationError(
                f"--stream must be NAME or NAME=STREAM, where STREAM is a name in Kinesis, or the ARN of a stream or of one of its "
                f"consumers; got {text!r}"
            )
        return cls(name, stream_name, arn if stream else None, target if consumer else None)

    @property
    def region(self) -> str | None:
        """The region in the stream's ARN; None if no ARN was given."""
        return self.stream_arn.split(":")[3] if self.stream_arn else None


@dataclass(frozen=True, slots=True)
class Search:
    """The resources to look up.

    `consumer` is the name of the consumer of each stream without a consumer ARN; if None, such a stream must have a single consumer.
    """

    application: str
    environment: str
    region: str
    streams: Sequence[StreamSpec]
    consumer: str | None
    lease_table: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The resources that a search found."""

    manifest: Manifest
    lease_table_arn: str

    @property
    def document(self) -> dict[str, Any]:
        """The manifest as a JSON document, in the form that the infrastructure writes."""
        return document(self.manifest, {"name": self.manifest.lease_table, "arn": self.lease_table_arn})


def document(manifest: Manifest, lease_table: str | Mapping[str, str]) -> dict[str, Any]:
    """Return a manifest as the JSON document that `parse_manifest` reads."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "application": manifest.application,
        "environment": manifest.environment,
        "region": manifest.region,
        "leaseTable": lease_table,
        "streams": {
            name: {"streamName": ref.stream_name, "streamArn": ref.stream_arn}
            | ({} if ref.consumer_arn is None else {"consumerArn": ref.consumer_arn})
            for name, ref in manifest.streams.items()
        },
    }


async def search(clients: Clients, wanted: Search) -> SearchResult:
    """Look up the streams, their consumers and the lease table.

    Raises ManifestError if some are missing or cannot be looked up. Its message names all of them, each with a fix.
    """
    streams, table = await asyncio.gather(
        asyncio.gather(*(_stream(clients, each, wanted) for each in wanted.streams)),
        _result("lease table", _table(clients, wanted), action="dynamodb:DescribeTable"),
    )
    faults = [each for each in (*streams, table) if isinstance(each, Finding)]
    if faults or isinstance(table, Finding):
        raise ManifestError.of_lines(
            f"no manifest for application {wanted.application!r} in {wanted.region}:",
            *(f"- {each.subject}: {each.detail}; {each.fix}" for each in faults),
        )
    refs = {each.name: each for each in streams if isinstance(each, StreamRef)}
    manifest = Manifest(
        application=wanted.application,
        environment=wanted.environment,
        region=wanted.region,
        lease_table=wanted.lease_table,
        streams=refs,
        source=f"what AWS has in {wanted.region}",
        stream_names={name: ref.stream_name for name, ref in refs.items()},
    )
    return SearchResult(manifest, table)


async def _result(subject: str, work: Awaitable[T], *, action: str) -> T | Finding:
    """Return the result of `work`, or a `Finding` with the reason why it failed."""
    results: list[T] = []

    async def look() -> str:
        results.append(await work)
        return ""

    outcome = await finding(subject, look(), action=action)
    return results[0] if outcome.status is Status.PASSED else outcome


async def _table(clients: Clients, wanted: Search) -> str:
    dynamodb = await clients.client("dynamodb")
    declared_by = f"the stack of application {wanted.application!r}"
    with existing(
        f"{wanted.lease_table!r} does not exist",
        f"correct the name, deploy the table, or make it: aws dynamodb create-table --region {wanted.region} --table-name "
        f"{wanted.lease_table} --attribute-definitions AttributeName=leaseKey,AttributeType=S "
        "--key-schema AttributeName=leaseKey,KeyType=HASH --billing-mode PAY_PER_REQUEST",
    ):
        await dynamodb.describe_table(TableName=wanted.lease_table)
    return await LeaseTable(dynamodb, wanted.lease_table, declared_by=declared_by).check()


async def _stream(clients: Clients, stream: StreamSpec, wanted: Search) -> StreamRef | Finding:
    arn = await _result(
        f"stream {stream.name}", _stream_arn(clients, stream, wanted), action="kinesis:DescribeStreamSummary"
    )
    if isinstance(arn, Finding):
        return arn
    given = stream.consumer_arn
    return await _result(
        f"consumer of {stream.name}",
        _given_consumer(clients, stream, arn, given) if given else _consumer(clients, stream, arn, wanted),
        action=f"kinesis:{'DescribeStreamConsumer' if given else 'ListStreamConsumers'}",
    )


async def _stream_arn(clients: Clients, stream: StreamSpec, wanted: Search) -> str:
    kinesis = await clients.client("kinesis")
    asked = {"StreamARN": stream.stream_arn} if stream.stream_arn else {"StreamName": stream.stream_name}
    with existing(
        f"{stream.stream_arn or repr(stream.stream_name)} does not exist",
        f"correct the name, look in another account or region than {wanted.region}, deploy the stream, or make it: aws kinesis create-stream "
        f"--region {wanted.region} --stream-name {stream.stream_name} --stream-mode-details StreamMode=ON_DEMAND",
    ):
        answer = await kinesis.describe_stream_summary(**asked)
    found = answer["StreamDescriptionSummary"]
    if found["StreamStatus"] not in ("ACTIVE", "UPDATING"):
        raise CheckFailed(f"{found['StreamARN']} is {found['StreamStatus']}", "try again when it is ACTIVE")
    return str(found["StreamARN"])


async def _given_consumer(clients: Clients, stream: StreamSpec, stream_arn: str, arn: str) -> StreamRef:
    kinesis = await clients.client("kinesis")
    with existing(f"{arn} does not exist (any more)", "name the consumer that exists, or let it be looked up"):
        answer = await kinesis.describe_stream_consumer(ConsumerARN=arn)
    return _active(stream, stream_arn, answer["ConsumerDescription"])


async def _consumer(clients: Clients, stream: StreamSpec, stream_arn: str, wanted: Search) -> StreamRef:
    consumers = await consumers_of(await clients.client("kinesis"), stream_arn)
    named = sorted(consumers)
    choice = wanted.consumer or (named[0] if len(named) == 1 else None)
    if choice is None and named:
        raise CheckFailed(
            f"{stream.stream_name} has {len(named)} consumers: {', '.join(map(repr, named))}",
            f"say which is the application's with --consumer, or with --stream {stream.name}=ARN of a consumer",
        )
    if choice not in consumers:
        has = f"it has {', '.join(map(repr, named))}" if named else "it has none"
        wish = f"consumer {choice!r}" if choice else "consumer"
        raise CheckFailed(
            f"{stream.stream_name} has no {wish}: {has}",
            f"nothing is registered here: deploy the application ({address('environment-file')}), or make it: aws kinesis "
            f"register-stream-consumer --region {wanted.region} --stream-arn {stream_arn} --consumer-name {choice or wanted.application}",
        )
    return _active(stream, stream_arn, consumers[choice])


def _active(stream: StreamSpec, stream_arn: str, consumer: dict[str, Any]) -> StreamRef:
    arn, status = consumer["ConsumerARN"], consumer["ConsumerStatus"]
    if status != "ACTIVE":
        raise CheckFailed(
            f"{arn} is {status}", "try again when it is ACTIVE" if status == "CREATING" else "deploy it again"
        )
    return StreamRef(stream.name, stream.stream_name, stream_arn, arn)
