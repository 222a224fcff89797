"""What the queries of a run hold of its buffers and of its budget, and what is given back when one leaves, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise

import pytest

from kinesis_efo.errors import FetcherUnreachableError, LeaseTableError
from kinesis_efo.leases.row import LeaseInfo
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_query_fetching import busy_stream
from tests.unit.sharing.test_several_queries import NO_LIMIT, Program, Reader, horizon, key, scenario, together

WHOLE = 1 << 20


def limit_of(query: Reader) -> int:
    """The bytes that may be buffered of the first shard for a query."""
    fetching = next(each for each in query.program.fetching.sharing.queries if each.name == query.name)
    return next(limit for keys, limit in fetching.buffers.budgets([key(0)]) if key(0) in keys)


@scenario
async def test_what_is_read_apart_takes_a_quarter_of_the_budget_and_gives_it_back() -> None:
    stream = ModelStream(shards=1, event_records=(8,))
    stream.put(0, *[1000] * 4000)
    async with Program(stream, WHOLE) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        assert limit_of(first) == WHOLE
        second, third = program.join(horizon(stream)), program.join(horizon(stream))
        await second.batch()
        assert (limit_of(first), limit_of(second)) == (WHOLE * 3 // 4, WHOLE // 4)
        await third.batch()
        assert [limit_of(each) for each in (first, second, third)] == [WHOLE * 3 // 4, WHOLE // 8, WHOLE // 8]
        await second.leave()
        assert [limit_of(each) for each in (first, third)] == [WHOLE * 3 // 4, WHOLE // 4]
        await third.leave()
        assert limit_of(first) == WHOLE


@scenario
async def test_nothing_is_read_apart_for_a_query_that_has_left() -> None:
    stream = ModelStream(shards=1, event_records=(8,))
    stream.put(0, *[1000] * 4000)
    async with Program(stream, WHOLE) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        await second.leave()
        third = program.join(horizon(stream))
        third.max_records = 10
        await third.batch()
        calls = len(program.polled.limits_asked)
        assert calls
        await third.leave()
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) <= calls + 1
        with pytest.raises(FetcherUnreachableError, match="does not know the query"):
            program.fetching.of(third.name)


@pytest.mark.parametrize("fetchers", [0, 2])
def test_nothing_is_read_apart_any_more_when_the_run_has_stopped(fetchers: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1, event_records=(8,))
        stream.put(0, *[1000] * 4000)
        async with Program(stream, 16 * WHOLE, fetchers=fetchers) as program:
            first = program.join(horizon(stream))
            await first.until(lambda: first.has_all)
            second = program.join(horizon(stream))
            await second.batch()
        calls = len(program.polled.limits_asked)
        assert calls
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_what_was_kept_for_a_query_that_leaves_is_dropped_at_once() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[1000] * 40)
    async with Program(stream) as program:
        fast, slow = program.join(horizon(stream)), program.join(horizon(stream))
        await slow.poll()
        await fast.until(lambda: fast.has_all)
        assert program.budget.used > 40_000
        await slow.leave()
        assert program.budget.used == 0


@scenario
async def test_a_query_may_leave_a_run_that_has_failed() -> None:
    stream = ModelStream(shards=1)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await first.batch()
        await second.batch()
        program.run.failure.set(LeaseTableError("the table is gone"))
        await second.leave()
        await first.leave()


@scenario
async def test_a_query_may_leave_before_another_one_has_polled() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await second.batch()
        await second.leave()
        await first.until(lambda: first.has_all)


@pytest.mark.parametrize("fetchers", [0, 2])
@pytest.mark.parametrize("others", [1, 2])
def test_a_shard_that_only_a_query_reads_which_leaves_is_not_read_any_more(others: int, fetchers: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1, event_records=(8,))
        stream.put(0, *[1000] * 1000)
        stream.split(0)
        async with Program(stream, 32 << 10, fetchers=fetchers) as program:
            for each in [program.join(horizon(stream)) for _ in range(others)]:
                await each.until(lambda each=each: each.has_all and key(0) not in each.offset)  # type: ignore[misc]
                await each.batch()
            second = program.join(horizon(stream))
            await second.until(lambda: bool(second.rows))
            assert stream.open[key(0).shard]
            await second.leave()
            await asyncio.sleep(1)
            assert not stream.open[key(0).shard]
            assert stream.open[key(1).shard]

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_only_the_slowest_goes_apart_when_another_one_finds_no_room() -> None:
    stream = ModelStream(shards=1, event_records=(4,))
    stream.put(0, *[1000] * 400)
    async with Program(stream, buffer_bytes=64 << 10) as program:
        fast, middle, slow = (program.join(horizon(stream)) for _ in range(3))
        await slow.poll()
        middle.max_records = 8
        await middle.batch()
        got = len(fast.rows)
        # Nobody else commits anything meanwhile.
        await fast.until(lambda: slow.query.reads_apart, 30)
        got = len(fast.rows)
        await fast.until(lambda: len(fast.rows) > got, 5)
        assert not middle.query.reads_apart
        await fast.until(lambda: fast.has_all, 60)
        for query in (middle, slow):
            query.max_records = NO_LIMIT
            await query.until(lambda query=query: query.has_all)  # type: ignore[misc]
            query.check()


@scenario
async def test_a_stream_is_read_again_with_its_lease_although_nobody_polls() -> None:
    stream = ModelStream(shards=1)
    async with Program(stream) as program:
        await program.join(horizon(stream)).poll()
        await asyncio.sleep(6)
        assert stream.open[key(0).shard]
        program.run.lease_lost("orders", None)
        await asyncio.sleep(6)
        assert not stream.open[key(0).shard]
        program.run.lease_taken("orders", {})
        await asyncio.sleep(6)
        assert stream.open[key(0).shard]


@scenario
async def test_what_is_kept_for_a_query_behind_another_one_lies_in_a_buffer_that_it_can_be_served_from() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, *[1000] * 20)
    async with Program(stream) as program:
        fast, slow = program.join(horizon(stream)), program.join(horizon(stream))
        slow.max_records = 4
        await fast.poll()
        await slow.until(lambda: bool(slow.rows))
        end = Position.after(stream[0].records[-1][0])
        await fast.until(lambda: fast.offset[key(0)].reaches(end))
        behind = program.join(horizon(stream))
        one, two, three = (program.fetching.sharing.named(query.name) for query in (fast, slow, behind))
        three.follow(behind.offset)
        assert list(two.lag_behind(one)) == [key(0)]
        assert three.lag_behind(one) == {}, "it reads apart once it polls"


@scenario
async def test_a_query_holds_beside_another_one_what_has_come_of_shards_that_only_it_reads() -> None:
    stream = ModelStream(shards=2)
    async with Program(stream) as program:
        both, one = program.join(horizon(stream)), program.join(Offset({key(1): TRIM_HORIZON}))
        for query in (both, one):
            await query.poll()
        holds = [program.fetching.sharing.named(query.name) for query in (both, one)]
        await asyncio.sleep(10)
        assert holds[0].holds_beside(holds[1]) == []
        stream.put(0, 30)
        stream.put(1, 30)
        await asyncio.sleep(1)
        assert holds[0].holds_beside(holds[1]) == [key(0)]
        assert holds[1].holds_beside(holds[0]) == []


@scenario
async def test_the_shards_are_looked_at_for_a_query_that_starves_once_in_two_seconds() -> None:
    stream = busy_stream()
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await together(first, second)
        looked: list[float] = []
        program.fetching.sharing.shared.wants_room = lambda _: bool(looked.append(program.clock.monotonic()))  # type: ignore[method-assign,func-returns-value]
        began = program.clock.monotonic()
        while program.clock.monotonic() < began + 7:
            await first.batch()
        assert 2 <= len(looked) <= 4
        assert all(after - before >= 2 for before, after in pairwise(looked))


@scenario
async def test_query_that_starves_gets_room_within_one_poll() -> None:
    stream = ModelStream(shards=1, event_records=(8,))
    stream.put(0, *[1000] * 400)
    stream.split(0)
    for child in (1, 2):
        stream.put(child, *[1000] * 400)
    async with Program(stream, buffer_bytes=64 << 10) as program:
        await program.join(horizon(stream)).poll()
        starves = program.join(Offset({key(1): TRIM_HORIZON, key(2): TRIM_HORIZON}))
        reply = await starves.query.poll(starves.offset, NO_LIMIT, NO_LIMIT, 60.0)
        assert any(shard.records for shard in reply.shards)


@scenario
async def test_who_holds_what_nobody_else_reads_makes_room_for_a_query_that_starves() -> None:
    stream = ModelStream(shards=1, event_records=(8,))
    stream.put(0, *[1000] * 400)
    stream.split(0)
    for child in (1, 2):
        stream.put(child, *[1000] * 400)
    async with Program(stream, buffer_bytes=64 << 10) as program:
        holds = program.join(horizon(stream))
        await holds.poll()
        starves = program.join(Offset({key(1): TRIM_HORIZON, key(2): TRIM_HORIZON}))
        await asyncio.sleep(5)
        await starves.until(lambda: starves.has_all, 60)
        await holds.until(lambda: holds.has_all)
        holds.check()


# -- what the lease table is told


@scenario
async def test_a_row_does_not_pass_a_query_that_has_begun_and_not_committed() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 10)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await second.poll()
        await first.until(lambda: first.has_all)
        await asyncio.sleep(30)
        assert program.row(0) == TRIM_HORIZON
        await second.leave()
        await asyncio.sleep(0.5)
        stream.put(0, 30)
        await first.until(lambda: first.has_all)
    assert program.row(0) == first.offset[key(0)], "the last checkpoints are written when the run stops"


@scenario
async def test_rows_are_kept_of_the_shards_that_some_query_reads() -> None:
    stream = busy_stream()
    async with Program(stream, 32 << 10) as program:
        wanted: list[set[ShardKey]] = []
        want = program.run._checkpoints.want

        def noted(shards: Mapping[ShardKey, LeaseInfo]) -> None:
            wanted.append(set(shards))
            want(shards)

        program.run._checkpoints.want = noted  # type: ignore[method-assign, assignment]
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        second.max_records = 8
        await second.batch()
        stream.split(0)
        await first.until(lambda: first.has_all and key(0) not in first.offset)
        await first.batch()
        assert wanted[-1] == {key(0), key(1), key(2)}
        await second.leave()
        assert wanted[-1] == {key(1), key(2)}
        times = len(wanted)
        await first.leave()
        assert len(wanted) == times, "rows stay where nobody reads any more"
