"""What a fetcher answers to its planner about each shard, and which feeds it keeps: call by call, in virtual time."""

from __future__ import annotations

import asyncio

from kinesis_efo.errors import DataLossError
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from tests.support.model_stream import ModelStream
from tests.unit.fetcher.test_fetcher import Query, horizon, scenario

FIRST, SECOND = (ShardKey("orders", f"shardId-00000000000{number}") for number in range(2))


@scenario
async def test_what_is_known_of_a_shard_is_told_and_nothing_of_one_that_is_not_read() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Query(stream) as query:
        fetcher = query.fetcher
        assert [fetcher.subscription(FIRST), fetcher.feeds.millis_behind(FIRST)] == [None] * 2
        assert (fetcher.feeds.quiet(FIRST), fetcher.feeds.read_until(FIRST, TRIM_HORIZON)) == (0.0, None)
        begin = Offset({FIRST: TRIM_HORIZON})
        while await query.poll(begin) == begin:
            pass
        told = fetcher.subscription(FIRST)
        assert told is not None
        assert (told.opened, told.records) == (1, 1)
        assert fetcher.subscription(SECOND) is None
        assert fetcher.feeds.millis_behind(FIRST) == 0
        await asyncio.sleep(60)
        assert (buffer := fetcher.feeds.found(FIRST)) is not None
        assert fetcher.feeds.read_until(FIRST, buffer.end) is not None
        assert fetcher.feeds.read_until(FIRST, TRIM_HORIZON) is None
        assert fetcher.feeds.quiet(FIRST) > 30
        assert fetcher.feeds.quiet(SECOND) == 0.0
        assert fetcher.feeds.millis_behind(SECOND) is None


@scenario
async def test_the_time_that_a_task_takes_for_what_it_got_does_not_count_as_waiting() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Query(stream) as query:
        begin = horizon(stream)
        while await query.poll(begin) == begin:
            pass
        reader = query.fetcher.read(ShardRange(FIRST, TRIM_HORIZON, Position.after(10**9), 10**9))
        await anext(reader)
        await asyncio.sleep(400)
        going_on = asyncio.create_task(anext(reader))  # type: ignore[arg-type]
        await asyncio.sleep(300)
        assert not going_on.done(), "ten minutes without progress have not passed"
        await asyncio.sleep(310)
        assert isinstance(going_on.exception(), DataLossError)
