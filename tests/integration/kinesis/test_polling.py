"""GetRecords over real HTTP with a real client: answers as they come, limits kept, iterators, ends, tips, large answers."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kinesis_efo.clock import SystemClock
from kinesis_efo.kinesis.polling import PollingTransport
from kinesis_efo.kinesis.transport import Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode

from .conftest import Bench

SHARD = "shardId-000000000000"
Local = Callable[..., Bench]


@pytest.fixture
def carried_by() -> str:
    return "http1"  # Nothing is subscribed to.


def polled(bench: Bench, shards: int = 1) -> StreamRef:
    return replace(bench.stream(shards), consumer_arn=None)


def transport(client: Any, clock: Any = None) -> PollingTransport:
    return PollingTransport(client, clock or SystemClock(), 0.2)


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
