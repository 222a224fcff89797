"""What a query planner answers beside the end of a micro-batch, and what it goes on with in the place of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import SystemClock
from kinesis_efo.decisions.ending import EndingState
from kinesis_efo.decisions.planning import PollReply, ShardProgress
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import FetcherError
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.access import Begin, Call, Logged, Next, Plan, Step
from kinesis_efo.run.query_ends import EndPositions
from kinesis_efo.run.query_planner import QueryPlanner

ORDERS, CHILD, CLICKS = ShardKey("orders", "a"), ShardKey("orders", "b"), ShardKey("clicks", "a")
AT, LATER, LAST = (Position.after(number) for number in (5, 9, 20))
HERE = FetcherAddress("here", 1)


class Query:
    """Has what it is told to have, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.progress = Progress()
        self.there: dict[ShardKey, Position] = {}
        self.tip: Offset | None = None
        self.found: EndPositions | None = None
        self.name: str | None = None
        self.error: Exception | None = None

    async def wait_held(self, at_most: float) -> bool:
        return True

    def leave_shards(self, shards: frozenset[ShardKey]) -> None: ...

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        self.asked.append(("poll", offset, at_most))
        return PollReply([ShardProgress(key, at, 1, 10, 7) for key, at in self.there.items() if at != offset.get(key)])

    def begin(self, offset: Offset) -> None:
        if self.error is not None:
            raise self.error
        self.progress.begin(offset)

    def finish(self, mark: Mark) -> bool:
        return self.progress.finish(mark)

    async def check_replay(self, begin: Offset, ranges: Sequence[ShardRange], end: Offset | None = None) -> None:
        self.asked.append(("check", begin, list(ranges)))
        self.progress.begin(begin, end)

    async def hash_ranges(self, shards: Collection[ShardKey]) -> dict[ShardKey, tuple[int, int]]:
        return dict.fromkeys(shards, (5, 2**128 - 1))

    async def ends(self, offset: Offset, at_most: float) -> EndPositions | None:
        self.asked.append(("ends", offset))
        return self.found

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        self.asked.append(("tips", offset))
        return self.tip

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        return {}

    def resume(self, offset: Offset) -> None:
        self.asked.append(("resume", offset))

    def planned(self, mark: Mark) -> None:
        self.asked.append(("planned", mark))

    def names(self) -> list[str]:
        return [asked[0] for asked in self.asked]


class Run:
    """Knows where streams begin."""

    clock = SystemClock()
    reading = nobody = False

    def __init__(self) -> None:
        self.begun: list[list[str]] = []

    async def initial(self, start: Start, names: Collection[str], query: Any) -> Offset:
        return await self.added(start, names)

    async def added(self, start: Start, names: Collection[str]) -> Offset:
        self.begun.append(sorted(names))
        return Offset({ShardKey(name, "a"): start.position or LATER for name in names})

    async def placed(self, ranges: Sequence[ShardRange], at_most: float, query: str) -> list[FetcherAddress | None]:
        return [None if self.nobody else HERE] * len(ranges)


class Planned:
    """A query planner with what it asks."""

    def __init__(self, streams: Collection[str] = ("orders",), **options: str) -> None:
        self.query, self.run = Query(), Run()
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        self.planner = QueryPlanner(self.run, self.query, "q", parsed, streams)  # type: ignore[arg-type]

    def ask(self, call: Call[Any]) -> Any:
        return asyncio.run(self.planner.answer(call))

    def next(self, position: Offset, **more: Any) -> Step:
        step: Step = self.ask(Next(position, 0.01, **more))
        return step


def test_a_stream_that_the_checkpoint_does_not_know_begins_in_a_micro_batch_that_reads_nothing() -> None:
    planned = Planned(["orders", "clicks"])
    planned.query.there = {ORDERS: LAST}
    known = Offset({ORDERS: AT})
    both = Offset({ORDERS: AT, CLICKS: TRIM_HORIZON})
    assert planned.next(known).end == both
    assert planned.next(known).end == both
    assert planned.run.begun == [["clicks"]], "where it begins is chosen once"
    assert "poll" not in planned.query.names()
    assert planned.next(both).end == Offset({ORDERS: LAST, CLICKS: TRIM_HORIZON})
    assert planned.ask(Plan(known, both, 0.0)).shards == []


def test_catching_up_reads_to_the_tips_and_leaves_new_streams_to_the_next_run() -> None:
    planned = Planned(["orders", "clicks"], catchUp="true")
    planned.query.tip = Offset({ORDERS: LAST})
    end = planned.next(Offset({ORDERS: AT})).end
    assert end == Offset({ORDERS: LAST, CLICKS: TRIM_HORIZON})


def test_only_strict_queries_ask_of_which_streams_aggregates_may_be_left_out() -> None:
    plan = Plan(Offset({ORDERS: AT}), Offset({ORDERS: LATER}), 0.0)
    assert Planned(deaggregate="strict").ask(plan).hash_ranges == [(ORDERS, (5, 2**128 - 1))]
    assert Planned().ask(plan).hash_ranges == []
    nothing = Plan(Offset({ORDERS: AT}), Offset({ORDERS: AT}), 0.0)
    assert Planned(deaggregate="strict").ask(nothing).hash_ranges == []


def test_ranges_say_who_reads_them_and_how_large_they_are_if_that_is_known() -> None:
    planned = Planned()
    planned.query.there = {ORDERS: LATER}
    begin = Offset({ORDERS: AT, CHILD: AT})
    end = planned.next(begin).end
    assert end is not None
    (served,) = planned.ask(Plan(begin, end, 0.0, first=True)).served(begin.ranges_to(end))
    assert tuple(served.wanted) == (ORDERS, AT, LATER, None)
    assert (served.fetcher, served.bytes) == (HERE, 10)
    assert planned.query.asked[-1] == ("check", begin, [served.wanted])
    assert Planned().ask(Plan(begin, end, 0.0)).shards == [(ORDERS, 0, None)]


def test_a_run_that_takes_anothers_place_is_told_what_it_has_to_know() -> None:
    planned = Planned()
    kept = Offset({ORDERS: AT})
    assert planned.ask(Begin(resumed=kept, planned=Mark("ab", 3), kept=kept)) is None
    assert planned.query.asked == [("planned", Mark("ab", 3)), ("resume", kept), ("check", kept, [])]


def again(state: EndingState | None, **options: str) -> Planned:
    """The planner of the next run."""
    assert state is not None
    planned = Planned(**options)
    planned.ask(Begin(ending=state))
    return planned


def test_the_ends_of_a_query_are_the_same_in_the_next_run() -> None:
    first = Planned()
    first.query.found = EndPositions({ORDERS: LATER})
    first.query.there = {ORDERS: LAST}
    step = first.next(Offset({ORDERS: AT}), available_now=True)
    assert step.end == Offset({ORDERS: LATER})
    second = again(step.ending)
    second.query.there = {ORDERS: LAST}
    done = second.next(Offset({ORDERS: LATER}), available_now=True)
    assert (done.end, done.again) == (None, False)
    assert "ends" not in second.query.names(), "they are not looked for anew: the tips may lie behind them by now"


def test_ends_that_were_not_known_are_looked_for_again_in_the_next_run() -> None:
    first = Planned()
    step = first.next(Offset({ORDERS: AT, CHILD: AT}), available_now=True)
    assert step.again
    second = again(step.ending)
    second.query.found = EndPositions({ORDERS: LATER, CHILD: SHARD_END})
    second.query.there = {ORDERS: LAST}
    assert second.next(Offset({ORDERS: AT, CHILD: AT}), available_now=True).end == Offset({ORDERS: LATER, CHILD: AT})
    assert second.query.names()[0] == "ends"


def test_a_query_that_has_caught_up_does_not_catch_up_again_in_the_next_run() -> None:
    first = Planned(catchUp="true")
    first.query.tip = Offset({ORDERS: LATER})
    step = first.next(Offset({ORDERS: AT}))
    assert (step.end, step.bytes) == (Offset({ORDERS: LATER}), None)
    second = again(step.ending, catchUp="true")
    second.query.there = {ORDERS: LAST}
    assert second.next(Offset({ORDERS: LATER})).end == Offset({ORDERS: LAST}), "as any query that goes on"
    assert "tips" not in second.query.names()


def test_where_a_query_ends_that_was_to_end_before_the_tip_it_ends_in_the_next_run_too() -> None:
    options = {"catchUp": "true", "endingPosition": "AT_TIMESTAMP:1704067200000"}
    first = Planned(**options)
    first.query.tip = Offset({ORDERS: LATER})
    second = again(first.next(Offset({ORDERS: AT})).ending, **options)
    second.query.there = {ORDERS: LAST}
    assert second.next(Offset({ORDERS: LATER})).end is None
    assert second.query.asked == []


def test_a_step_says_who_serves_its_micro_batch_so_that_nobody_need_ask() -> None:
    planned = Planned(deaggregate="strict")
    planned.query.there = {ORDERS: LATER}
    begin = Offset({ORDERS: AT})
    step = planned.next(begin)
    assert step.end is not None
    assert step.plan == planned.ask(Plan(begin, step.end, 0.0))
    planned.run.nobody = True
    assert planned.next(begin).plan is None, "it is asked for until somebody reads each shard"


def test_driver_report_finishes_the_planned_micro_batch() -> None:
    planned = Planned()
    planned.query.there = {ORDERS: LATER}
    mark = Mark("ab", 6)
    begin = Offset({ORDERS: AT}, mark=Mark("ab", 5))
    end = planned.next(begin).end
    assert end is not None
    assert end.mark == mark
    asyncio.run(planned.planner.finished([Mark("ab", 5), Mark("other", 6)], "archive"))
    assert planned.query.progress.finished is begin
    assert planned.query.name is None
    asyncio.run(planned.planner.finished([mark], "archive"))
    assert planned.query.progress.finished is end
    assert planned.query.name == "archive"
    assert planned.ask(Logged(mark)) is True
    assert planned.ask(Logged(Mark("ab", 7))) is False
    # Of two ends with one mark, Spark has the one that was told later.
    later = Offset({ORDERS: LAST}, mark=Mark("ab", 7))
    for told in (Offset({ORDERS: LATER}, mark=Mark("ab", 7)), later):
        planned.ask(Plan(end, told, 0.0))
    asyncio.run(planned.planner.finished([Mark("ab", 7)], None))
    assert planned.query.progress.finished is later


def test_finish_that_fails_is_made_again() -> None:
    planned = Planned()
    at = Offset({ORDERS: AT}, mark=Mark("ab", 1))
    end = Offset({ORDERS: LATER}, mark=Mark("ab", 2))
    planned.ask(Plan(at, end, 0.0, first=True))
    planned.query.error = FetcherError("not now")
    for _ in range(2):
        with pytest.raises(FetcherError):
            planned.next(end)
    assert planned.query.progress.finished is at
    planned.query.error = None
    planned.next(end)
    assert planned.query.progress.finished is end


def test_next_run_knows_the_present_micro_batch() -> None:
    planned = Planned()
    at = Offset({ORDERS: AT}, mark=Mark("ab", 5))
    end = Offset({ORDERS: LATER}, mark=Mark("ab", 6))
    planned.ask(Begin(kept=at, end=end))
    assert planned.query.progress.finished is at
    asyncio.run(planned.planner.finished([Mark("ab", 6)], None))
    assert planned.query.progress.finished is end


def test_begin_after_a_faster_call_changes_nothing() -> None:
    """The thread that joins the next run, and the one that plans, call it at the same time."""
    planned = Planned()
    planned.query.there = {ORDERS: LAST}
    at, here = Offset({ORDERS: AT}, mark=Mark("ab", 5)), Offset({ORDERS: LATER}, mark=Mark("ab", 6))
    end = planned.next(here).end
    for late in (Begin(kept=at, end=here), Begin(kept=here, end=here)):
        planned.ask(late)
        assert (planned.query.progress.finished, planned.query.progress.planned) == (here, [end])


def test_next_run_finishes_what_its_predecessor_may_not_have() -> None:
    """The planner has asked for more from `end` when its run dies: the rows of the lease table may not be there yet."""
    planned = Planned()
    end = Offset({ORDERS: LATER}, mark=Mark("ab", 6))
    planned.ask(Begin(kept=end, end=end))
    assert planned.query.progress.planned == [end]
    planned.next(end)
    assert planned.query.progress.planned == []


def test_checkpoint_without_marks_finishes_its_first_micro_batch() -> None:
    planned = Planned()
    begin, end = Offset({ORDERS: AT}), Offset({ORDERS: LATER})
    planned.ask(Begin(mark=Mark("ab"), resumed=end))
    planned.ask(Plan(begin, end, 0.0, first=True))
    assert planned.query.progress.finished is begin
    planned.query.there = {ORDERS: LAST}
    assert planned.next(end).end == Offset({ORDERS: LAST}, mark=Mark("ab", 1))
    assert planned.query.progress.finished is end
    assert planned.query.progress.checkpoint == "ab"


def test_a_query_waits_for_nothing_while_another_source_has_rows_unless_it_ends() -> None:
    planned = Planned()
    at = Offset({ORDERS: AT})
    planned.next(at, hurry=True)
    planned.next(at)
    assert [asked[2] for asked in planned.query.asked] == [0.0, 0.01]
    planned.query.found = EndPositions({ORDERS: LATER})
    planned.next(at, hurry=True, available_now=True)
    assert planned.query.asked[-1] == ("poll", at, 0.01)
