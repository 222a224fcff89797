"""Retention expires records while a query runs, or between two runs. In virtual time: either every record is read, or an error names the gap."""

import asyncio
import logging
import re

import pytest

from kinesis_efo.decisions.losses import NO_FACTS
from kinesis_efo.errors import DataLossError, KinesisEfoError
from kinesis_efo.fetcher.work import RowKey
from kinesis_efo.options.settings import Start
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardKey
from kinesis_efo.run.losses import Losses
from tests.emulator.loss_oracle import single
from tests.emulator.memory_world import STREAM, MemoryWorld
from tests.emulator.query import NO_LIMIT, Query
from tests.emulator.world import Steady
from tests.support.lease_store import MemoryLeaseStore
from tests.support.planned import finish

HOUR = 3600.0


def world(**more: object) -> MemoryWorld:
    return MemoryWorld(Steady(), **more)  # type: ignore[arg-type]


def fill(w: MemoryWorld, hours: int) -> None:
    """Put a record every minute for some hours."""
    for minute in range(60 * hours):
        w.put(f"key{minute % 7}", 50_000)
        later(w, 60.0)


def later(w: MemoryWorld, seconds: float) -> None:
    """Let time pass in which nobody does anything."""
    w.clock.jump += seconds
    w.application.clock.jump += seconds


async def produce(w: MemoryWorld, every: float) -> None:
    for number in range(10_000):
        w.put(f"key{number % 7}", 50_000)
        await asyncio.sleep(every)


async def read_on(query: Query, offset: Offset, batches: int, pause: float = 0.0) -> Offset:
    """Read some micro-batches, with a pause in seconds after each."""
    for _ in range(batches):
        offset = await query.batch(offset)
        await asyncio.sleep(pause)
    return offset


def rows(w: MemoryWorld) -> int:
    return len(w.application.rows)


# Shows start at a moving horizon.
async def test_slow_sink_at_the_horizon_is_an_error() -> None:
    w = world(max_records=8, buffer_bytes=1 << 20, settings={"max_event_records": 1})
    fill(w, 30)
    writing = asyncio.create_task(produce(w, 60.0))
    started = asyncio.get_running_loop().time()
    async with Query(w.application) as query:
        assert await query.planner.wait_held(60.0)  # as each query does before its first micro-batch
        offset = await query.begin()
        with pytest.raises(DataLossError, match="acceptDataLoss"):
            await read_on(query, offset, 120, 600.0)
    writing.cancel()
    assert rows(w) >= 8, "the first micro-batch was read"
    assert asyncio.get_running_loop().time() - started < 4 * HOUR


# Shows start at a moving horizon.
async def test_nine_minute_stall_at_the_horizon_is_an_error() -> None:
    w = world(max_records=8, buffer_bytes=1 << 20, settings={"max_event_records": 1})
    fill(w, 25)
    async with Query(w.application) as query:
        offset = await query.batch(await query.begin())
        finish(query.planner, offset)
        await query.fetcher.close([RowKey(None, key) for key in offset])
        later(w, 540.0)
        with pytest.raises(DataLossError):
            await read_on(query, offset, 20)


# Shows start at a moving horizon.
@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("shards", [1, 20])
async def test_start_at_the_horizon_of_full_shards_succeeds(
    shards: int, polls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    w = world(shards=shards, buffer_bytes=64 << 20)
    w.application.polls = polls
    fill(w, 30)
    with caplog.at_level(logging.WARNING):
        async with Query(w.application) as query:
            await read_on(query, await query.begin(), 100)
    assert rows(w) >= 24 * 60 - 1
    assert not [message for message in caplog.messages if "are gone" in message]


async def split_while(w: MemoryWorld, offset: Offset, query: Query) -> Offset:
    """Read a shard to its end, after it was split. Returns the offset that names its children."""
    w.put_some(40)
    w.split(0)
    w.put_some(80)
    while not any(position.is_end for position in offset.values()):
        offset = await query.batch(offset)
    return offset


# Shows beginning of a child trimmed, invariant 14.
async def test_children_that_expire_during_their_query_are_an_error() -> None:
    w = world()
    async with Query(w.application) as query:
        offset = await split_while(w, await query.begin(), query)
        assert list(offset.values()).count(TRIM_HORIZON) == 2
        later(w, 26 * HOUR)  # the sink is down
        w.put_some(10)
        with pytest.raises(DataLossError, match="has not been read yet"):
            await read_on(query, offset, 20)
    assert rows(w) == 40


# Once lost: the query failed although it had these records, and its restart could not read them any more.
async def test_buffered_shard_that_is_trimmed_is_read_to_its_end() -> None:
    w = world(max_records=10, settings={"max_event_records": 5})
    async with Query(w.application) as query:
        offset = await query.begin()
        w.put_some(40)
        w.split(0)
        offset = await query.batch(offset)
        assert not any(position.is_end for position in offset.values())
        later(w, 26 * HOUR)  # the sink is down, and meanwhile the shard is trimmed
        w.put_some(20)
        await query.run.streams.refresh(["orders"])
        with pytest.raises(DataLossError, match="has not been read yet") as error:
            await read_on(query, offset, 20)
    assert rows(w) == 40
    assert "does not exist any more" not in str(error.value)


async def test_start_from_leases_skips_parents_of_begun_children(caplog: pytest.LogCaptureFixture) -> None:
    w = world(shards=7)
    async with Query(w.application) as query:
        offset = await query.begin()
        w.put_some(140)
        for shard in range(0, 14, 2):
            w.split(shard)
        w.put_some(280)
        ended = set[ShardKey]()
        while len(ended) < 7 or TRIM_HORIZON in offset.values():
            offset = await query.batch(offset)
            ended.update(shard for shard, at in offset.items() if at == SHARD_END)
        finish(query.planner, offset)
    for row in w.application.table.items.values():
        if row.get("checkpoint") == {"S": "SHARD_END"}:
            row["checkpoint"] = {"S": "TRIM_HORIZON"}  # as a crash leaves it
    w.application.offsets, w.application.start = [], Start(from_leases=True)
    read = rows(w)
    w.put_some(20)
    async with Query(w.application) as query:
        offset = await query.begin()
        assert [at.is_end for at in offset.values()].count(True) == 7
        await read_on(query, offset, 10)
    assert rows(w) == read + 20
    (line,) = [message for message in caplog.messages if "count as read to their end" in message]
    assert line.startswith("stream orders: ")
    assert line.count("(TRIM_HORIZON; ") == 5
    assert line.endswith(", and 2 more")


async def test_one_error_names_all_shards_that_lost_records() -> None:
    w = world(shards=3)
    async with Query(w.application) as query:
        w.put_some(60)
        offset = await read_on(query, await query.begin(), 10)
    w.put_some(60)
    later(w, 26 * HOUR)
    async with Query(w.application) as query:
        assert await query.planner.wait_held(10.0)
        with pytest.raises(DataLossError) as caught:
            await read_on(query, offset, 10)
    assert [*caught.value.lost.values()] == [{key.shard: str(at) for key, at in offset.items()}]
    assert len(caught.value.causes) == 3


async def test_positions_are_checked_once_rows_and_shards_are_known() -> None:
    w = world(shards=2)
    async with Query(w.application) as query:
        w.put_some(20)
        offset = await read_on(query, await query.begin(), 10)
        w.put_some(20)
        later(w, 26 * HOUR)
        w.put_some(20)
        await query.run.streams.refresh(query.run.streams.streams)
        losses, other = (Losses(query.run.streams, lambda *_: NO_FACTS, lambda *_: False) for _ in range(2))
        await losses.check(offset, rows=False)
        with pytest.raises(DataLossError):
            await losses.check(offset, rows=True)
        # A shard may enter later, at a position that has expired.
        assert await other.check({}, rows=True)
        with pytest.raises(DataLossError):
            await other.check(dict([*offset.items()][:1]), rows=True)


async def test_accepted_losses_of_one_check_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    w = world(shards=8)
    w.application.fail_on_data_loss = False
    async with Query(w.application) as query:
        w.put_some(160)
        offset = await read_on(query, await query.begin(), 10)
    w.put_some(160)
    later(w, 26 * HOUR)
    w.put_some(160)
    async with Query(w.application) as query:
        assert await query.planner.wait_held(10.0)
        await read_on(query, offset, 10)
    assert rows(w) == 320
    (line,) = [message for message in caplog.messages if "are gone" in message]
    assert line.startswith("8 losses in stream 'orders': ")
    assert {re.findall(r"shardId-\d{12}", text)[0] for text in single(line)} == {key.shard for key in offset}


async def test_repeated_micro_batch_logs_losses_before_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    w = world(shards=8)
    w.application.fail_on_data_loss = False
    async with Query(w.application) as query:
        w.put_some(160)
        offset = await query.begin()
        await query.poll(offset)
        await asyncio.sleep(10)
        offset = await query.batch(offset)
    assert rows(w) == 160
    start, end = w.application.offsets[-1]
    w.application.rows.clear()
    later(w, 26 * HOUR)
    w.put_some(160)
    async with Query(w.application) as query:
        assert await query.planner.wait_held(10.0)
        await query.planner.check_replay(start, start.ranges_to(end))
        await query.run_batch(start, end, again=True)
        reported = [text for text in caplog.messages if "are gone" in text or "has not come again" in text]
        await read_on(query, offset, 10)
    assert rows(w) == 160
    check, ranges = reported
    assert len(single(check)) == len(single(ranges)) == len(start.ranges_to(end)) == 8
    assert "has not come again" in ranges


@pytest.mark.parametrize("hours", [1.0, 26.0])
async def test_idle_polled_child_without_row_fails_after_retention(hours: float) -> None:
    w = world(shards=2)
    w.application.polls = True
    async with Query(w.application) as query:
        offset = await query.begin()
        w.put_some(40)
        w.merge(0)
        offset = await read_on(query, offset, 10)
        finish(query.planner, offset)
    assert list(offset.values()) == [TRIM_HORIZON], "the parents have left the offset"
    w.application.table = MemoryLeaseStore()
    w.application.offsets[-1] = (offset, offset)
    read = rows(w)
    w.put_some(40)
    later(w, hours * HOUR)
    w.put_some(40)
    async with Query(w.application) as query:
        if hours == 26.0:
            with pytest.raises(DataLossError):
                await read_on(query, offset, 20)
            assert rows(w) == read
        else:
            await read_on(query, offset, 40)
            assert rows(w) == read + 80


@pytest.mark.parametrize("polls", [False, True])
async def test_start_at_the_horizon_of_200_full_shards_completes(polls: bool, caplog: pytest.LogCaptureFixture) -> None:
    w = world(shards=200, buffer_bytes=8 << 20)
    w.application.polls = polls
    shards, keys = w.kinesis.state.streams[STREAM], [f"k{number}" for number in range(2_000)]
    by_shard = {shards.shard_for(key, None).id: key for key in keys}
    for _ in range(10):
        for key in by_shard.values():
            w.put(key, 20_000)
        later(w, 3 * HOUR)
    with caplog.at_level(logging.WARNING):
        async with Query(w.application) as query:
            offset = await query.begin()
            later(w, 50.0)
            while rows(w) < 200 * 7:
                offset = await query.batch(offset)
    assert len(by_shard) == 200
    assert not [message for message in caplog.messages if "are gone" in message]


async def test_shortened_retention_is_an_error() -> None:
    w = world(max_records=8, buffer_bytes=1 << 20, settings={"max_event_records": 1})
    w.kinesis.call("IncreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=72)
    fill(w, 30)
    async with Query(w.application) as query:
        offset = await read_on(query, await query.begin(), 3)
        w.kinesis.call("DecreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=24)
        with pytest.raises(DataLossError):
            await read_on(query, offset, 400)


async def test_scans_of_the_first_micro_batch_differ_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    w = world()
    for number in range(120):
        w.put(f"key{number % 7}")
        later(w, 1.0)
    later(w, 24 * HOUR - 60)
    async with Query(w.application) as query:
        begin = end = await query.begin()
        while end == begin:
            end = await query.poll(begin)
        query.planner.plan(end)
        (wanted,) = begin.ranges_to(end)
        before = await query.read(wanted)
        later(w, 20.0)
        for feed in query.fetcher:
            feed.buffer.drop_unread()
        with caplog.at_level(logging.WARNING):
            after = await query.read(wanted)
    assert 0 < len(after) < len(before)
    assert "Reading began at the trim horizon, which moved" in caplog.text


async def test_added_stream_is_opened_once_its_start_is_committed() -> None:
    async with Query(world().application) as query:
        begin, added = await query.begin(), ShardKey("events", "shardId-000000000000")
        end = begin.moved_to({**begin, added: TRIM_HORIZON}, {}, Mark("query", 1))
        (rows,) = query.run.table.queries.values()
        progress = query.planner.progress
        progress.begin(begin)
        progress.plan(end)
        # Without the horizon of the stream's start, each shard older than the retention would be lost.
        assert rows.demands((added,), {added: TRIM_HORIZON}) == {}
        progress.begin(end)
        assert added in rows.demands((added,), {added: TRIM_HORIZON})


async def test_run_after_a_kill_stores_the_last_record() -> None:
    w = world(shards=1)
    async with Query(w.application) as query:
        w.put_some(5)
        offset = await read_on(query, await query.begin(), 3, 3.0)
        w.put_some(5)
        while rows(w) < 10:
            offset = await query.batch(offset)
        finish(query.planner, offset)
        query.crash()
    async with Query(w.application) as query:
        assert await query.planner.wait_held(60.0)
        query.planner.begin(offset)
        query.planner.rewrite_lease_rows(offset)
    (lease,) = (row for row in (await w.application.table.scan()).leases.values() if not row.is_run)
    assert lease.record == w.application.rows[-1].sequence, "a KCL that goes on would read it again"


async def test_query_waits_until_its_start_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(shards=1)
    later(w, 40 * HOUR)
    w.put_some(5)
    old = Position.at_timestamp(int(1000 * (w.clock.time() - 30 * HOUR)))
    async with Query(w.application) as query:
        begin = await query.begin()
        await query.run.streams.refresh(query.run.streams.streams)
        losses = Losses(query.run.streams, lambda *_: NO_FACTS, lambda *_: False)
        answers = query.client.describe_stream_summary
        query.client.describe_stream_summary = broken  # type: ignore[method-assign]
        unknown = await losses.check(Offset(dict.fromkeys(begin, old)), rows=True)
        query.client.describe_stream_summary = answers  # type: ignore[method-assign]
        assert unknown is False
        with monkeypatch.context() as patch:
            patch.setattr(Losses, "check", lambda *_, **__: asyncio.sleep(0, unknown))
            reply = await query.planner.poll(begin, NO_LIMIT, NO_LIMIT, 10.0)
            assert (reply.shards, reply.undecided) == ([], True), "a buffer may have skipped what is lost"
        reply = await query.planner.poll(begin, NO_LIMIT, NO_LIMIT, 10.0)
        assert sum(each.records for each in reply.shards) == 5


async def test_repeated_micro_batch_waits_until_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [False, False, True]
    monkeypatch.setattr(Losses, "check_replay", lambda *_, **__: asyncio.sleep(0, answers.pop(0)))
    async with Query(world(shards=1).application) as query:
        begin = await query.begin()
        await query.planner.check_replay(begin, [])
        assert answers == []
        answers += 99 * [False]
        waiting = asyncio.create_task(query.planner.check_replay(begin, []))
        await asyncio.sleep(5)
        await query.planner.leave()
        with pytest.raises(KinesisEfoError):
            await waiting


async def broken(**_: object) -> None:
    raise TimeoutError("no answer")
