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
        shards: Number of shards.
        consumer_arn: The ARN that the consumer should have, creation time and all; None for a new one.
        polled: Whether it is read without a consumer.
    """

    name: str
    stream_name: str
    shards: int = 1
    consumer_arn: str | None = None
    polled: bool = False


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
    """Create what is not there yet, wait until all is ACTIVE, and return the manifest.

    What a data directory has kept stays as it is: a stream keeps its shards, a consumer its ARN.

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
        with _already_there():
            kinesis.create_stream(StreamName=stream.stream_name, ShardCount=stream.shards)
        _wait_until_active(
            partial(_stream_status, kinesis, stream.stream_name), f"stream {stream.stream_name}", seconds
        )
        arn = kinesis.describe_stream_summary(StreamName=stream.stream_name)["StreamDescriptionSummary"]["StreamARN"]
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


def _stream_status(kinesis: Any, name: str) -> str:
    return str(kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamStatus"])


def _consumer_status(kinesis: Any, arn: str) -> str:
    return str(kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"])


def _wait_until_active(status: Callable[[], str], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (found := status()) != "ACTIVE":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} of the local AWS is {found} after {seconds:g} s, not ACTIVE")
        time.sleep(0.02)
