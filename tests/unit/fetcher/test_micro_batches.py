"""Which shards a poll looks at, what it answers, and what wakes it: by what is buffered, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.planning import BEHIND_MILLIS, ShardProgress, may_wait
from kinesis_efo.errors import DataLossError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.budget import EVENT_OVERHEAD
from kinesis_efo.fetcher.micro_batches import MicroBatchPlanner
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey
from kinesis_efo.records.arrivals import Arrivals
from kinesis_efo.records.events import data_in
from tests.support.virtual_time import LoopClock, run

FIRST, SECOND, THIRD = (ShardKey("orders", f"shardId-00000000000{number}") for number in range(3))
NO_LIMIT = 1 << 60
SIZE = EVENT_OVERHEAD + 1000


class Buffers:
    """The buffers of some shards.

    Attributes:
        asked: The shards that were looked at, in order.
        away: Shards that may not be read now.
        groups: Budgets, with the shards that share each.
    """

    def __init__(self, *keys: ShardKey) -> None:
        self.indexes = {key: EventIndex(TRIM_HORIZON) for key in keys}
        self.asked: list[ShardKey] = []
        self.away: set[ShardKey] = set()
        self.behind: dict[ShardKey, int] = {}
        self.groups: list[tuple[Collection[ShardKey], int]] = []
        self.until: dict[ShardKey, float] = {}

    def add(self, key: ShardKey, end: int | None, records: int = 1, arrived: int | None = None) -> None:
        marks = [Arrivals(arrived, arrived, end or 0, records)] if arrived is not None else []
        size = SIZE * records
        self.indexes[key].append(end, size, records, LoopClock().monotonic(), marks, last=end)

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        self.asked.append(key)
        return None if key in self.away else self.indexes[key]

    def millis_behind(self, key: ShardKey) -> int | None:
        return self.behind.get(key)

    def quiet(self, key: ShardKey) -> float:
        return 4.0

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self.until.get(key)

    def budgets(self, keys: Collection[ShardKey]) -> Iterable[tuple[Collection[ShardKey], int]]:
        groups = self.groups or [(list(self.indexes), NO_LIMIT)]
        return [([key for key in group if key in keys], budget) for group, budget in groups]


class Query:
    """A planner of micro-batches, and its buffers."""

    def __init__(self, *keys: ShardKey, max_skew: float | None = None) -> None:
        self.buffers = Buffers(*keys)
        self.failure = Failure()
        self.planner = MicroBatchPlanner(self.buffers, LoopClock(), self.failure.raise_if_set, max_skew)

    async def poll(
        self, offset: Offset, max_bytes: int = NO_LIMIT, max_records: int = NO_LIMIT, at_most: float = 0.0
    ) -> dict[ShardKey, ShardProgress]:
        self.buffers.asked.clear()
        told = await self.planner.poll(offset, max_bytes, max_records, at_most)
        return {each.key: each for each in told}


def at(**positions: Position | int) -> Offset:
    keys = {"first": FIRST, "second": SECOND, "third": THIRD}
    return Offset({keys[name]: Position.after(at) if isinstance(at, int) else at for name, at in positions.items()})


def test_an_answer_tells_all_that_is_known_of_the_part_of_a_shard() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.add(FIRST, 10, 2)
        query.buffers.add(FIRST, 20, 3)
        query.buffers.add(SECOND, 30, 0)
        query.buffers.behind = {FIRST: 700, SECOND: 0}
        told = await query.poll(at(first=TRIM_HORIZON, second=TRIM_HORIZON))
        data = round(data_in(5 * SIZE - 2 * EVENT_OVERHEAD, 5, 2) or 0)
        assert data > 0
        assert told[FIRST] == ShardProgress(FIRST, Position.after(20), 5, 5 * SIZE, 700, 20, 0.0, data)
        assert told[SECOND] == ShardProgress(SECOND, Position.after(30), 0, 0, 0, None, 4.0, 0)

    run(main())


def test_only_shards_where_something_happened_are_looked_at() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND, THIRD)
        for key in (FIRST, SECOND, THIRD):
            query.buffers.add(key, 10, 0)
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON, third=TRIM_HORIZON)
        assert set(await query.poll(offset)) == {FIRST, SECOND, THIRD}
        offset = at(first=10, second=10, third=10)
        assert await query.poll(offset) == {}
        assert query.buffers.asked == [], "they are where they were told to be"
        query.buffers.add(SECOND, 20)
        query.planner.touch([SECOND])
        assert set(await query.poll(offset)) == {SECOND}
        assert set(query.buffers.asked) == {SECOND}
        assert set(await query.poll(offset)) == {SECOND}, "no micro-batch took it yet"

    run(main())


def test_a_shard_that_moved_to_where_it_was_not_told_is_looked_at() -> None:
    async def main() -> None:
        query = Query(FIRST)
        query.buffers.add(FIRST, 10, 0)
        await query.poll(at(first=TRIM_HORIZON))
        query.buffers.add(FIRST, 30, 0)
        assert (await query.poll(at(first=20)))[FIRST].through == Position.after(30)

    run(main())


def test_what_a_micro_batch_took_is_not_told_again_and_what_it_left_is() -> None:
    async def main() -> None:
        query = Query(FIRST)
        query.buffers.add(FIRST, 10)
        query.buffers.add(FIRST, 20)
        assert (await query.poll(at(first=TRIM_HORIZON), max_records=1))[FIRST].through == Position.after(10)
        assert (await query.poll(at(first=10), max_records=1))[FIRST].through == Position.after(20)
        assert (await query.poll(at(first=20), max_records=1))[FIRST].records == 0

    run(main())


def test_a_shard_that_may_not_be_read_now_is_looked_at_again_without_a_word() -> None:
    async def main() -> None:
        query = Query(FIRST)
        query.buffers.add(FIRST, None)
        query.buffers.away.add(FIRST)
        offset = at(first=TRIM_HORIZON)
        assert await query.poll(offset) == {}
        query.buffers.away.clear()
        assert (await query.poll(offset))[FIRST].through == SHARD_END, "its last event does not come twice"
        query.buffers.away.add(FIRST)
        assert await query.poll(offset) == {}, "not even what was seen of it: it was let go"

    run(main())


def test_shards_that_have_ended_or_left_the_offset_are_not_looked_at() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.add(SECOND, 10, 0)
        query.planner.touch([FIRST, THIRD])
        assert set(await query.poll(at(first=SHARD_END, second=TRIM_HORIZON))) == {SECOND}
        assert set(query.buffers.asked) == {SECOND}

    run(main())


def test_what_waits_of_a_shard_that_left_the_offset_is_not_told() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.add(SECOND, 10)
        assert SECOND in await query.poll(at(first=TRIM_HORIZON, second=TRIM_HORIZON))
        assert SECOND not in await query.poll(at(first=TRIM_HORIZON))

    run(main())


def test_a_shard_that_left_the_offset_and_comes_again_is_looked_at() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.add(FIRST, 10, 0)
        query.buffers.add(SECOND, 10)
        await query.poll(at(first=TRIM_HORIZON, second=TRIM_HORIZON))
        assert await query.poll(at(first=10, second=SHARD_END)) == {}
        assert await query.poll(at()) == {}
        query.buffers.add(FIRST, 20, 0)
        assert (await query.poll(at(first=10)))[FIRST].through == Position.after(20)

    run(main())


def test_the_end_of_a_shard_answers_at_once_although_it_has_no_records() -> None:
    async def main() -> None:
        query = Query(FIRST)
        query.buffers.add(FIRST, None, 0)
        began = LoopClock().monotonic()
        assert (await query.poll(at(first=TRIM_HORIZON), at_most=50.0))[FIRST].through == SHARD_END
        assert LoopClock().monotonic() == began

    run(main())


def test_a_poll_without_news_waits_for_its_time_and_tells_how_far_idle_shards_are() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.add(FIRST, 10, 0)
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON)
        began = LoopClock().monotonic()
        polling = asyncio.create_task(query.poll(offset, at_most=5.0))
        await asyncio.sleep(1)
        query.buffers.add(SECOND, 30, 0)
        query.planner.touch([SECOND])
        query.planner.wake()
        told = await polling
        assert LoopClock().monotonic() == began + 5
        assert {key: each.through for key, each in told.items()} == {
            FIRST: Position.after(10),
            SECOND: Position.after(30),
        }

    run(main())


def test_a_poll_is_woken_by_news_and_only_by_that() -> None:
    async def main() -> None:
        query = Query(FIRST)
        polling = asyncio.create_task(query.poll(at(first=TRIM_HORIZON), at_most=50.0))
        await asyncio.sleep(1)
        query.buffers.add(FIRST, 10)
        query.planner.touch([FIRST])
        await asyncio.sleep(1)
        assert not polling.done(), "to touch a shard wakes nobody"
        query.planner.wake()
        async with asyncio.timeout(0.1):
            assert (await polling)[FIRST].records == 1

    run(main())


def test_whoever_waits_learns_what_ended_reading() -> None:
    async def main() -> None:
        query = Query(FIRST)
        query.buffers.add(FIRST, 10)
        query.failure.on_set(query.planner.wake)
        polling = asyncio.create_task(query.poll(at(first=10), at_most=50.0))
        await asyncio.sleep(1)
        query.failure.set(DataLossError("gone"))
        with pytest.raises(DataLossError, match="gone"):
            async with asyncio.timeout(0.1):
                await polling
        with pytest.raises(DataLossError, match="gone"):
            await query.poll(at(first=TRIM_HORIZON))

    run(main())


def test_half_of_each_budget_makes_a_micro_batch_unless_the_trigger_allows_less() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON)
        for key in (FIRST, SECOND):  # the first waits longest
            for number in range(1, 11):
                query.buffers.add(key, 10 * number)
            await asyncio.sleep(1)
        query.buffers.groups = [([FIRST], 8 * SIZE), ([SECOND], 5 * SIZE)]

        async def records(**limits: int) -> list[int]:
            told = await query.poll(offset, **limits)
            return [told[key].records for key in (FIRST, SECOND)]

        assert await records() == [4, 2]
        assert await records(max_bytes=6 * SIZE) == [4, 2]
        assert await records(max_bytes=6 * SIZE - 1) == [3, 2], "the trigger's limit holds for all of them together"
        assert await records(max_bytes=3 * SIZE) == [2, 1]
        assert await records(max_records=6) == [4, 2]
        assert await records(max_records=5) == [3, 2]

    run(main())


@pytest.mark.parametrize("max_skew", [None, 60.0])
def test_no_shard_is_taken_further_ahead_than_asked_for(max_skew: float | None) -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND, max_skew=max_skew)
        for number in range(10):
            query.buffers.add(FIRST, 10 * (number + 1), arrived=60_000 * number)
        query.buffers.add(SECOND, 10, arrived=30_000)
        told = await query.poll(at(first=TRIM_HORIZON, second=TRIM_HORIZON))
        assert told[FIRST].records == (10 if max_skew is None else 2)

    run(main())


def test_an_idle_shard_holds_the_others_back_where_it_has_come_to() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND, max_skew=60.0)
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON)
        for number in range(10):
            query.buffers.add(FIRST, 10 * (number + 1), arrived=60_000 * number)
        query.buffers.away.add(SECOND)
        assert (await query.poll(offset))[FIRST].records == 0, "nothing was heard of the other one yet"
        query.buffers.away.clear()
        query.buffers.add(SECOND, 500, 0)
        query.buffers.until[SECOND] = 125.0  # its clock is known to five seconds
        assert (await query.poll(offset))[FIRST].records == 4
        query.buffers.until[SECOND] = 185.0
        query.planner.touch([SECOND])
        assert (await query.poll(offset))[FIRST].records == 5
        assert (await query.poll(at(first=TRIM_HORIZON)))[FIRST].records == 10, "it has left the offset"

    run(main())


# -- larger micro-batches


def progress(
    records: int = 1, behind: int | None = 60_000, *, size: int = 100, more: bool = False, ends: bool = False
) -> ShardProgress:
    through = SHARD_END if ends else Position.after(10)
    return ShardProgress(FIRST, through, records, size if records else 0, behind, more=more)


BEHIND, BARELY, TIP, UNKNOWN = (progress(behind=millis) for millis in (60_000, BEHIND_MILLIS + 1, BEHIND_MILLIS, None))
IDLE = progress(0, behind=0)


@pytest.mark.parametrize(
    ("shards", "least_bytes", "may"),
    [
        ([BEHIND], None, True),
        ([BARELY], None, True),
        ([BEHIND, BARELY, IDLE], None, True),
        ([TIP], None, False),
        ([UNKNOWN], None, False),
        ([BEHIND, TIP], None, False),
        ([], None, False),
        ([IDLE], None, False),
        ([progress(0)], None, False),
        ([BEHIND, progress(more=True)], None, False),
        ([BEHIND, progress(0, more=True)], None, False),
        ([BEHIND, progress(0, ends=True)], None, False),
        ([BEHIND, progress(ends=True)], None, False),
        ([BEHIND], 101, True),
        ([BEHIND], 100, False),
        ([BEHIND, TIP], 201, True),
        ([BEHIND, TIP], 200, False),
        ([TIP, progress(more=True)], 1000, False),
        ([TIP, progress(ends=True)], 1000, False),
        ([IDLE], 1000, False),
    ],
)
def test_a_micro_batch_may_wait_while_nobody_gains_from_a_small_one(
    shards: list[ShardProgress], least_bytes: int | None, may: bool
) -> None:
    assert may_wait(shards, least_bytes) is may
    assert may_wait(shards[::-1], least_bytes) is may


PROGRESS = st.builds(
    progress,
    st.integers(0, 2),
    st.sampled_from([None, 0, BEHIND_MILLIS, BEHIND_MILLIS + 1, 10**8]),
    size=st.integers(1, 200),
    more=st.booleans(),
    ends=st.booleans(),
)


@given(st.lists(PROGRESS, max_size=5), st.none() | st.integers(1, 500), PROGRESS)
def test_what_comes_at_the_tip_or_beyond_the_limits_ends_any_wait(
    shards: list[ShardProgress], least_bytes: int | None, another: ShardProgress
) -> None:
    may = may_wait(shards, least_bytes)
    assert not may_wait([*shards, progress(more=True)], least_bytes)
    assert not may_wait([*shards, progress(0, ends=True)], least_bytes)
    assert not may_wait([*shards, TIP], None)
    assert may_wait([*shards, IDLE], least_bytes) is may, "an idle shard changes nothing"
    if any(shard.records for shard in shards) and not may:
        assert not may_wait([*shards, another], least_bytes), "a wait that is over is not taken up again"


def test_a_shard_is_told_to_have_more_if_the_limits_leave_something_out() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON)
        query.buffers.add(FIRST, 10)
        query.buffers.add(FIRST, 20)
        query.buffers.add(FIRST, 30, 0)
        query.buffers.add(SECOND, 10, 0)

        async def more(**limits: int) -> list[bool]:
            told = await query.poll(offset, **limits)
            return [told[key].more for key in (FIRST, SECOND) if key in told]

        assert await more() == [False, False]
        assert await more(max_records=1) == [True]
        assert await more(max_bytes=2 * SIZE - 1) == [True]
        assert await more(max_bytes=2 * SIZE) == [False]
        query.buffers.groups = [([FIRST, SECOND], 4 * SIZE)]
        assert await more() == [False]
        query.buffers.groups = [([FIRST, SECOND], 4 * SIZE - 1)]
        assert await more() == [True], "half of the budget is full"

    run(main())


def test_only_records_at_the_tip_end_a_wait_and_the_next_poll_has_all_that_came() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND, THIRD)
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON, third=SHARD_END)
        query.buffers.behind = {FIRST: 60_000, SECOND: 0, THIRD: 0}
        query.buffers.add(FIRST, 10)
        await query.poll(offset)
        began = LoopClock().monotonic()
        waiting = asyncio.create_task(query.planner.until_tip(50.0))
        await asyncio.sleep(1)
        for key, end, records in ((FIRST, 20, 1), (SECOND, 10, 0), (THIRD, 10, 1)):
            query.buffers.add(key, end, records)
            query.planner.touch([key])
            query.planner.wake()
            await asyncio.sleep(1)
            assert not waiting.done(), key
        query.buffers.add(SECOND, 20)
        query.planner.touch([SECOND])
        query.planner.wake()
        await waiting
        assert LoopClock().monotonic() == began + 4
        assert THIRD not in query.buffers.asked, "the query has read it whole"
        told = await query.poll(offset)
        assert {key: each.records for key, each in told.items()} == {FIRST: 2, SECOND: 1}

    run(main())


def test_a_wait_for_the_tip_ends_in_time_and_looks_only_where_something_happens() -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.behind = {FIRST: 60_000, SECOND: 60_000}
        offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON)
        for key in (FIRST, SECOND):
            query.buffers.add(key, 10)
        await query.poll(offset)
        query.buffers.asked.clear()
        began = LoopClock().monotonic()
        waiting = asyncio.create_task(query.planner.until_tip(1.0))
        await asyncio.sleep(0.5)
        query.planner.touch([FIRST])
        query.planner.wake()
        await waiting
        assert LoopClock().monotonic() == began + 1
        assert query.buffers.asked == [], "not even there: it is behind"

    run(main())


def test_a_wait_for_the_tip_learns_what_ended_reading() -> None:
    async def main() -> None:
        query = Query(FIRST)
        query.failure.on_set(query.planner.wake)
        waiting = asyncio.create_task(query.planner.until_tip(50.0))
        await asyncio.sleep(1)
        query.failure.set(DataLossError("gone"))
        with pytest.raises(DataLossError, match="gone"):
            async with asyncio.timeout(0.1):
                await waiting

    run(main())
