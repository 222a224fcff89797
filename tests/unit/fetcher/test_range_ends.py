"""When a range is over, in virtual time: at the record that it was planned up to, whatever a server answers; where none had come,
once enough answers bring none. It never waits for ever, and never has fewer rows in silence.
"""

import asyncio
from typing import Any

import pytest

from kinesis_efo.errors import DataLossError, RetriesExhaustedError
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import ModelStream
from tests.support.modelled import Query, expected, horizon
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock

KEY = ShardKey("orders", "shardId-000000000000")


def polled(stream: ModelStream, **wrong: Any) -> PolledClient:
    client = PolledClient(stream, LoopClock())
    for name, value in wrong.items():
        setattr(client, name, value)
    return client


async def planned() -> tuple[ModelStream, MemoryLeaseStore, ShardRange]:
    """A stream of three records, a table, and the range of a micro-batch that a run planned and did not finish."""
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, 30, 30, 30)
    async with Query(stream, store, polled=polled(stream)) as query:
        begin = end = horizon(stream)
        while begin == end:
            end = await query.poll(begin)
    [wanted] = begin.ranges_to(end)
    return stream, store, wanted


async def timed(reading: Any) -> tuple[Any, float]:
    began = LoopClock().monotonic()
    return await reading, LoopClock().monotonic() - began


# -- a range that ends at a record


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 5_000])
async def test_missing_last_record_is_awaited_and_then_lost(behind: int) -> None:
    stream, store, wanted = await planned()
    last = stream[0].records[-1][0]
    client = polled(stream, gone={last}, lag=[behind])
    async with Query(stream, store, polled=client) as query:
        began = LoopClock().monotonic()
        with pytest.raises(DataLossError) as lost:
            await query.read(wanted)
        assert 600 <= LoopClock().monotonic() - began < 620
        message = str(lost.value)
        assert f"shard {KEY} was read up to AFTER:{stream[0].records[1][0]}, and record {last}" in message
        assert f"had no records; the last one reported a lag of {behind} ms" in message
        assert "failOnDataLoss" in message
        with pytest.raises(DataLossError):
            await query.poll(Offset({KEY: wanted.through}))  # it ends the query: another attempt would wait as long
    async with Query(stream, store, polled=client, fail_on_data_loss=False) as query:
        assert await query.read(wanted) == [(KEY.shard, number) for number, _ in stream[0].records[:2]]


async def test_record_that_is_always_skipped_is_a_loss() -> None:
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, *[30] * 5)
    gone = stream[0].records[1][0]
    wanted = ShardRange(KEY, TRIM_HORIZON, Position.after(gone), gone)
    del stream[0].records[1]
    async with Query(stream, store) as query:
        with pytest.raises(DataLossError, match=f"record {gone}, .* later records arrived without it at each attempt"):
            await asyncio.wait_for(query.read(wanted), 700)
    async with Query(stream, store, fail_on_data_loss=False) as query:
        rows = await asyncio.wait_for(query.read(wanted), 700)
        assert set(rows) <= set(expected(stream, wanted)), "and nothing that lies behind the range"


# -- a range that ends where nothing had come


async def test_range_without_records_ends_at_its_position() -> None:
    stream = ModelStream(shards=1)
    empty = ShardRange(KEY, TRIM_HORIZON, Position.after(1005))
    async with Query(stream) as query:
        assert await timed(query.read(empty)) == ([], pytest.approx(5.0, abs=0.1)), (
            "with the first event of an idle shard"
        )


@pytest.mark.slow
async def test_no_range_waits_for_ever() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    last = stream[0].records[-1][0]
    client = polled(stream, lag=[5_000], stuck=True)
    empty = ShardRange(KEY, Position.after(last), Position.after(last + 5))
    async with Query(stream, polled=client) as query:
        with pytest.raises(RetriesExhaustedError) as given_up:
            await asyncio.wait_for(query.read(empty), 700)
    message = str(given_up.value)
    assert f"shard {KEY} was read up to {empty.after} and does not get to {empty.through}" in message
    assert "the last one reported a lag of 5000 ms" in message


# -- which numbers a buffer covers


async def test_accepted_loss_of_a_trimmed_record_is_awaited_briefly() -> None:
    stream, store, wanted = await planned()
    client = polled(stream, gone={number for number, _ in stream[0].records})
    async with Query(stream, store, polled=client, fail_on_data_loss=False) as query:

        async def is_past(shard: str, number: int) -> bool:
            return (shard, number) == (KEY.shard, wanted.last)

        query.streams["orders"].is_past = is_past  # type: ignore[method-assign]
        began = LoopClock().monotonic()
        assert await query.read(wanted) == []
        assert LoopClock().monotonic() - began < 20


async def test_skipped_record_loses_no_other_record() -> None:
    stream, store, wanted = await planned()
    stream.put(0, 30)  # behind the range: the answer that lacks the last record goes on
    numbers = [number for number, _ in stream[0].records]
    client = polled(stream, gone={numbers[2]})
    async with Query(stream, store, polled=client, fail_on_data_loss=False) as query:
        rows = await query.read(wanted)
    assert [number for _, number in rows] == numbers[:2]


# -- a task that is slow, or hangs


async def test_processing_time_of_a_task_is_no_waiting_time() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Query(stream) as query:
        begin = horizon(stream)
        while await query.poll(begin) == begin:
            pass
        reader = query.run.serving.of("query").read(ShardRange(KEY, TRIM_HORIZON, Position.after(10**9), 10**9))
        await anext(reader)
        await asyncio.sleep(400)
        going_on = asyncio.create_task(anext(reader))  # type: ignore[arg-type]
        await asyncio.sleep(300)
        assert not going_on.done(), "ten minutes without progress have not passed"
        await asyncio.sleep(310)
        assert isinstance(going_on.exception(), DataLossError)


@pytest.mark.slow
async def test_fetcher_frozen_beyond_the_patience_of_ranges_continues() -> None:
    stream = ModelStream(shards=1, event_records=(1,))
    stream.put(0, *[3000] * 40)
    whole = ShardRange(KEY, TRIM_HORIZON, Position.after(stream[0].records[-1][0]))
    # A little more than an event of one record occupies.
    async with Query(stream, buffer_bytes=20_000) as query:
        query.fetcher.read_chunk_bytes = 1
        await query.poll(horizon(stream))
        await asyncio.sleep(5)
        assert all(query.fetcher.budget.seconds_waited(feed.key) for feed in query.fetcher), "it is full"
        reader = query.run.serving.of("query").read(whole)
        assert await anext(reader)
        second = asyncio.create_task(query.read(whole))
        await asyncio.sleep(3000)
        assert await second == expected(stream, whole)
        assert len([chunk async for chunk in reader]) >= 39
