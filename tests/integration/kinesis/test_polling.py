"""GetRecords over real HTTP with a real client: answers as they come, limits kept, iterators, ends, tips, large answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kinesis_efo.clock import SystemClock
from kinesis_efo.kinesis.polling import Pace, PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, ReadContext
from kinesis_efo.kinesis.subscription import ShardSubscription
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode

from .conftest import Bench, until
from .test_subscription import Sink

SHARD = "shardId-000000000000"
Local = Callable[..., Bench]


@pytest.fixture
def carried_by() -> str:
    return "http1"  # Nothing is subscribed to.


def polled(bench: Bench, shards: int = 1) -> StreamRef:
    return replace(bench.stream(shards), consumer_arn=None)


def transport(client: Any, clock: Any = None) -> PollingTransport:
    return PollingTransport(client, clock or SystemClock(), 0.2)


def reader(client: Any, stream: StreamRef, sink: Sink, start: Position = TRIM_HORIZON) -> ShardSubscription:
    context = ReadContext(
        stream, "manifest.json", transport(client), Topology(client),
        RetrySettings(base_ms=5, max_ms=20), polling_limits(KINESIS_LIMITS),
    )  # fmt: skip
    return ShardSubscription(context, SHARD, start, sink)


async def test_the_answers_json_is_what_tasks_decode(local: Local) -> None:
    bench = local()
    stream = polled(bench)
    numbers = bench.put(*"abc", data=b"\x00\xff binary")
    async with bench.client() as client:
        events = await transport(client).subscribe(stream, SHARD, Position.after(numbers[0]), Unlimited())
        event = await anext(aiter(events))
        assert {"Records", "MillisBehindLatest", "NextShardIterator"} <= set(json.loads(event.payload))
        assert (event.through, event.head.records) == (Position.after(numbers[2]), 2)
        assert events.received == len(event.payload)
        (batch,) = decode([event.payload], ShardKey("o", SHARD), TRIM_HORIZON, event.through, deaggregate=False)
        assert batch["data"].to_pylist() == [b"\x00\xff binary"] * 2
        assert batch["partitionKey"].to_pylist() == ["b", "c"]
        assert [int(number) for number in batch["sequenceNumber"].to_pylist()] == numbers[1:]
        arrival = batch["approximateArrivalTimestamp"][0].as_py()
        assert abs(arrival.timestamp() - time.time()) < 60
        assert (await anext(aiter(events))).head.still
        events.close()


async def test_shard_is_polled_to_its_end_within_limits(local: Local) -> None:
    bench = local(read_limit=True, iterator_seconds=1.0)
    stream = polled(bench)
    expected = [f"key-{number}" for number in range(3000)]
    async with bench.client() as client:
        sink = Sink()
        subscription = reader(client, stream, sink)
        task = asyncio.ensure_future(subscription.run())
        for start in range(0, 3000, 500):
            await asyncio.to_thread(bench.put, *expected[start : start + 500], data=b"x" * 1000)
            # The first answer is there before the sink is full, so that each iterator that expires has been good for one.
            await until(lambda: subscription.stats.records > 0)
            sink.has_room.clear()
        await asyncio.sleep(1.2)
        sink.has_room.set()
        await until(lambda: subscription.stats.records == 3000)
        bench.kinesis.split_shard(StreamName=stream.stream_name, ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
        await task
        assert sink.keys == expected
        assert [child.shard_id[-1] for child in sink.events[-1].head.children] == ["1", "2"]
        assert bench.aws.kinesis.calls("GetRecords", "ExpiredIteratorException") >= 1
        assert bench.aws.kinesis.calls("GetRecords", "ProvisionedThroughputExceededException") == 0
        assert subscription.stats.failures == {}


async def test_ten_megabytes_in_one_answer(local: Local) -> None:
    bench = local(read_limit=True)
    stream = polled(bench)
    for _ in range(3):
        bench.put(*"abcde", data=b"x" * 900_000)
    async with bench.client() as client:
        pace = Pace()
        polling = PollingTransport(client, SystemClock(), 0.2, lambda: pace)
        events = await polling.subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
        event = await anext(aiter(events))
        events.close()
        assert (event.head.records, len(event.payload) > 13_000_000) == (11, True)
        assert 4.5 < pace.next_call - time.monotonic() < 5.2, "the next call has to wait for what this one took"
        assert pace.limit == 1
