"""Declares in the local AWS what one application needs: streams, its consumer on each of them, the lease table, the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from .errors import AwsError

if TYPE_CHECKING:
    from .aws import LocalAws


@dataclass(frozen=True, slots=True)
class LocalStream:
    """A stream to declare.

    Attributes:
        name: Its name in the manifest.
        stream_name: Its name in Kinesis.
        shards: Number of shards; None for a stream on demand.
        consumer_arn: The ARN that the consumer should have, including its creation time; None for a new one.
        polled: Whether it is read without a consumer.
        retention_hours: For how long it keeps records.
        max_record_kib: Most KiB of a record.
    """

    name: str
    stream_name: str
    shards: int | None = 1
    consumer_arn: str | None = None
    polled: bool = False
    retention_hours: int = 24
    max_record_kib: int = 1024


@dataclass(frozen=True, slots=True)
class LocalApplication:
    """An application to declare.

    Attributes:
        name: Its name, and that of its consumers.
        streams: The streams that it reads.
        environment: The environment that the manifest names.
        lease_table: Name of the lease table; None for the one that `infra` would give it.
    """

    name: str
    streams: Sequence[LocalStream]
    environment: str = "local"
    lease_table: str | None = None


def declare(aws: LocalAws, application: LocalApplication, *, seconds: float = 60.0) -> dict[str, Any]:
    """Create what is missing, wait until everything is ACTIVE, and return the manifest.

    Data from a data directory is not changed: a stream keeps its shards, a consumer its ARN.

    Args:
        aws: The local AWS, running.
        application: What to declare.
        seconds: How long to wait for each stream and consumer.

    Raises:
        ClientError: The local AWS refuses something.
        TimeoutError: Something does not become ACTIVE in time.
    """
    kinesis, dynamodb = aws.client("kinesis"), aws.client("dynamodb")
    entries: dict[str, dict[str, str]] = {}
    for stream in application.streams:
        arn = declare_stream(aws, stream, seconds=seconds)
        entries[stream.name] = {"streamName": stream.stream_name, "streamArn": arn}
        if not stream.polled:
            consumer = _register(aws, kinesis, application.name, arn, stream.consumer_arn)
            entries[stream.name]["consumerArn"] = consumer
    for consumer in [entry["consumerArn"] for entry in entries.values() if "consumerArn" in entry]:
        _wait_until_active(partial(_consumer_status, kinesis, consumer), f"consumer {consumer}", seconds)
    table = application.lease_table or f"kinesis-efo-{application.environment}-{application.name}"
    return {
        "schemaVersion": 1,
        "application": application.name,
        "environment": application.environment,
        "region": aws.settings.region,
        "leaseTable": {"name": table, "arn": _lease_table(dynamodb, table)},
        "streams": entries,
    }


def declare_stream(aws: LocalAws, stream: LocalStream, *, seconds: float = 60.0) -> str:
    """Create a stream if it is not there yet, wait until it is ACTIVE, and return its ARN. `declare` does it for what it reads.

    Args:
        aws: The local AWS, running.
        stream: The stream.
        seconds: How long to wait.

    Raises:
        ClientError: The local AWS refuses something.
        TimeoutError: The stream does not become ACTIVE in time.
    """
    kinesis, name = aws.client("kinesis"), stream.stream_name
    capacity: dict[str, Any] = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
    if stream.shards is not None:
        capacity = {"ShardCount": stream.shards}
    # An older botocore does not know the size of records.
    size = {"MaxRecordSizeInKiB": stream.max_record_kib} if stream.max_record_kib > 1024 else {}
    with _already_there():
        kinesis.create_stream(StreamName=name, **capacity, **size)
    _wait_until_active(lambda: str(_summary(kinesis, name)["StreamStatus"]), f"stream {name}", seconds)
    summary = _summary(kinesis, name)
    if stream.retention_hours > summary["RetentionPeriodHours"]:
        kinesis.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=stream.retention_hours)
    return str(summary["StreamARN"])


def _register(aws: LocalAws, kinesis: Any, application: str, stream_arn: str, wanted: str | None) -> str:
    """The ARN of the consumer: the wanted one, unless that belongs to another account or partition than the local stream."""
    given, _, name_and_time = (wanted or "").partition("/consumer/")
    name, _, created = name_and_time.rpartition(":")
    name = name or application
    with _already_there():
        if given == stream_arn:
            aws.register_consumer(stream_arn, name, int(created))
        else:
            kinesis.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
    described = kinesis.describe_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
    return str(described["ConsumerDescription"]["ConsumerARN"])


def _lease_table(dynamodb: Any, name: str) -> str:
    with _already_there():
        dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    return str(dynamodb.describe_table(TableName=name)["Table"]["TableArn"])


@contextmanager
def _already_there() -> Iterator[None]:
    try:
        yield
    except (AwsError, ClientError) as error:
        code = error.code if isinstance(error, AwsError) else error.response["Error"]["Code"]
        if code != "ResourceInUseException":
            raise


def _summary(kinesis: Any, name: str) -> dict[str, Any]:
    summary: dict[str, Any] = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return summary


def _consumer_status(kinesis: Any, arn: str) -> str:
    return str(kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"])


def _wait_until_active(status: Callable[[], str], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (found := status()) != "ACTIVE":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} of the local AWS is {found} after {seconds:g} s, not ACTIVE")
        time.sleep(0.02)
