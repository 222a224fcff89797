"""What a fetcher answers to its planner about each shard, and which feeds it keeps: call by call, in virtual time."""

from __future__ import annotations

import asyncio

from kinesis_efo.errors import DataLossError, FetcherUnreachableError
from kinesis_efo.fetcher.buffer import CLAIM_SECONDS
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import LoopClock
from tests.unit.fetcher.test_fetcher import Query, expected, horizon, scenario

FIRST, SECOND = (ShardKey("orders", f"shardId-00000000000{number}") for number in range(2))
NO_LIMIT = 1 << 60


def fed(query: Query) -> set[ShardKey]:
    return {feed.key for feed in query.fetcher.feeds}


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
async def test_a_shard_that_the_query_leaves_is_closed_with_the_next_poll() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        await query.poll(horizon(stream))
        assert fed(query) == {FIRST, SECOND}
        await query.poll(Offset({FIRST: TRIM_HORIZON}))
        assert fed(query) == {FIRST}
        await asyncio.sleep(0.1)
        assert [shard for shard, number in stream.open.items() if number] == [FIRST.shard]


@scenario
async def test_a_shard_that_ended_is_closed_once_that_is_committed_and_again_after_another_attempt() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    stream.split(0)
    async with Query(stream) as query:
        begin = horizon(stream)
        end = await query.poll(begin)
        assert end[FIRST] == SHARD_END
        (wanted,) = [each for each in begin.ranges_to(end) if each.key == FIRST]
        await query.planner.poll(end, NO_LIMIT, NO_LIMIT, 0.2)  # before this one is committed
        assert await query.read(wanted) == expected(stream, wanted)
        assert FIRST in fed(query), "another attempt may want it"
        await query.commit(end)
        assert FIRST not in fed(query)
        assert await query.read(wanted) == expected(stream, wanted)
        assert FIRST not in fed(query), "it was read for that attempt alone"
        await asyncio.sleep(0.1)
        assert not stream.open[FIRST.shard]


@scenario
async def test_a_commit_tells_a_last_record_once_for_each_position() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Query(stream) as query:
        end = await query.poll(horizon(stream))
        records = query.fetcher.feeds.commit(end)
        assert {key: record.number for key, record in records.items()} == {FIRST: stream[0].records[0][0]}
        assert query.fetcher.feeds.commit(end) == {}


@scenario
async def test_a_task_that_takes_nothing_for_long_does_not_count_as_reading() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 4)
    async with Query(stream) as query:
        begin = horizon(stream)
        end = await query.poll(begin)
        (wanted,) = begin.ranges_to(end)
        assert not query.fetcher.reading
        reader = query.fetcher.read(wanted)
        assert await anext(reader)
        assert query.fetcher.reading
        await asyncio.sleep(CLAIM_SECONDS + 1)
        assert not query.fetcher.reading
        await reader.aclose()
        other = query.fetcher.read(wanted)
        await anext(other)
        assert query.fetcher.reading, "the one that hung is forgotten"
        await other.aclose()


@scenario
async def test_reads_that_wait_end_when_the_fetcher_stops() -> None:
    stream = ModelStream(shards=1)
    async with Query(stream) as query:
        await query.poll(horizon(stream))
        reading = asyncio.create_task(query.read(ShardRange(FIRST, TRIM_HORIZON, Position.after(10**9))))
        await asyncio.sleep(0.3)
        began = LoopClock().monotonic()
        await query.fetcher.stop()
        ended = await asyncio.gather(reading, return_exceptions=True)
        assert isinstance(ended[0], FetcherUnreachableError)
        assert LoopClock().monotonic() - began < 0.1
        assert not list(query.fetcher.feeds)


@scenario
async def test_the_end_of_a_shard_that_a_listing_tells_is_its_end_although_no_event_says_so() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        offset = horizon(stream)
        for _ in range(3):
            offset = await query.poll(offset)
        await query.poll(offset)
        for events in stream._events.values():  # from now on, they know nothing of what happens to their shard
            events._shard = type(events._shard)(events._shard.shard_id, events._shard.first, events._shard.hashes)
        stream.split(0)
        began = LoopClock().monotonic()
        while offset[FIRST] != SHARD_END:
            offset = await query.poll(offset)
            assert LoopClock().monotonic() - began < 130, (
                "a listing tells it within a minute, and then an event its position"
            )
        assert offset[SECOND] != SHARD_END


@scenario
async def test_a_child_whose_other_parent_is_not_known_makes_the_shards_be_listed_at_once() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        offset = await query.poll(horizon(stream))
        while not all(stream.open.get(key.shard) for key in (FIRST, SECOND)):
            offset = await query.poll(offset)
        shards, hidden = stream.shards, {SECOND.shard}

        async def listed(arn: str) -> list[object]:
            return [shard for shard in await shards(arn) if shard.shard_id not in hidden]

        stream.shards = listed  # type: ignore[method-assign, assignment]
        access = query._streams["orders"]
        await access.refresh()
        before = access.listings
        stream.merge(0, 1)
        await asyncio.sleep(0.1)
        assert access.listings == before + 1


@scenario
async def test_a_range_whose_shard_is_let_go_of_half_way_goes_on_behind_what_was_read() -> None:
    stream = ModelStream(shards=1, event_records=(1,))
    stream.put(0, *[3000] * 6)
    async with Query(stream) as query:
        begin = horizon(stream)
        while (end := await query.poll(begin)) == begin:
            pass
        through = Position.after(end[FIRST].value + 10_000)
        reader = query.fetcher.read(ShardRange(FIRST, TRIM_HORIZON, through))
        read = await anext(reader)
        query.fetcher.feeds.close([FIRST])
        numbers = [number for number, _ in stream[0].records]
        while len(read) < 6:
            read += await anext(reader)
        for number in numbers:
            assert sum(f'"{number}"'.encode() in payload for payload in read) >= 1
        stream.put(0, 3000)
        more = await anext(reader)
        assert len(more) == 1, "each event once"
        assert len(read) == 6
        await reader.aclose()


@scenario
async def test_a_buffer_that_began_at_a_time_promises_no_number_to_who_does_not_begin_there() -> None:
    stream = ModelStream(shards=1)
    async with Query(stream) as query:
        await query.planner.wait_held(10.0)
        start = Position.at_timestamp(1_700_000_900_000)
        buffer = query.fetcher.feeds.buffered(FIRST, start)
        assert buffer is not None
        query.fetcher.expect([ShardRange(FIRST, Position.after(20), Position.after(30))])
        assert query.fetcher.feeds.buffered(FIRST, start) is buffer
        assert not buffer.covers(Position.after(30)), "it may lie before that time"
        reading = asyncio.create_task(query.read(ShardRange(FIRST, start, SHARD_END)))
        await asyncio.sleep(0)
        assert not buffer.covers(Position.after(30))
        query.fetcher.expect([ShardRange(FIRST, start, Position.after(30))])
        assert buffer.covers(Position.after(30)), "somebody reads from that time up to there"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


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
