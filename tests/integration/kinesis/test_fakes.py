"""The fakes that are servers do as Kinesis does: the local one and the benchmarks' prepared one, with both versions of HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from hashlib import md5
from types import TracebackType
from typing import Any

import aiohttp
import pytest

from benchmarks.canned import CannedKinesis, canned_kinesis
from kinesis_efo.clock import SystemClock
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport
from kinesis_efo.manifest import StreamRef
from kinesis_efo.records.frames import FrameDecoder
from kinesis_efo_local import LocalAws, Settings
from tests.support.coroutine_tests import until
from tests.support.kinesis_contract import (
    AnswersContract,
    CalledFake,
    EventsContract,
    Fake,
    IteratorTimeContract,
    Scenario,
    ServiceContract,
    SubscriptionTimeContract,
    shard_id,
)
from tests.support.transports import refused

from .conftest import Bench, run, subscriber

TURN, ITERATOR, SUBSCRIPTION = 2.0, 3.0, 5.0
"""Seconds after which something is over, for the tests of that."""

_numbers = itertools.count()


class Served(Fake):
    """A fake behind a URL.

    Args:
        endpoint: The URL.
        transport: `http1` or `http2`.
        ref: The stream.
    """

    def __init__(self, endpoint: str, transport: str, ref: StreamRef) -> None:
        self.endpoint = endpoint
        self.ref = ref
        self._carried_by = transport
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Served:
        self.client = await self._stack.enter_async_context(subscriber(self.endpoint, self._carried_by))
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.transport = BotoTransport(self.client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def posted(self, operation: str, params: dict[str, Any]) -> tuple[aiohttp.ClientResponse, bytes]:
        """An answer as it is on the wire; of an event stream, its beginning."""
        headers = {
            "X-Amz-Target": f"Kinesis_20131202.{operation}",
            "Content-Type": "application/x-amz-json-1.1",
            "Authorization": "AWS4-HMAC-SHA256 Credential=AKIATEST/20270131/us-east-1/kinesis/aws4_request",
        }
        async with self.http.post(self.endpoint, headers=headers, data=json.dumps(params)) as response:
            if response.content_type != "application/vnd.amazon.eventstream":
                return response, await response.read()
            beginning = b""
            while len(beginning) < 1000:
                beginning += await response.content.readany()
            return response, beginning


class Local(Served, CalledFake):
    """A new stream of the local Kinesis."""

    def __init__(self, aws: LocalAws, transport: str) -> None:
        self._aws = aws
        self._bench = Bench(aws, transport)
        self._kinesis = self._bench.kinesis
        self._name = f"orders{next(_numbers)}"
        super().__init__(aws.endpoint_url, transport, self._bench.stream(name=self._name))
        self._bench.put(*(f"k{number}" for number in range(24)), stream=self._name)

    async def next_turn(self) -> None:
        await asyncio.sleep(self._aws.settings.resubscribe_seconds)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def put(self, shard: int, count: int) -> None:
        (found,) = [each for each in await self.shards() if each.shard_id == shard_id(shard)]
        low, high = found.hash_range
        keys = (str(number) for number in itertools.count())
        taken = (key for key in keys if low <= int.from_bytes(md5(key.encode()).digest(), "big") <= high)
        await asyncio.to_thread(self._bench.put, *itertools.islice(taken, count), stream=self._name)

    async def split(self, shard: int) -> None:
        (found,) = [each for each in await self.shards() if each.shard_id == shard_id(shard)]
        middle = str(sum(found.hash_range) // 2 + 1)
        self._kinesis.split_shard(StreamName=self._name, ShardToSplit=shard_id(shard), NewStartingHashKey=middle)
        await self._active()

    async def merge(self, one: int, other: int) -> None:
        self._kinesis.merge_shards(
            StreamName=self._name, ShardToMerge=shard_id(one), AdjacentShardToMerge=shard_id(other)
        )
        await self._active()

    async def _active(self) -> None:
        def active() -> bool:
            summary = self._kinesis.describe_stream_summary(StreamName=self._name)["StreamDescriptionSummary"]
            return bool(summary["StreamStatus"] == "ACTIVE")

        await until(active)

    async def shards(self) -> list[Shard]:
        return await Topology(self.client, SystemClock()).shards(self.ref.stream_arn)

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        response, body = await self.posted(operation, params)
        answer: dict[str, Any] = json.loads(body)
        if response.status != 200:
            assert response.content_type == "application/x-amz-json-1.1"
            assert set(answer) == {"__type", "message"}
            raise refused(answer["__type"], answer["message"], response.status, operation)
        return answer


QUICK: dict[str, Any] = {
    "consumer_creating_seconds": 0.0,
    "idle_event_seconds": 0.15,
    "resubscribe_seconds": 0.0,
    "subscribe_interval_seconds": 0.0,
    "max_event_records": 7,
}
TIMES = {"resubscribe_seconds": TURN, "subscription_seconds": SUBSCRIPTION, "iterator_seconds": ITERATOR}


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(**QUICK)) as running:
        yield running


@pytest.fixture(scope="module")
def hurried() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(**QUICK | TIMES)) as running:
        yield running


@pytest.fixture(scope="module", params=["http2", "http1"])
def carried(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Opening:
    """Runs each scenario of a contract with a fake of its own."""

    _make: Callable[[], Served]

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            async with self._make() as fake:
                await scenario(fake)

        run(main())


class TestLocal(Opening, ServiceContract):
    @pytest.fixture(autouse=True)
    def _served(self, aws: LocalAws, carried: str) -> None:
        self._make = lambda: Local(aws, carried)


class TestLocalAnswers(Opening, AnswersContract):
    @pytest.fixture(autouse=True)
    def _served(self, aws: LocalAws) -> None:
        self._make = lambda: Local(aws, "http1")


class TestLocalTimes(Opening, SubscriptionTimeContract, IteratorTimeContract):
    iterator_seconds, subscription_seconds = ITERATOR, SUBSCRIPTION

    @pytest.fixture(autouse=True)
    def _served(self, hurried: LocalAws) -> None:
        self._make = lambda: Local(hurried, "http2")


@pytest.fixture(scope="module")
def canned(carried: str) -> Iterator[CannedKinesis]:
    with canned_kinesis(100, 3, 1, http2=carried == "http2") as served:
        yield served


ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
CANNED = StreamRef("orders", "orders", ARN, f"{ARN}/consumer/lake:1")


class TestCanned(Opening, EventsContract):
    @pytest.fixture(autouse=True)
    def _served(self, canned: CannedKinesis, carried: str) -> None:
        self._make = lambda: Served(canned.endpoint, carried, CANNED)

    def test_shards_are_listed_with_hash_keys_and_numbers(self) -> None:
        async def scenario(fake: Served) -> None:
            (shard,) = await Topology(fake.client, SystemClock()).shards(ARN)
            assert (shard.shard_id, shard.parents, shard.last) == (shard_id(0), (), None)
            assert shard.hash_range == (0, 2**128 - 1)
            first = (await fake.records(0))[0]
            assert shard.first <= int(first["SequenceNumber"])

        self.run(scenario)


async def frames_behind_the_initial_response(fake: Served) -> int:
    """How many frames an event stream begins with after the first one, which is no event."""
    start = {"ConsumerARN": fake.ref.consumer_arn, "ShardId": shard_id(0), "StartingPosition": {"Type": "TRIM_HORIZON"}}
    response, beginning = await fake.posted("SubscribeToShard", start)
    assert (response.status, response.content_type) == (200, "application/vnd.amazon.eventstream")
    first, *others = FrameDecoder().feed(beginning)
    assert (first.headers[":event-type"], json.loads(first.payload)) == ("initial-response", {})
    assert {frame.headers[":event-type"] for frame in others} <= {"SubscribeToShardEvent"}
    for frame in (first, *others):
        assert frame.headers[":message-type"] == "event"
        assert "json" in str(frame.headers[":content-type"])
    return len(others)


async def test_the_local_event_stream_begins_with_the_initial_response(aws: LocalAws) -> None:
    async with Local(aws, "http1") as fake:
        assert await frames_behind_the_initial_response(fake)


async def test_the_prepared_event_stream_begins_with_the_initial_response() -> None:
    with canned_kinesis(100, 1, 1) as served:
        async with Served(served.endpoint, "http1", CANNED) as fake:
            await frames_behind_the_initial_response(fake)
