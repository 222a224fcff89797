"""What the tasks of a query are served in the planner's process, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from kinesis_efo.errors import AccessRefusedError, DataLossError, LeaseTableError
from kinesis_efo.fetcher.work import WhereRequest
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_query_fetching import busy_stream, far_behind, fetching_of, numbers_of, one_in_front
from tests.unit.sharing.test_several_queries import HOME, Program, Reader, horizon, key, scenario, together


@pytest.mark.parametrize("fetchers", [0, 2])
def test_hash_ranges_of_children_are_planned_before_they_are_listed(fetchers: int) -> None:
    """Each attempt of a task leaves out the same aggregates, wherever it reads."""

    async def main() -> None:
        stream = ModelStream(shards=1)
        async with Program(stream, fetchers=fetchers) as program:
            first = program.join(horizon(stream))
            stream.put(0, 30)
            stream.split(0)
            await first.until(lambda: set(first.offset) == {key(1), key(2)})
            known = await first.query.hash_ranges(list(first.offset))
            assert known == {key(number): stream[number].hashes for number in (1, 2)}

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_what_ranges_without_records_wait_for_is_read_at_once_for_a_query_that_is_alone() -> None:
    stream = ModelStream(shards=2)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await asyncio.sleep(1)
        serving, began = program.fetching.of(first.name), program.clock.monotonic()
        ranges = [ShardRange(key(number), TRIM_HORIZON, Position.after(2000)) for number in range(2)]
        assert serving.expect(ranges) == began
        await asyncio.sleep(1)
        assert len(stream.subscribed) == 2


@pytest.mark.parametrize("fetchers", [0, 2])
def test_what_ranges_without_records_wait_for_is_read_at_once_for_a_query_that_is_behind(fetchers: int) -> None:
    run(asyncio.wait_for(behind(fetchers), 3600))


async def behind(fetchers: int) -> None:
    stream = ModelStream(shards=3)
    async with Program(stream, fetchers=fetchers) as program:
        first = program.join(horizon(stream))
        for number in range(3):
            stream.put(number, *[30] * 20)
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        fetching_of(second).follow(second.offset)
        serving = program.fetching.of(second.name)
        end, number = first.offset[key(0)], stream[1].records[3][0]
        began = program.clock.monotonic()
        covered = ShardRange(key(0), end, end)
        known = ShardRange(key(1), TRIM_HORIZON, Position.after(number), number)
        closed = ShardRange(key(2), TRIM_HORIZON, SHARD_END)
        assert serving.expect([covered, known, closed]) == began
        await asyncio.sleep(1)
        assert not program.polled.opened
        early = Position.after(stream[1].records[0][0])
        assert serving.expect([ShardRange(key(1), TRIM_HORIZON, early)]) == began + 1
        await asyncio.sleep(1)
        assert [shard for _, shard, _ in program.polled.opened] == [key(1).shard]
        assert len(stream.subscribed) == 3


@scenario
async def test_a_task_of_a_query_that_is_behind_is_sent_to_the_planner_and_takes_the_shard_from_nobody() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 20)
    async with Program(stream, fetchers=1) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        await first.batch()
        second = program.join(horizon(stream))
        fetching_of(second).follow(second.offset)
        (host,) = program.hosts
        end = first.offset[key(0)]
        for reader, after, there in ((second, TRIM_HORIZON, HOME), (first, end, host.address)):
            request = WhereRequest.of([ShardRange(key(0), after, SHARD_END)], 60.0, reader.name)
            assert (await program.cluster.where(request)).fetchers == [there]
        assert program.cluster.assignments.address(key(0)) == host.address


async def _logged(program: Program) -> tuple[Reader, Reader, ShardRange]:
    """A query that has everything, one that has yet to repeat a micro-batch of as much, and its range."""
    first, second = program.join(horizon(program.stream)), program.join(horizon(program.stream))
    await second.query.check_replay(second.offset, ())
    await first.until(lambda: first.has_all)
    (wanted,) = second.offset.ranges_to(first.offset)
    return first, second, wanted


@scenario
async def test_what_a_task_alone_has_fetched_again_is_over_with_the_commit_of_a_query_that_is_alone_by_then() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 40)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        second.planned = first.offset
        await second.query.check_replay(second.offset, second.offset.ranges_to(first.offset))
        for wanted in second.offset.ranges_to(first.offset):
            assert await second.read(wanted)
        await first.leave()
        await second.batch()
        assert program.fetching.sharing.alone
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_the_loss_of_a_range_fails_its_task_and_no_other_query(apart: bool) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, *[30] * 10)
        async with Program(stream, apart=apart) as program:
            _, second, wanted = await _logged(program)
            lost = ShardRange(wanted.key, wanted.after, wanted.through, wanted.through.value - 1)
            with pytest.raises(DataLossError):
                await second.read(lost)
            assert program.run.failure.error is None

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_a_task_ends_with_its_query_while_it_waits_in_the_shared_buffer() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 10)
    async with Program(stream) as program:
        _, second, wanted = await _logged(program)
        later = wanted.through.value + 1000
        waits = asyncio.create_task(second.read(ShardRange(wanted.key, wanted.after, wanted.through, later)))
        await asyncio.sleep(2)
        assert not waits.done()
        fetching_of(second).failure.set(LeaseTableError("of this query alone"))
        with pytest.raises(LeaseTableError):
            await asyncio.wait_for(waits, 5)


@scenario
async def test_a_task_fetches_what_the_buffer_of_its_fetcher_has_dropped_without_a_report() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[300] * 10)
    async with Program(stream, fetchers=1) as program:
        _, second, wanted = await _logged(program)
        (feed,) = program.hosts[0].fetcher.feeds
        assert feed.buffer is not None
        # As for a task that waits at the end of a full buffer.
        feed.buffer._evict(len(feed.buffer))
        assert len(await asyncio.wait_for(second.read(wanted), 60)) == 10


@pytest.mark.slow
@scenario
async def test_a_range_whose_last_record_is_gone_fails_its_task_with_fetchers_elsewhere_too() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 10)
    async with Program(stream, fetchers=2) as program:
        _, second, wanted = await _logged(program)
        with pytest.raises(DataLossError):
            await second.read(ShardRange(wanted.key, wanted.after, wanted.through, wanted.through.value - 1))


@scenario
async def test_a_claim_goes_with_its_shard_although_the_query_has_fetched_nothing_by_itself() -> None:
    stream = ModelStream(shards=1)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await together(first, second)
        fetching = fetching_of(second)
        fetching.withdraw([key(0)])
        assert fetching.is_apart
        fetching.commit(Offset({key(0): SHARD_END}))
        assert not fetching.is_apart


@scenario
async def test_a_task_that_fetches_by_itself_reads_on_from_the_shared_buffer_once_get_records_is_refused() -> None:
    stream = busy_stream()
    async with Program(stream, 16 << 20) as program:
        _, second = await far_behind(program)
        *_, before, last = numbers_of(stream)
        last += last - before  # the record that comes next
        serving: Any = program.fetching.of(second.name)  # type: ignore[union-attr]
        wanted = ShardRange(key(0), second.offset[key(0)], Position.after(last), last)
        async with aclosing(serving.read(wanted)) as chunks:
            await anext(chunks)
            stream.put(0, 30)
            program.fetching.sharing.forbid_apart(AccessRefusedError("GetRecords is not allowed"))
            calls = len(program.polled.limits_asked)
            assert [payloads async for payloads in chunks]
        assert len(program.polled.limits_asked) == calls


@scenario
async def test_a_task_ahead_of_what_its_fetcher_reads_is_sent_to_the_run() -> None:
    stream = busy_stream()
    async with Program(stream, fetchers=1) as program:
        behind, front = await one_in_front(program, 17)
        fetching_of(front).follow(front.offset)
        request = WhereRequest.of([ShardRange(key(0), front.offset[key(0)], SHARD_END)], 60.0, front.name)
        program.cluster.begin_at(key(0), TRIM_HORIZON)
        await behind.until(lambda: bool(behind.rows))
        assert (await program.cluster.where(request)).fetchers == [HOME]
