"""Creates in the local AWS what one application needs: streams, a consumer of each stream, the lease table and the manifest."""

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
        name: Name in the manifest.
        stream_name: Name in Kinesis.
        shards: Number of shards; None for an on-demand stream.
        consumer_arn: ARN that the consumer should have, including its creation time; None for a new consumer.
        polled: Whether the application polls the stream with GetRecords, and so needs no consumer.
        retention_hours: Retention period in hours.
        max_record_kib: Maximum size of a record in KiB.
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
        name: Name of the application and of its consumers.
        streams: The streams that it reads.
        environment: Name of the environment in the manifest.
        lease_table: Name of the lease table; None for `kinesis-efo-<environment>-<name>`.
    """

    name: str
    streams: Sequence[LocalStream]
    environment: str = "local"
    lease_table: str | None = None


def declare(aws: LocalAws, application: LocalApplication, *, seconds: float = 60.0) -> dict[str, Any]:
    """Create missing streams, consumers and the lease table, wait until they can be used, and return the manifest.

    Existing streams (from a data directory) keep their shards, and existing consumers keep their ARNs.

    Args:
        aws: The local AWS, running.
        application: What to declare.
        seconds: How long to wait for each stream and consumer.

    Raises:
        ClientError: The local AWS rejects a request.
        TimeoutError: A stream or consumer does not become ACTIVE in time.
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
    """Create a stream if it does not exist, wait until it is ACTIVE, and return its ARN. `declare` calls this for each stream.

    Args:
        aws: The local AWS, running.
        stream: The stream.
        seconds: How long to wait.

    Raises:
        ClientError: The local AWS rejects a request.
        TimeoutError: The stream does not become ACTIVE in time.
    """
    kinesis, name = aws.client("kinesis"), stream.stream_name
    capacity: dict[str, Any] = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
    if stream.shards is not None:
        capacity = {"ShardCount": stream.shards}
    # Set only if the size is not the default: older versions of botocore reject this parameter.
    size = {"MaxRecordSizeInKiB": stream.max_record_kib} if stream.max_record_kib > 1024 else {}
    with _already_there():
        kinesis.create_stream(StreamName=name, **capacity, **size)
    _wait_until_active(lambda: str(_summary(kinesis, name)["StreamStatus"]), f"stream {name}", seconds)
    summary = _summary(kinesis, name)
    if stream.retention_hours > summary["RetentionPeriodHours"]:
        kinesis.increase_stream_retention_period(StreamName=name, RetentionPeriodHours=stream.retention_hours)
    return str(summary["StreamARN"])


def _register(aws: LocalAws, kinesis: Any, application: str, stream_arn: str, wanted: str | None) -> str:
    """Register the consumer unless it exists, and return its ARN. A new consumer gets the ARN `wanted` if that belongs to `stream_arn`."""
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
