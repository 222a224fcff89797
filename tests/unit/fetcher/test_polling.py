"""A whole fetcher in virtual time that polls, and queries that move between GetRecords and SubscribeToShard."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import DataLossError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import ModelStream
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock, run
from tests.unit.fetcher.test_fetcher import Query, everything, expected, horizon, scenario, until_read

FIRST = ShardKey("orders", "shardId-000000000000")


def polled(stream: ModelStream, **options: Any) -> Query:
    return Query(stream, polled=PolledClient(stream, LoopClock()), **options)


@scenario
async def test_polling_reads_what_subscriptions_would_across_a_split_and_a_merge() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 5)
    stream.split(0)
    stream.put(1, 30, 30)
    stream.put(2, 30, 30)
    stream.merge(1, 2)
    stream.put(3, 30)
    async with polled(stream) as query:
        await until_read(query, horizon(stream), 10)
        assert [shard[-1] for shard, _ in query.rows][:5] == list("00000")
        assert query.rows[-1][0][-1] == "3"
        assert not stream.subscribed, "and no consumer is used"


@scenario
async def test_the_position_of_an_idle_shard_stays_where_its_last_record_is() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    async with polled(stream) as query:
        offset = await until_read(query, horizon(stream), 1)
        for _ in range(200):
            assert await query.poll(offset) == offset
        assert offset[FIRST] == Position.after(stream[0].records[-1][0])
        assert offset[ShardKey("orders", "shardId-000000000001")] == TRIM_HORIZON


@scenario
async def test_a_range_that_ends_behind_the_last_record_is_read_all_the_same() -> None:
    """A subscription told how far it had come, and the query was stopped before it read that far."""
    stream = ModelStream(shards=1)
    stream.put(0, 30, 30)
    last = stream[0].records[-1][0]
    store = MemoryLeaseStore()
    planned = ShardRange(FIRST, TRIM_HORIZON, Position.after(last + 5))
    async with polled(stream, store=store) as query:
        assert await asyncio.wait_for(query.read(planned), 30) == expected(stream, planned)
    empty = ShardRange(FIRST, Position.after(last), Position.after(last + 5))
    async with polled(stream, store=store) as query:
        assert await asyncio.wait_for(query.read(empty), 30) == []
        offset = Offset({FIRST: empty.through})
        stream.put(0, 30)
        assert await until_read(query, offset, 1)
        assert query.rows == [(FIRST.shard, stream[0].records[-1][0])]


@scenario
async def test_such_a_range_waits_for_records_that_are_still_to_be_fetched() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[1000] * 50)
    whole = ShardRange(FIRST, TRIM_HORIZON, Position.after(stream[0].records[-1][0] + 5))
    client = PolledClient(stream, LoopClock())
    failures = iter(range(5))

    def fail_sometimes(_: str) -> None:
        if next(failures, None) is not None:
            raise ConnectionResetError

    client.faults = fail_sometimes
    async with Query(stream, polled=client, buffer_bytes=4000) as query:
        assert await query.read(whole) == expected(stream, whole)


@scenario
async def test_tips_are_where_the_last_records_are() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    stream.split(0)
    stream.put(2, *[30] * 3)
    async with polled(stream) as query:
        while (tips := await query.planner.tips(horizon(stream), 0.2)) is None:
            pass
        assert [str(tips[key]) for key in sorted(tips)] == [
            str(SHARD_END),
            str(TRIM_HORIZON),
            str(Position.after(stream[2].records[-1][0])),
            str(TRIM_HORIZON),
        ]


@scenario
async def test_a_shard_that_is_gone_is_data_loss() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    store = MemoryLeaseStore()
    async with polled(stream, store=store) as query:
        offset = await until_read(query, horizon(stream), 1)
    del stream.shards_by_id[FIRST.shard]
    async with polled(stream, store=store) as query:
        with pytest.raises(DataLossError, match=f"{FIRST.shard} does not exist any more"):
            await until_read(query, offset, 2)


shapes = st.fixed_dictionaries(
    {
        "records": st.lists(st.lists(st.integers(0, 3000), max_size=15), min_size=1, max_size=3),
        "event_records": st.lists(st.integers(1, 4), min_size=1, max_size=4),
        "buffer_bytes": st.integers(600, 30_000),
        "max_records": st.integers(1, 20),
        "modes": st.lists(st.booleans(), min_size=2, max_size=6),
        "seed": st.integers(0, 2**32),
    }
)


@pytest.mark.slow
@given(shapes)
def test_a_query_moves_between_polling_and_subscribing_without_loss_or_repetition(shape: dict[str, Any]) -> None:
    """Each run goes on from the offset of the one before, reading first the micro-batch it had planned and not done."""

    async def main() -> None:
        random = Random(shape["seed"])
        stream = ModelStream(len(shape["records"]), shape["event_records"])
        for number, sizes in enumerate(shape["records"]):
            stream.put(number, *sizes)
        store, rows = MemoryLeaseStore(), []
        offset = horizon(stream)
        planned: Offset | None = None
        modes = shape["modes"]
        for run_number, polls in enumerate(modes):
            client = PolledClient(stream, LoopClock())
            client.end_with_records = random.random() < 0.5
            client.faults = _flaky(random)
            last_run = run_number == len(modes) - 1
            async with Query(stream, store, shape["buffer_bytes"], polled=client if polls else None) as query:
                steps = 0
                while steps < 4 or (last_run and len(rows) < len(everything(stream))):
                    end = planned or await query.poll(offset, max_records=shape["max_records"])
                    for wanted in offset.ranges_to(end):
                        got = await query.read(wanted)
                        assert got == expected(stream, wanted)
                        rows += got
                    await query.commit(end)
                    offset, planned, steps = end, None, steps + 1
                    await asyncio.sleep(random.choice([0, 0, 7]))
                planned = await query.poll(offset) if random.random() < 0.7 else None
                assert not client.refused, "within the limits of a shard"
            if not last_run:
                _change(stream, random)
        assert sorted(rows) == sorted(everything(stream))

    run(asyncio.wait_for(main(), 50_000))


def _flaky(random: Random) -> Any:
    def fault(_: str) -> None:
        if random.random() < 0.05:
            raise random.choice([ConnectionResetError, TimeoutError])

    return fault


def _change(stream: ModelStream, random: Random) -> None:
    open_shards = [number for number in range(len(stream.shards_by_id)) if stream[number].last is None]
    number = random.choice(open_shards)
    if random.random() < 0.3:
        stream.split(number)
    else:
        stream.put(number, *[random.randrange(2000)] * random.randrange(5))
