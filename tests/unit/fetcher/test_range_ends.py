"""When a range is over, in virtual time: at the record that it was planned up to, whatever a server answers; where none had come,
once enough answers bring none. It never waits for ever, and never has fewer rows in silence.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kinesis_efo.errors import DataLossError, RetriesExhaustedError
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import BEGAN_MS, ModelStream
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock
from tests.unit.fetcher.test_fetcher import Query, everything, expected, horizon, scenario, until_read

KEY = ShardKey("orders", "shardId-000000000000")


def polled(stream: ModelStream, **wrong: Any) -> PolledClient:
    client = PolledClient(stream, LoopClock())
    for name, value in wrong.items():
        setattr(client, name, value)
    return client


async def planned_by(stream: ModelStream, store: MemoryLeaseStore, *, polls: bool) -> list[ShardRange]:
    """The ranges of a micro-batch that a run planned and did not finish."""
    async with Query(stream, store, polled=polled(stream) if polls else None) as query:
        begin = end = horizon(stream)
        while begin == end:
            end = await query.poll(begin)
        return begin.ranges_to(end)


def at_time(number: int) -> Position:
    """The time at which a number was given out."""
    return Position.at_timestamp(BEGAN_MS + number)


async def timed(reading: Any) -> tuple[Any, float]:
    began = LoopClock().monotonic()
    return await reading, LoopClock().monotonic() - began


# -- a range that ends at a record


@pytest.mark.parametrize("reads_polling", [True, False])
@pytest.mark.parametrize("planned_polling", [True, False])
def test_a_planned_micro_batch_has_all_its_rows_however_often_it_is_said_that_nothing_is_there(
    planned_polling: bool, reads_polling: bool
) -> None:
    @scenario
    async def test() -> None:
        stream, store = ModelStream(shards=1), MemoryLeaseStore()
        stream.put(0, *[30] * 20)
        [wanted] = await planned_by(stream, store, polls=planned_polling)
        stream.hidden = 0 if reads_polling else 7
        client = polled(stream, hidden=7) if reads_polling else None
        async with Query(stream, store, polled=client) as query:
            rows = await asyncio.wait_for(query.read(wanted), 300)
        assert rows == expected(stream, wanted) != []

    test()


@scenario
async def test_such_a_range_is_over_at_once_where_no_position_of_the_server_gets_to_its_end() -> None:
    """Planned from a subscription, whose positions lie behind its records, and read again with GetRecords, which has no others."""
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, 30, 30)
    last = stream[0].records[-1][0]
    wanted = ShardRange(KEY, TRIM_HORIZON, Position.after(last + 5), last)
    async with Query(stream, store, polled=polled(stream, lag=[5_000])) as query:
        rows, seconds = await timed(query.read(wanted))
        assert rows == expected(stream, wanted)
        assert seconds < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 5_000])
def test_a_record_that_is_not_there_any_more_is_waited_for_and_then_a_loss_with_its_name(behind: int) -> None:
    @scenario
    async def test() -> None:
        stream, store = ModelStream(shards=1), MemoryLeaseStore()
        stream.put(0, 30, 30, 30)
        [wanted] = await planned_by(stream, store, polls=True)
        last = stream[0].records[-1][0]
        client = polled(stream, gone={last}, lag=[behind])
        async with Query(stream, store, polled=client) as query:
            began = LoopClock().monotonic()
            with pytest.raises(DataLossError) as lost:
                await query.read(wanted)
            assert 600 <= LoopClock().monotonic() - began < 620
            message = str(lost.value)
            assert f"shard {KEY} was read up to AFTER:{stream[0].records[1][0]}, and record {last}" in message
            assert f"brought no record; the last said that reading is {behind} ms behind" in message
            assert "failOnDataLoss" in message
            with pytest.raises(DataLossError):
                await query.poll(Offset({KEY: wanted.through}))  # it ends the query: another attempt would wait as long
        async with Query(stream, store, polled=client, fail_on_data_loss=False) as query:
            assert await query.read(wanted) == [(KEY.shard, number) for number, _ in stream[0].records[:2]]

    test()


@scenario
async def test_a_record_that_is_passed_over_is_asked_for_again() -> None:
    """A subscription whose first event leaves records out; the next one does not."""
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, *[30] * 5)
    [wanted] = await planned_by(stream, store, polls=False)
    wanted = replace_last(wanted, stream[0].records[1][0])
    kept = stream[0].records[:2]
    stream.put(0, 30)
    del stream[0].records[:2]
    async with Query(stream, store) as query:
        reading = asyncio.create_task(query.read(wanted))
        await asyncio.sleep(20)
        assert not reading.done(), "what lies behind the record does not end the range"
        stream[0].records[:0] = kept
        rows = await asyncio.wait_for(reading, 30)
        assert [number for _, number in rows] == [number for number, _ in kept]


def replace_last(wanted: ShardRange, last: int) -> ShardRange:
    return wanted._replace(through=Position.after(last), last=last)


@scenario
async def test_a_record_that_is_passed_over_for_ever_is_a_loss() -> None:
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, *[30] * 5)
    gone = stream[0].records[1][0]
    wanted = ShardRange(KEY, TRIM_HORIZON, Position.after(gone), gone)
    del stream[0].records[1]
    async with Query(stream, store) as query:
        with pytest.raises(DataLossError, match=f"record {gone}, .* later records came without it, each time"):
            await asyncio.wait_for(query.read(wanted), 700)
    async with Query(stream, store, fail_on_data_loss=False) as query:
        rows = await asyncio.wait_for(query.read(wanted), 700)
        assert set(rows) <= set(expected(stream, wanted)), "and nothing that lies behind the range"


# -- a range that ends where nothing had come


@scenario
async def test_where_nothing_had_come_a_range_is_over_at_its_position() -> None:
    stream = ModelStream(shards=1)
    empty = ShardRange(KEY, TRIM_HORIZON, Position.after(1005))
    async with Query(stream) as query:
        assert await timed(query.read(empty)) == ([], 5.0), "with the first event of an idle shard"


@pytest.mark.parametrize("lag", [[0], [5_000], [5_000, 6_000, 7_000], [0, 5_000]])
def test_where_nothing_had_come_a_range_ends_after_three_answers_over_two_seconds(lag: list[int]) -> None:
    @scenario
    async def test() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, 30)
        last = stream[0].records[-1][0]
        client = polled(stream, lag=lag)
        empty = ShardRange(KEY, Position.after(last), Position.after(last + 5))
        async with Query(stream, polled=client) as query:
            rows, seconds = await timed(asyncio.wait_for(query.read(empty), 60))
            assert rows == []
            assert 2.0 <= seconds <= 5.0

    test()


@scenario
async def test_answers_from_before_a_range_was_asked_for_do_not_end_it() -> None:
    """The shard was quiet until its tip was asked for; what came between that and the last answer belongs to the range."""
    stream = ModelStream(shards=1)
    client = polled(stream)
    async with Query(stream, polled=client) as query:
        await query.poll(horizon(stream))
        await asyncio.sleep(60.3)
        stream.put(0, 30)
        tip = ShardRange(KEY, TRIM_HORIZON, Position.after(stream[0].records[-1][0] + 5))
        assert await query.read(tip) == expected(stream, tip) != []


@scenario
async def test_a_lag_that_shrinks_is_progress() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    last = stream[0].records[-1][0]
    client = polled(stream, lag=[*range(100_000, 0, -1_000)])
    empty = ShardRange(KEY, Position.after(last), Position.after(last + 5))
    async with Query(stream, polled=client) as query:
        _, seconds = await timed(query.read(empty))
        assert seconds >= 100 * 0.2, "the reader goes through a time without records"


@pytest.mark.slow
@scenario
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
    assert "the last said that reading is 5000 ms behind" in message


@pytest.mark.parametrize("lag", [0, 5_000])
def test_an_idle_micro_batch_is_over_although_positions_are_lower_than_before(lag: int) -> None:
    """Some servers go on behind the time, some at the number of the last record."""

    @scenario
    async def test() -> None:
        stream, store = ModelStream(shards=1), MemoryLeaseStore()
        stream.put(0, 30, 30)
        async with Query(stream, store) as query:
            offset = await until_read(query, horizon(stream), 2)
            await asyncio.sleep(12)
            idle = await query.poll(offset)
            assert idle[KEY].value > offset[KEY].value
        [empty] = offset.ranges_to(idle)
        stream.gives_last_number, stream.lag = True, lag
        async with Query(stream, store) as query:
            rows, seconds = await timed(asyncio.wait_for(query.read(empty), 600))
            assert (rows, seconds) == ([], 10.0), "after two events"
            stream.put(0, 30)
            await until_read(query, idle, 1)
            assert query.rows == everything(stream)[-1:], "and the query goes on"

    test()


@scenario
async def test_ranges_without_records_are_waited_for_at_the_same_time() -> None:
    stream = ModelStream(shards=6)
    client = polled(stream)
    empty = [ShardRange(key, at, Position.after(5_000)) for key, at in horizon(stream).items()]
    async with Query(stream, polled=client) as query:
        await query.poll(horizon(stream))
        query.fetcher.feeds.close(each.key for each in empty)
        asked_at = query.fetcher.expect(empty)

        async def read(wanted: ShardRange) -> list[list[bytes]]:
            return [each async for each in query.fetcher.read(wanted, asked_at)]

        began = LoopClock().monotonic()
        assert [await read(wanted) for wanted in empty] == [[]] * 6
        assert LoopClock().monotonic() - began < 6.0


# -- which numbers a buffer covers


@scenario
async def test_a_buffer_that_began_at_a_time_leaves_nothing_out_for_a_reader_from_before_it() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 6)
    numbers = [number for number, _ in stream[0].records]
    later = Offset({KEY: at_time(numbers[4])})
    before = ShardRange(KEY, Position.after(numbers[0]), Position.after(numbers[5]))
    async with Query(stream) as query:
        while (end := await query.poll(later)) == later:
            pass
        assert end[KEY] == Position.after(numbers[5])
        assert await query.read(before) == expected(stream, before), "with all that lie in between"
        [own] = later.ranges_to(end)
        assert await query.read(own) == [(KEY.shard, number) for number in numbers[4:]]


@scenario
async def test_two_readers_far_apart_share_the_buffer_of_the_one_behind() -> None:
    """A micro-batch from a time on is read again, while the query already asks for what comes after it."""
    stream = ModelStream(shards=1, event_records=[1])
    stream.put(0, *[30] * 40)
    numbers = [number for number, _ in stream[0].records]
    whole = ShardRange(KEY, at_time(numbers[0]), Position.after(numbers[30]), numbers[30])
    rest = ShardRange(KEY, Position.after(numbers[20]), Position.after(numbers[30]), numbers[30])
    async with Query(stream) as query:
        both = asyncio.gather(query.read(whole), query.read(rest), query.read(whole))
        first, second, third = await asyncio.wait_for(both, 60)
        assert first == third == [(KEY.shard, number) for number in numbers[:31]]
        assert second == expected(stream, rest)
        assert len(stream.subscribed) <= 2
        await asyncio.wait_for(query.poll(Offset({KEY: whole.through})), 60)
        assert len(stream.subscribed) <= 2


@pytest.mark.parametrize("last_is_known", [True, False])
def test_a_number_of_which_nobody_knows_whether_it_lies_before_the_buffer_is_read_from_there(
    last_is_known: bool,
) -> None:
    """Where nothing comes from a time on, it shows by no event what lies before it."""

    @scenario
    async def test() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, 30, 30)
        numbers = [number for number, _ in stream[0].records]
        last = numbers[1] if last_is_known else None
        rest = ShardRange(KEY, Position.after(numbers[0]), Position.after(numbers[1]), last)
        client = polled(stream)
        async with Query(stream, polled=client) as query:
            await query.poll(Offset({KEY: at_time(numbers[1] + 5)}))
            buffer = query.fetcher.feeds.buffered(KEY, at_time(numbers[1] + 5))
            assert buffer is not None
            assert buffer.end == at_time(numbers[1] + 5), "GetRecords gives no position where there are no records"
            assert await asyncio.wait_for(query.read(rest), 60) == expected(stream, rest) != []

    test()


@scenario
async def test_a_record_that_retention_has_taken_is_not_waited_for_as_long_if_the_query_goes_on_without_it() -> None:
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, 30, 30, 30)
    [wanted] = await planned_by(stream, store, polls=True)
    client = polled(stream, gone={number for number, _ in stream[0].records})
    async with Query(stream, store, polled=client, fail_on_data_loss=False) as query:

        async def is_past(shard: str, number: int) -> bool:
            return (shard, number) == (KEY.shard, wanted.last)

        query._streams["orders"].is_past = is_past  # type: ignore[method-assign]
        began = LoopClock().monotonic()
        assert await query.read(wanted) == []
        assert LoopClock().monotonic() - began < 20


@scenario
async def test_what_comes_beside_a_record_that_is_passed_over_is_not_lost_with_it() -> None:
    stream, store = ModelStream(shards=1), MemoryLeaseStore()
    stream.put(0, 30, 30, 30)
    [wanted] = await planned_by(stream, store, polls=True)
    stream.put(0, 30)  # behind the range: the answer that lacks the last record goes on
    numbers = [number for number, _ in stream[0].records]
    client = polled(stream, gone={numbers[2]})
    async with Query(stream, store, polled=client, fail_on_data_loss=False) as query:
        rows = await query.read(wanted)
    assert [number for _, number in rows] == numbers[:2]
