"""While a query is behind, its micro-batches wait for more records: by the real planners, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.planning import BEHIND_MILLIS, PollReply
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.fetcher.budget import EVENT_OVERHEAD
from kinesis_efo.fetcher.micro_batches import MicroBatchPlanner
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey
from kinesis_efo.run.access import Next
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
    """The buffers of the shards; implements `Buffers`, and what a `QueryPlanner` asks of its query."""

    def __init__(self, budget: int = 1 << 40) -> None:
        self.indexes = {key: EventIndex(TRIM_HORIZON) for key in KEYS}
        self.behind: dict[ShardKey, int] = {}
        self.quiets: dict[ShardKey, float] = {}
        self.budget = budget
        self.ends_at: EndPositions | None = None
        self.name: str | None = None
        self.starting: list[ShardKey] = []
        self.planner = MicroBatchPlanner(self, LoopClock(), lambda: None)
        self.progress = Progress()

    def add(self, number: int, each: Arrival, *, ends: bool = False) -> None:
        now = LoopClock().monotonic()
        end = None if ends else number
        self.indexes[each.key].append(end, SIZE * each.records, each.records, now, last=number)
        self.behind[each.key] = each.behind
        self.planner.touch([each.key])
        if each.records or ends:
            self.planner.wake()

    # -- the buffers

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        return self.indexes[key]

    def millis_behind(self, key: ShardKey) -> int | None:
        return self.behind.get(key)

    def quiet(self, key: ShardKey) -> float:
        return self.quiets.get(key, 0.0)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return None

    def budgets(self, keys: Collection[ShardKey]) -> Iterable[tuple[Collection[ShardKey], int]]:
        return [(keys, self.budget)]

    # -- the query

    async def wait_held(self, at_most: float) -> bool:
        return True

    def leave_shards(self, shards: frozenset[ShardKey]) -> None: ...

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        return PollReply(await self.planner.poll(offset, max_bytes, max_records, at_most), self.starting)

    async def until_tip(self, at_most: float) -> None:
        await self.planner.until_tip(at_most)

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
        self.clock = LoopClock()

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


def sizes(spark: Spark, came: dict[int, tuple[float, Arrival]]) -> list[int]:
    """The number of events of each micro-batch."""
    return list(map(len, contents(spark, came)))


BACKLOG = [Arrival(0.1, KEYS[number % 2]) for number in range(60)]


@pytest.mark.parametrize(
    ("options", "most", "least"),
    [
        ({}, 8, 5),
        ({"maxTriggerDelay": "0s"}, 60, 50),
        ({"maxTriggerDelay": "2s"}, 5, 3),
        ({"alone": False}, 60, 50),
        ({"maxRecordsPerTrigger": "3"}, 30, 15),
        ({"budget": 8 * SIZE}, 16, 10),
        ({"minBytesPerTrigger": "3k"}, 30, 15),
    ],
)
def test_a_query_that_is_behind_has_fewer_micro_batches_with_the_same_records(
    options: dict[str, Any], most: int, least: int
) -> None:
    spark, came = simulated(BACKLOG, **options)
    assert least <= len(spark.batches) <= most
    assert sum(sizes(spark, came)) == len(BACKLOG)


def test_a_query_at_the_tip_waits_for_nothing() -> None:
    spark, came = simulated([each._replace(behind=BEHIND_MILLIS) for each in BACKLOG])
    assert [batch.at for batch in spark.batches] == [at for at, _ in came.values()]


def test_one_shard_at_its_tip_waits_for_no_other() -> None:
    spark, came = simulated([Arrival(0.1, FIRST), Arrival(0.2, FIRST), Arrival(0.05, SECOND, behind=0), *BACKLOG])
    times = [at for at, _ in came.values()]
    assert [batch.at for batch in spark.batches][:2] == [times[0], times[2]]
    assert sizes(spark, came)[:2] == [1, 2]


def test_with_a_least_size_a_query_waits_at_the_tip_too() -> None:
    spark, came = simulated([each._replace(behind=0) for each in BACKLOG], minBytesPerTrigger="1g")
    assert len(spark.batches) <= 8
    assert sum(sizes(spark, came)) == len(BACKLOG)
    times = [at for at, _ in came.values()]
    calls = [at for at in spark.calls if times[0] <= at <= times[-1]]
    assert len(calls) < 40, "not one for each event"


def test_a_poll_timeout_that_is_long_delays_no_full_micro_batch() -> None:
    spark, came = simulated(BACKLOG, budget=8 * SIZE, maxTriggerDelay="10s", wait=10.0)
    (first, *_), (at, *_) = ([at for at, _ in came.values()], [batch.at for batch in spark.batches])
    # The first event comes long after the micro-batch before, but not long enough.
    assert at - first <= 4 * 0.1 + POLL_SECONDS


def test_idle_checkpoints_do_not_prolong_the_wait_for_records() -> None:
    idle = [Arrival(1, SECOND, records=0, behind=0) for _ in range(40)]
    options = {"minBytesPerTrigger": "1g", "maxTriggerDelay": "10s", "idleCheckpointInterval": "3s"}
    spark, came = simulated([*idle[:15], Arrival(0.5, FIRST), *idle], **options)
    (read,) = [batch for batch in spark.batches if batch.end[FIRST] == Position.after(17)][:1]
    assert read.at - came[17][0] <= 10
    assert len([batch for batch in spark.batches if batch.at < came[17][0]]) > 3


def test_a_query_that_may_have_other_sources_says_that_there_is_nothing_instead_of_holding_them_up() -> None:
    spark, came = simulated(BACKLOG, alone=False, minBytesPerTrigger="1g")
    assert sum(sizes(spark, came)) == len(BACKLOG)
    assert len(spark.batches) <= 8
    asked = sorted([*spark.nothing, *(batch.at for batch in spark.batches)])
    begun = next(iter(came.values()))[0]
    assert max(later - at for at, later in pairwise(asked) if at >= begun) < POLL_SECONDS + 0.06, (
        "not even the time of the micro-batch before"
    )


@pytest.mark.parametrize("case", ["hurry", "ends", "a shard ends", "children start", "all but far from their ends"])
def test_a_micro_batch_waits_for_nothing_while_others_have_rows_and_at_an_end(case: str) -> None:
    async def main() -> None:
        shards = Shards()
        spark = Spark(shards, ends="end" in case and "shard" not in case)
        shards.ends_at = EndPositions(dict.fromkeys(KEYS, Position.after(2)))
        shards.add(1, Arrival(0, FIRST))
        end = await spark.ask()
        assert end is not None
        assert end.mark is not None
        await spark.planner.finished([end.mark], None, alone=True)
        spark.offset = end
        began = LoopClock().monotonic()
        if case == "a shard ends":
            shards.add(2, Arrival(0, FIRST))
            shards.add(3, Arrival(0, SECOND, 0), ends=True)
        else:
            for number in (2, 3) if case != "all but far from their ends" else ():
                shards.add(number, Arrival(0, FIRST))
            spark.hurry = case == "hurry"
            if case == "children start":
                shards.starting = [ShardKey("orders", "child")]
            if case.startswith("all but"):
                shards.ends_at = None
                shards.add(2, Arrival(0, SECOND))
                spark.planner._ending.found(dict.fromkeys(KEYS, Position.after(9)), 0.0)
        assert await spark.ask() is not None
        waited = LoopClock().monotonic() - began
        assert waited == pytest.approx(1.0 if case.startswith("all but") else 0.0)

    run(main())


def test_a_shard_that_ends_at_its_target_makes_no_micro_batch_of_its_own_while_others_wait() -> None:
    async def main() -> None:
        shards = Shards()
        spark = Spark(shards, ends=True)
        shards.ends_at = EndPositions({FIRST: Position.after(9), SECOND: SHARD_END})
        shards.add(1, Arrival(0, FIRST))
        end = await spark.ask()
        assert end is not None
        assert end.mark is not None
        await spark.planner.finished([end.mark], None, alone=True)
        spark.offset = end
        shards.add(2, Arrival(0, FIRST))
        shards.add(3, Arrival(0, SECOND, 0), ends=True)
        began = LoopClock().monotonic()
        end = await spark.ask()
        assert end is not None
        assert (end[FIRST], end[SECOND]) == (Position.after(2), SHARD_END)
        assert LoopClock().monotonic() - began == pytest.approx(1.0)

    run(main())


def test_shard_whose_records_wait_does_not_end_as_quiet() -> None:
    async def main() -> None:
        shards = Shards()
        spark = Spark(shards, ends=True, minBytesPerTrigger="1g", maxTriggerDelay="20s")
        shards.ends_at = EndPositions({FIRST: Position.after(9), SECOND: Position.after(9)})
        shards.quiets[FIRST] = 5.0
        shards.add(1, Arrival(0, FIRST, 0))
        shards.add(1, Arrival(0, SECOND))
        end = await spark.ask()
        assert end is not None
        assert end.mark is not None
        await spark.planner.finished([end.mark], None, alone=True)
        spark.offset = end
        await asyncio.sleep(1)
        shards.add(3, Arrival(0, FIRST))
        for _ in range(200):
            if (end := await spark.ask(again=False)) is not None:
                break
            await asyncio.sleep(0.1)
        assert end is not None
        assert end[FIRST] == Position.after(3)

    run(main())


def test_a_stop_is_heard_while_a_micro_batch_waits() -> None:
    """The stream reader looks between two calls whether it has to end."""

    async def main() -> None:
        shards = Shards()
        spark = Spark(shards)
        shards.add(1, Arrival(0, FIRST))
        end = await spark.ask()
        assert end is not None
        assert end.mark is not None
        await spark.planner.finished([end.mark], None, alone=True)
        spark.offset = end
        shards.add(2, Arrival(0, FIRST))
        began = LoopClock().monotonic()
        assert await spark.ask(again=False) is None
        assert LoopClock().monotonic() - began <= POLL_SECONDS + 1e-9

    run(main())


def test_the_positions_of_idle_shards_outlast_a_wait() -> None:
    spark, _ = simulated([Arrival(0.1, FIRST), Arrival(0.1, FIRST), Arrival(0.1, SECOND, 0, 0), Arrival(0.1, FIRST)])
    assert {key: at.value for key, at in spark.batches[1].end.items() if at != TRIM_HORIZON} == {FIRST: 5, SECOND: 4}


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
def test_no_wait_is_longer_than_the_delay_or_loses_a_record(
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
