"""While a query is behind, its micro-batches wait for more records: by the real planners, in virtual time."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.planning import BEHIND_MILLIS, PollReply
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.fetcher.budget import EVENT_OVERHEAD
from kinesis_efo.fetcher.work import RowKey
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Mark, Offset, Position, ShardKey
from kinesis_efo.run.access import Next
from kinesis_efo.run.micro_batches import MicroBatchPlanner
from kinesis_efo.run.query_ends import EndPositions
from kinesis_efo.run.query_planner import QueryPlanner
from tests.support.virtual_time import LoopClock, run

KEYS = tuple(ShardKey("orders", f"shardId-00000000000{number}") for number in range(3))
FIRST, SECOND, _ = KEYS
SIZE = EVENT_OVERHEAD + 1000
POLL_SECONDS, POLLING_DELAY = 0.2, 0.01
FAR = 600_000
"""Milliseconds of a shard that is far behind."""


class Arrival(NamedTuple):
    """An event: seconds after the one before, its shard, its records, and by how many milliseconds the shard is behind then."""

    after: float
    key: ShardKey
    records: int = 1
    behind: int = FAR


class Batch(NamedTuple):
    """A micro-batch: when Spark began to ask for it, when it was planned, and how far it goes."""

    asked_at: float
    at: float
    end: Offset


class Shards:
    """The rows of the shards, and what a `QueryPlanner` asks of its query."""

    def __init__(self, budget: int = 1 << 40) -> None:
        self.indexes = {key: EventIndex(TRIM_HORIZON) for key in KEYS}
        self.behind: dict[ShardKey, int] = {}
        self.quiets: dict[ShardKey, float] = {}
        self.budget = budget
        self.ends_at: EndPositions | None = None
        self.name: str | None = None
        self.starting: list[ShardKey] = []
        self.silences: dict[ShardKey, int] = {}
        self.planner = MicroBatchPlanner(self.row, lambda _key, _at: None, LoopClock(), lambda: None)
        self.progress = Progress()

    def add(self, number: int, each: Arrival, *, ends: bool = False) -> None:
        now = LoopClock().monotonic()
        end = None if ends else number
        self.indexes[each.key].append(end, SIZE * each.records, each.records, now, last=number)
        self.behind[each.key] = each.behind
        self.planner.touch([each.key])
        if each.records or ends:
            self.planner.wake()

    # -- the rows

    def row(self, key: ShardKey, position: Position) -> Any:
        quiet = self.quiets.get(key, 0.0)
        return SimpleNamespace(
            index=self.indexes[key], behind=self.behind.get(key), quiet=lambda _now: quiet, fetcher="", room=self.budget,
            key=RowKey(None, key),
        )  # fmt: skip

    # -- the query

    async def wait_held(self, at_most: float) -> bool:
        return True

    def silent(self, offset: Offset) -> dict[ShardKey, int]:
        return self.silences

    def stop_reading(self, shards: frozenset[ShardKey]) -> None: ...

    def pause(self, *, yes: bool) -> None: ...

    def rewrite_lease_rows(self, offset: Offset) -> None: ...

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        return PollReply(await self.planner.poll(offset, max_bytes, max_records, at_most), self.starting)

    async def until_tip(self, at_most: float) -> None:
        await self.planner.until_tip(at_most)

    def plan(self, end: Offset) -> None:
        self.progress.plan(end)

    def begin(self, offset: Offset) -> None:
        self.progress.begin(offset)

    def finish(self, mark: Mark) -> bool:
        return self.progress.finish(mark)

    async def ends(self, offset: Offset, at_most: float) -> EndPositions | None:
        return self.ends_at

    def last_records(self, ranges: Sequence[Any]) -> dict[ShardKey, int]:
        return {}


class Run:
    """What a `QueryPlanner` asks of its run."""

    def __init__(self) -> None:
        self.clock, self.limits = LoopClock(), KINESIS_LIMITS

    async def placed(self, ranges: Sequence[Any], at_most: float, query: str) -> list[None]:
        return [None] * len(ranges)


class Spark:
    """Asks for micro-batches as a stream reader does, and takes some time for each."""

    def __init__(
        self, shards: Shards, *, alone: bool = True, ends: bool = False, wait: float = POLL_SECONDS, **options: str
    ) -> None:
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        run: Any = Run()
        query: Any = shards
        self.planner = QueryPlanner(run, query, "q", parsed, ["orders"])
        self.offset = Offset(dict.fromkeys(KEYS, TRIM_HORIZON), mark=Mark("ab", 1))
        self.batches: list[Batch] = []
        self.nothing: list[float] = []
        self.calls: list[float] = []
        self.over = False
        self.hurry = False
        self._alone = alone
        self._ends = ends
        self._wait = wait

    async def ask(self, *, again: bool = True) -> Offset | None:
        """One `latestOffset`."""
        asked_at = LoopClock().monotonic()
        while True:
            self.calls.append(LoopClock().monotonic())
            call = Next(self.offset, self._wait, hurry=self.hurry, available_now=self._ends)
            step = await self.planner.answer(call)
            if step.end is not None:
                self.batches.append(Batch(asked_at, LoopClock().monotonic(), step.end))
                return step.end
            if not (step.again and again):
                self.nothing.append(LoopClock().monotonic())
                return None

    async def read(self, seconds: Callable[[], float] = lambda: 0.05) -> None:
        """Read until it is over."""
        while not self.over:
            if (end := await self.ask()) is not None:
                await asyncio.sleep(seconds())
                self.offset = end
                await self.planner.finished([end.mark] if end.mark else [], None, alone=self._alone)
            elif self._ends:
                return
            else:
                await asyncio.sleep(POLLING_DELAY)


def simulated(
    arrivals: Sequence[Arrival], seconds: Callable[[], float] = lambda: 0.05, budget: int = 1 << 40, **options: Any
) -> tuple[Spark, dict[int, tuple[float, Arrival]]]:
    """Read some events; returns Spark, and when each event came."""

    async def main() -> tuple[Spark, dict[int, tuple[float, Arrival]]]:
        shards = Shards(budget)
        spark = Spark(shards, **options)
        came = {}
        reading = asyncio.create_task(spark.read(seconds))
        # The first micro-batch waits for nothing: only the driver's word of it says that there is no other source.
        shards.add(1, Arrival(0, FIRST))
        await asyncio.sleep(5)
        for number, each in enumerate(arrivals, 2):
            await asyncio.sleep(each.after)
            shards.add(number, each)
            came[number] = LoopClock().monotonic(), each
        await asyncio.sleep(10)
        # A slow sink with a small limit may need longer for all of it.
        with_records = [(Position.after(number), each.key) for number, (_, each) in came.items() if each.records]
        for _ in range(1000):
            if all(spark.offset[key].reaches(at) for at, key in with_records):
                break
            await asyncio.sleep(1)
        spark.over = True
        await reading
        assert spark.batches[0].at == 1000.0
        del spark.batches[0]
        return spark, came

    return run(main())


def contents(spark: Spark, came: dict[int, tuple[float, Arrival]]) -> list[list[tuple[float, Arrival]]]:
    """The events with records of each micro-batch, and when they came."""
    found, before = [], dict.fromkeys(KEYS, 1)
    for batch in spark.batches:
        after = {key: 1 if at == TRIM_HORIZON else at.value for key, at in batch.end.items()}
        assert all(after[key] >= at for key, at in before.items())
        read = [number for number, (_, each) in came.items() if before[each.key] < number <= after[each.key]]
        found.append([came[number] for number in read if came[number][1].records])
        before = after
    return found


ARRIVALS = st.builds(
    Arrival,
    st.sampled_from([0.01, 0.1, 0.3, 0.6, 1.5]),
    st.sampled_from(KEYS),
    st.integers(0, 3),
    st.sampled_from([0, BEHIND_MILLIS, BEHIND_MILLIS + 1, FAR]),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(
    [Arrival(0.01, FIRST, records) for records in (1, 1, 2, 2, 3, 2, 3, 2)],
    [2.0],
    0.0,
    {"maxRecordsPerTrigger": "4"},
    True,
)
@given(
    st.lists(ARRIVALS, max_size=40),
    st.lists(st.sampled_from([0.0, 0.03, 0.4, 2.0]), min_size=1),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.sampled_from([{}, {"maxRecordsPerTrigger": "4"}, {"budget": 8 * SIZE}, {"minBytesPerTrigger": "2k"}]),
    st.booleans(),
)
def test_waits_are_bounded_and_lose_no_record(
    arrivals: list[Arrival], seconds: list[float], delay: float, limits: dict[str, Any], alone: bool
) -> None:
    takes = cycle(seconds)
    spark, came = simulated(
        arrivals, lambda: next(takes), maxTriggerDelay=f"{delay * 1000:.0f}ms", alone=alone, **limits
    )
    # A query that may have other sources is asked again after Spark's polling delay.
    slack, planned_at = 1e-6 if alone else POLL_SECONDS + POLLING_DELAY, 1000.0
    read = contents(spark, came)
    assert sum(map(len, read)) == sum(each.records > 0 for each in arrivals), "each event is in one micro-batch"
    for batch, events in zip(spark.batches, read, strict=True):
        if events:
            could_begin = max(batch.asked_at, min(at for at, _ in events))
            assert batch.at <= max(could_begin, planned_at + delay) + slack
            at_tip = [at for at, each in events if each.behind <= BEHIND_MILLIS and at > batch.asked_at]
            if "minBytesPerTrigger" not in limits:
                assert all(batch.at == at for at in at_tip), "records at the tip wait for nothing"
        planned_at = batch.at


def test_micro_batch_reports_the_lag_of_silent_shards() -> None:
    async def main() -> None:
        shards = Shards(1 << 40)
        spark = Spark(shards)
        shards.add(1, Arrival(0, FIRST, behind=0))
        shards.silences = {SECOND: 60_000}
        step = await spark.planner.answer(Next(spark.offset, POLL_SECONDS))
        lags = dict(step.behind)
        assert (lags[FIRST], lags[SECOND]) == (0, 60_000)

    run(main())
