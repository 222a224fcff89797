"""Which shards a poll looks at, what it answers, and what wakes it: by what is buffered, in virtual time."""

import asyncio
from collections.abc import Collection
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.ending import Ending
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.planning import BEHIND_MILLIS, PollReply, ShardProgress, may_wait
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import DataLossError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.budget import EVENT_OVERHEAD
from kinesis_efo.fetcher.work import RowKey
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.options import Bounds, SourceOptions
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardKey
from kinesis_efo.records.events import Arrivals
from kinesis_efo.run.access import Begin, Logged, Next
from kinesis_efo.run.micro_batches import MicroBatchPlanner
from kinesis_efo.run.query_ends import EndPositions
from kinesis_efo.run.query_planner import Advance, QueryPlanner
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

    def row(self, key: ShardKey, position: Position) -> Any:
        self.asked.append(key)
        if key in self.away:
            return None
        group = next((number for number, (keys, _) in enumerate(self.groups) if key in keys), 0)
        return SimpleNamespace(
            index=self.indexes[key], behind=self.behind.get(key), quiet=lambda _now: 4.0, fetcher=str(group),
            room=self.groups[group][1] if self.groups else NO_LIMIT, key=RowKey(None, key),
        )  # fmt: skip

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self.until.get(key)


class Query:
    """A planner of micro-batches, and its buffers."""

    def __init__(self, *keys: ShardKey, max_skew: float | None = None) -> None:
        self.buffers = Buffers(*keys)
        self.failure = Failure()
        self.planner = MicroBatchPlanner(
            self.buffers.row, self.buffers.read_until, LoopClock(), self.failure.raise_if_set, max_skew
        )

    async def poll(
        self, offset: Offset, max_data: int = NO_LIMIT, max_records: int = NO_LIMIT, at_most: float = 0.0
    ) -> dict[ShardKey, ShardProgress]:
        self.buffers.asked.clear()
        told = await self.planner.poll(offset, max_data, max_records, at_most)
        return {each.key: each for each in told}


def at(**positions: Position | int) -> Offset:
    keys = {"first": FIRST, "second": SECOND, "third": THIRD}
    return Offset({keys[name]: Position.after(at) if isinstance(at, int) else at for name, at in positions.items()})


# -- larger micro-batches


def progress(
    records: int = 1, behind: int | None = 60_000, *, size: int = 100, more: bool = False, ends: bool = False
) -> ShardProgress:
    through = SHARD_END if ends else Position.after(10)
    return ShardProgress(FIRST, through, records, size if records else 0, behind, more=more)


BEHIND, BARELY, TIP, UNKNOWN = (progress(behind=millis) for millis in (60_000, BEHIND_MILLIS + 1, BEHIND_MILLIS, None))
IDLE = progress(0, behind=0)


PROGRESS = st.builds(
    progress,
    st.integers(0, 2),
    st.sampled_from([None, 0, BEHIND_MILLIS, BEHIND_MILLIS + 1, 10**8]),
    size=st.integers(1, 200),
    more=st.booleans(),
    ends=st.booleans(),
)


@given(st.lists(PROGRESS, max_size=5), st.none() | st.integers(1, 500), PROGRESS)
def test_records_at_the_tip_or_beyond_limits_end_waits(
    shards: list[ShardProgress], least_bytes: int | None, another: ShardProgress
) -> None:
    may = may_wait(shards, least_bytes)
    assert not may_wait([*shards, progress(more=True)], least_bytes)
    assert not may_wait([*shards, progress(0, ends=True)], least_bytes)
    assert not may_wait([*shards, TIP], None)
    assert may_wait([*shards, IDLE], least_bytes) is may, "an idle shard changes nothing"
    if any(shard.records for shard in shards) and not may:
        assert not may_wait([*shards, another], least_bytes), "a wait that is over is not taken up again"


def test_waits_count_data() -> None:
    small = ShardProgress(FIRST, Position.after(10), 1, 900, 60_000, data=100)
    assert may_wait([small, small], 201) and not may_wait([small, small], 200)


def planner_of(**calls: Any) -> QueryPlanner:
    """A planner of a query that answers some calls of it as a test says."""
    calls = {"silent": Mock(return_value={}), **calls}
    query: Any = Mock(progress=Progress(), wait_held=AsyncMock(return_value=True), **calls)
    run: Any = Mock(clock=LoopClock(), limits=KINESIS_LIMITS, placed=AsyncMock(return_value=[None]))
    run.initial = AsyncMock(return_value=at(first=TRIM_HORIZON))
    run.run.streams.stream.return_value.horizon = AsyncMock(return_value=None)
    return QueryPlanner(
        run, query, "q", SourceOptions.parse({"manifest": "m.json", "maxTriggerDelay": "5s"}), ["orders"]
    )


@pytest.mark.parametrize(("known", "then"), [(None, Mark("ab", 1)), (Mark("cd", 41), Mark("cd", 42))])
async def test_mark_of_the_checkpoint_continues_or_is_added(known: Mark | None, then: Mark) -> None:
    planner = planner_of(poll=AsyncMock(return_value=PollReply([progress()], [])))
    assert (await planner.answer(Begin(new=True, mark=Mark("ab")))).mark == Mark("ab")
    step = await planner.answer(Next(Offset(at(first=1), mark=known), 0.2))
    assert step.end.mark == then


async def test_report_of_the_last_micro_batch_is_awaited() -> None:
    planner = planner_of()
    planner.query.finish = planner.query.progress.finish  # type: ignore[method-assign]
    last = Mark("ab", 1)
    planner.query.progress.begin(at(first=1))
    planner.query.progress.plan(Offset(at(first=9), mark=last))
    asked = asyncio.create_task(planner.answer(Logged(last, 60.0)))
    for mark, done in ((Mark("other", 1), False), (last, True)):
        await asyncio.sleep(1)
        await planner.finished([mark], None)
        await asyncio.sleep(1)
        assert asked.done() is done
    assert await asked
    assert not await planner.answer(Logged(Mark("ab", 7), 5.0))


async def test_lag_of_silent_shards_is_reported_every_two_seconds() -> None:
    planner = planner_of(poll=AsyncMock(return_value=PollReply([progress()], [])), silent=lambda _: {SECOND: 60_000})
    reports = []
    for pause in (0.0, 1.0, 1.0):
        await asyncio.sleep(pause)
        step = await planner.answer(Next(at(first=1, second=1), 0.2))
        reports.append(dict(step.behind).get(SECOND))
    assert reports == [60_000, None, 60_000]


async def test_larger_micro_batch_is_awaited_up_to_the_delay_or_tip() -> None:
    clock = LoopClock()
    far, tip = (ShardProgress(FIRST, Position.after(10), 1, 900, behind, data=100) for behind in (60_000, 0))
    reply = PollReply([far], [])
    planner = planner_of(poll=AsyncMock(return_value=reply))
    planner.query.rows.planner.until_tip = clock.sleep  # type: ignore[method-assign]
    await planner.finished([Mark("ab", 1)], None, alone=True)
    offset, began = at(first=TRIM_HORIZON), clock.monotonic()
    assert (await planner.answer(Next(offset, 10.0))).end is not None
    assert clock.monotonic() == began, "the first one waits for nothing"
    while (step := await planner.answer(Next(offset, 10.0))).end is None:
        assert step.again, "its only source is asked again at once"
    assert clock.monotonic() == pytest.approx(began + 5.0)
    reply.shards[:] = [tip]
    assert (await planner.answer(Next(offset, 10.0))).end is not None
    assert clock.monotonic() == pytest.approx(began + 5.0)


async def test_shard_that_ends_quietly_is_not_read_while_others_wait() -> None:
    """Its later records would take up `maxRecordsPerTrigger`, so that the others never get to their ends."""
    clock, stopped, began = LoopClock(), list[frozenset[ShardKey]](), LoopClock().monotonic()

    async def poll(*_: object) -> PollReply:
        await clock.sleep(5.0)
        quiet = ShardProgress(FIRST, Position.after(1), 0, 0, 5, quiet=clock.monotonic() - began)
        through, records = (50, 9) if FIRST in stopped[-1] else (1, 0)
        return PollReply([quiet, ShardProgress(SECOND, Position.after(through), records, 100 * records, 5)], [])

    ends = AsyncMock(return_value=EndPositions(at(first=50, second=50)))
    planner = planner_of(poll=poll, ends=ends, still_quiet=lambda _, quiet: quiet, stop_reading=stopped.append)
    start = at(first=1, second=1)
    while (step := await planner.answer(Next(start, 0.2, available_now=True))).end is None:
        assert clock.monotonic() < began + 60
    assert step.end == at(first=1, second=50)
    assert stopped[-1] == {FIRST}


def test_last_record_before_an_end_within_an_event() -> None:
    ending = Ending(catch_up=False, ends=Bounds(), patience=60.0)
    ending.available_now()
    ending.set_targets(at(first=50), 0.0)
    last_of = {(FIRST, Position.after(1), Position.after(50)): 48}
    advance = Advance(ending, 60.0, lambda ranges: {each.key: last_of[each[:3]] for each in ranges}, lambda: 0.0)
    reply = PollReply([ShardProgress(FIRST, Position.after(70), 9, 900, 5, last=69)], [])
    assert advance.to(at(first=1), reply, None) == Offset({FIRST: Position.after(50)}, {FIRST: 48})


async def test_half_of_each_buffer_and_the_limits_of_all_hold() -> None:
    query = Query(FIRST, SECOND)
    query.buffers.groups = [({FIRST}, 8 * SIZE), ({SECOND}, 8 * SIZE)]
    for key, end in product((FIRST, SECOND), range(10, 110, 10)):
        query.buffers.add(key, end)
    query.planner.touch([FIRST, SECOND])
    offset = at(first=TRIM_HORIZON, second=TRIM_HORIZON)
    for limits, records in (((), 4), ((NO_LIMIT, 6), 3), ((3_100, NO_LIMIT), 3)):
        assert [each.records for each in (await query.poll(offset, *limits)).values()] == [records, records]


@given(
    st.lists(st.tuples(st.sampled_from([FIRST, SECOND]), st.integers(1, 20), st.integers(0, 9_000)), max_size=20),
    st.integers(1, 8_000),
)
def test_limit_of_data_holds_beyond_one_event(events: list[tuple[ShardKey, int, int]], max_data: int) -> None:
    async def main() -> None:
        query = Query(FIRST, SECOND)
        query.buffers.groups = [({FIRST}, 20_000), ({SECOND}, 5_000)]
        for number, (key, records, size) in enumerate(events, 1):
            query.buffers.indexes[key].append(10 * number, EVENT_OVERHEAD + size, records, 1.0, last=10 * number)
        query.planner.touch([FIRST, SECOND])
        offset, left = at(first=TRIM_HORIZON, second=TRIM_HORIZON), sum(records for _, records, _ in events)
        while left:
            told = {key: each for key, each in (await query.poll(offset, max_data)).items() if each.records}
            assert sum(each.data for each in told.values()) >= sum(each.records for each in told.values()) > 0
            if sum(each.data for each in told.values()) > max_data:
                ((key, each),) = told.items()
                assert each.through == query.buffers.indexes[key].portion(offset[key], 0, 0, some=True).through
            left -= sum(each.records for each in told.values())
            offset = Offset({**offset, **{key: each.through for key, each in told.items()}})

    run(main())


async def test_large_event_behind_an_idle_one_is_planned_whole() -> None:
    query = Query(FIRST)
    query.buffers.add(FIRST, 10, records=0)
    query.buffers.add(FIRST, 20, records=5)
    assert (await query.poll(Offset({FIRST: TRIM_HORIZON}), max_data=1))[FIRST].records == 5


async def test_wait_ends_with_records_at_the_tip_only() -> None:
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
    assert {key: each.records for key, each in (await query.poll(offset)).items()} == {FIRST: 2, SECOND: 1}


async def test_a_wait_for_the_tip_learns_what_ended_reading() -> None:
    query = Query(FIRST)
    query.failure.on_set(query.planner.wake)
    waiting = asyncio.create_task(query.planner.until_tip(50.0))
    await asyncio.sleep(1)
    query.failure.set(DataLossError("gone"))
    with pytest.raises(DataLossError, match="gone"):
        async with asyncio.timeout(0.1):
            await waiting


async def test_finished_shard_holds_no_other_within_the_skew() -> None:
    query = Query(FIRST, SECOND, max_skew=10.0)
    query.buffers.add(SECOND, 5, arrived=1_700_000_000_000)
    start = at(first=1, second=1)
    assert not (await query.poll(start))[SECOND].records
    query.planner.finish(frozenset({FIRST}))
    query.buffers.away = {FIRST}
    assert (await query.poll(start))[SECOND].records == 1
