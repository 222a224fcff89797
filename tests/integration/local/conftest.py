"""A local AWS over real HTTP, with real clients."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from email.message import Message
from http.client import HTTPConnection
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo_local import LocalAws, Settings
from tests.support.h2_client import H2Client
from tests.support.world import wait_until

SET_CLOCK: dict[str, Any] = {"signature_seconds": math.inf}
"""Clients sign with the real clock, whatever the server's says."""

QUICK: dict[str, Any] = {
    "subscription_seconds": 20.0,
    "idle_event_seconds": 0.2,
    "consumer_creating_seconds": 0.05,
    "consumer_deleting_seconds": 0.05,
    "resubscribe_seconds": 0.3,
    "subscribe_interval_seconds": 0.0,
    "read_limit": False,
}


def ask(
    aws: LocalAws, headers: dict[str, str], body: str | bytes = "{}", method: str = "POST", path: str = "/"
) -> tuple[int, Message, bytes]:
    """The status, the headers and the body of an answer."""
    with closing(HTTPConnection("127.0.0.1", aws.port, timeout=30)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def refused(code: str, message: str = "") -> Any:
    """Expect an error of AWS."""
    return pytest.raises(ClientError, match=rf"[(]{code}[)] when calling the \w+ operation: .*{message}")


def summary(kinesis: Any, name: str = "orders") -> dict[str, Any]:
    """What Kinesis tells of a stream."""
    found: dict[str, Any] = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return found


class Bench:
    """A running local AWS, and shortcuts for frequent calls."""

    def __init__(self, aws: LocalAws) -> None:
        self.aws = aws
        self.client = aws.client("kinesis")
        self.opened: list[Any] = []

    def stream(self, shards: int = 1, name: str = "orders", **more: Any) -> str:
        self.client.create_stream(StreamName=name, ShardCount=shards, **more)
        return str(summary(self.client, name)["StreamARN"])

    def consumer(self, stream_arn: str, name: str = "lake") -> str:
        registered = self.client.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
        arn = str(registered["Consumer"]["ConsumerARN"])
        wait_until(lambda: self.consumer_status(arn) == "ACTIVE")
        return arn

    def consumer_status(self, arn: str) -> str:
        return str(self.client.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"])

    def put(self, *keys: str, data: bytes = b"x", name: str = "orders") -> list[str]:
        answer = self.client.put_records(StreamName=name, Records=[{"Data": data, "PartitionKey": key} for key in keys])
        assert answer["FailedRecordCount"] == 0
        return [record["SequenceNumber"] for record in answer["Records"]]

    def subscribe(self, consumer: str, kind: str = "TRIM_HORIZON", shard: int = 0, **position: Any) -> Iterator[Any]:
        answer = self.client.subscribe_to_shard(
            ConsumerARN=consumer, ShardId=f"shardId-{shard:012d}", StartingPosition={"Type": kind, **position}
        )
        self.opened.append(answer["EventStream"])
        for event in answer["EventStream"]:
            yield event["SubscribeToShardEvent"]

    def http2(self, *, tls: bool = False, **options: Any) -> H2Client:
        """A connection over HTTP/2."""
        if tls:
            return H2Client(int(self.aws.tls_endpoint_url.rpartition(":")[2]), ca_path=self.aws.ca_path, **options)
        return H2Client(self.aws.port, **options)

    def close(self) -> None:
        """Stop the server and close what clients hold open."""
        self.aws.stop()
        for stream in self.opened:
            stream.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Bench]]:
    """Start a local AWS with quick settings, changed by keyword; stopped after the test."""
    started: list[Bench] = []

    def start(faults: Any = None, clock: Any = time, tls_port: int | None = None, **settings: Any) -> Bench:
        chosen = Settings(**{**QUICK, **SET_CLOCK, **settings} if clock is not time else {**QUICK, **settings})
        bench = Bench(LocalAws(settings=chosen, faults=faults, clock=clock, tls_port=tls_port).start())
        started.append(bench)
        return bench

    yield start
    for bench in started:
        bench.close()


@pytest.fixture
def bench(run: Callable[..., Bench]) -> Bench:
    """A local AWS with quick settings."""
    return run()
