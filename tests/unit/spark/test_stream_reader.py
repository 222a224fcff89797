"""The stream reader's planning, in the order in which Spark 4.0 and 4.3 call it, against a scripted fetcher."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.planning import PollReply, ShardProgress
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import ConfigurationError, DataLossError, OptionsError, RetriesExhaustedError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.marks import Mark
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import LISTENS
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.access import Logged, Next, Plan
from kinesis_efo.run.query_ends import EndPositions
from kinesis_efo.run.query_planner import QueryPlanner
from kinesis_efo.spark import stream_planner, stream_reader
from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.spark.stream_planner import StreamPlanner
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from kinesis_efo.tasks.compat import SPARK_VERSION, ReadAllAvailable
from tests.support.fetched import after, key
from tests.support.world import wait_until

pytestmark = pytest.mark.spark

HERE, THERE, PLANNER = (FetcherAddress("here", port) for port in (1, 2, 3))
START = Position.at_timestamp(1_700_000_000_000)
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
ORDERS = StreamRef("orders", "orders", ARN, f"{ARN}/consumer/lake:1")
MANIFEST = Manifest("lake", "dev", "us-east-1", "leases", {"orders": ORDERS}, "manifest.json", {"orders": "orders"})


class Fetcher:
    """Answers polls from what was scripted: how far each shard goes, and with how many records."""

    def __init__(self) -> None:
        self.polls: list[tuple[Offset, int, int]] = []
        self.timeouts: list[float] = []
        self.commits: list[Offset] = []
        self.checked: list[tuple[Offset, list[ShardRange]]] = []
        self.resumed: list[Offset] = []
        self.marks: list[str] = []
        self.there: dict[ShardKey, tuple[Position, int]] = {}
        self.starting: list[ShardKey] = []
        self.finished: list[ShardKey] = []
        self.found: list[Offset | None] = []
        self.ending: list[EndPositions | None] = []
        self.cut: dict[ShardRange, int] = {}
        self.lasts: dict[ShardKey, int] = {}
        self.quiet = 0.0
        self.behind = 5
        self.held = [True]

    def wait_held(self, *, timeout: float) -> bool:
        assert 0 < timeout < 60
        if len(self.held) > 1:
            return self.held.pop(0)
        return self.held[0]

    def poll(self, offset: Offset, *, max_bytes: int, max_records: int, timeout: float) -> PollReply:
        self.polls.append((offset, max_bytes, max_records))
        self.timeouts.append(timeout)
        shards = []
        for shard, at in offset.items():
            through, records = self.there.get(shard, (at, 0))
            if at.reaches(through):
                through, records = at, 0
            last = self.lasts.get(shard) if records else None
            shards.append(
                ShardProgress(
                    shard,
                    through,
                    records,
                    100 * records,
                    self.behind,
                    last,
                    0.0 if records else self.quiet,
                    20 * records,
                )
            )
        return PollReply(shards, [s for s in self.starting if s not in offset], self.finished)

    def commit(self, offset: Offset) -> None:
        self.commits.append(offset)

    def check_replay(self, begin: Offset, ranges: list[ShardRange]) -> None:
        self.checked.append((begin, ranges))

    def resume(self, offset: Offset) -> None:
        self.resumed.append(offset)

    def planned(self, mark: Mark) -> None:
        self.marks.append(str(mark))

    def ends(self, offset: Offset, *, timeout: float) -> EndPositions | None:
        return self.ending.pop(0) if len(self.ending) > 1 else self.ending[0]

    def last_records(self, ranges: list[ShardRange]) -> dict[ShardKey, int]:
        return {wanted.key: self.cut[wanted] for wanted in ranges if wanted in self.cut}

    def tips(self, offset: Offset, *, timeout: float) -> Offset | None:
        return self.found.pop(0)


class AsyncQuery:
    """What a query planner asks of a query, answered by a script."""

    def __init__(self, script: Fetcher) -> None:
        self.script = script
        self.progress = Progress()

    async def wait_held(self, at_most: float) -> bool:
        return self.script.wait_held(timeout=at_most)

    def leave_shards(self, shards: frozenset[ShardKey]) -> None: ...

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        return self.script.poll(offset, max_bytes=max_bytes, max_records=max_records, timeout=at_most)

    def plan(self, end: Offset) -> None:
        self.progress.plan(end)

    def begin(self, offset: Offset) -> None:
        if self.progress.begin(offset):
            self.script.commit(offset)

    def finish(self, mark: Mark) -> bool:
        if not self.progress.finish(mark) or (offset := self.progress.finished) is None:
            return False
        self.script.commit(offset)
        return True

    async def check_replay(
        self, begin: Offset, ranges: list[ShardRange], end: Offset | None, *, repeated: bool = True
    ) -> None:
        self.progress.begin(begin, end)
        self.script.check_replay(begin, ranges)

    async def ends(self, offset: Offset, at_most: float) -> EndPositions | None:
        return self.script.ends(offset, timeout=at_most)

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        return self.script.tips(offset, timeout=at_most)

    def last_records(self, ranges: list[ShardRange]) -> dict[ShardKey, int]:
        return self.script.last_records(ranges)

    def resume(self, offset: Offset) -> None:
        self.script.resume(offset)

    def planned(self, mark: Mark) -> None:
        self.script.planned(mark)


class Reader(KinesisStreamReader):
    """A reader with a query planner, and without a fetcher of its own."""

    def __init__(self, initial: Mapping[ShardKey, Position], *, marked: bool = False, **options: str) -> None:
        super().__init__(SourceOptions.parse({"manifest": "m.json", **options}), MANIFEST)
        self.marked = marked
        self.fetcher = Fetcher()
        self.initial_offsets = 0
        self.late = 0
        self.waited: list[float] = []
        self.fetchers: dict[ShardKey, FetcherAddress | None] = {}
        self.started = False
        self.clock = SimpleNamespace(monotonic=lambda: time.monotonic(), sleep=asyncio.sleep)
        self.words: list[dict[str, Any]] = []
        """The driver's, which come while a call waits for them."""
        self.unfinished: Mark | None = None
        self.reading = False
        self.secret, self.query_name = "s", "q"
        self._start_at = Offset(initial)
        query: Any = AsyncQuery(self.fetcher)
        self.planner = QueryPlanner(self, query, "q", self._options, MANIFEST.streams)
        run: Any = self
        self.here = StreamPlanner(self._options, MANIFEST, lambda: run)
        self.__dict__["_planner"] = self.here
        if not marked:
            # Offsets are compared whole here. Marks have tests of their own.
            self.here._run._mark = None  # type: ignore[assignment]

    def start(self) -> None:
        self.started = True

    def initialOffset(self) -> dict[str, Any]:
        return self._shown(super().initialOffset())

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        return self._shown(super().latestOffset(start, limit))

    def _shown(self, data: dict[str, Any]) -> dict[str, Any]:
        if not self.marked:
            data.pop("begin", None)
        return data

    def offset(self, data: dict[str, Any]) -> Offset:
        return self.here._offsets.read(data)

    def end_query(self, at_most: float) -> None:
        """As `stop` does, and as a signal does."""
        self.here._warn_of_rest(at_most)

    @property
    def planner_address(self) -> FetcherAddress:
        return PLANNER

    def finish(self, end: dict[str, Any]) -> None:
        """Let the driver say that a micro-batch is done."""
        asyncio.run(self.planner.finished([Mark.parse(end["mark"])], None))

    def planned(self, mark: Mark) -> None:
        self.fetcher.planned(mark)
        self.unfinished = mark

    async def _answered(self, work: Any) -> Any:
        answering = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        for end in self.words:
            await self.planner.finished([Mark.parse(end["mark"])], None)
        return await answering

    def ask(self, call: Any) -> Any:
        match call:
            case Plan():
                self.unfinished = call.end.mark
            case Next():
                self.unfinished = None
        work = self.planner.answer(call)
        if isinstance(call, Logged):
            return asyncio.run(self._answered(work))
        try:
            work.send(None)
        except StopIteration as answer:
            return answer.value
        raise AssertionError("nothing of what was scripted has to be waited for")

    async def initial(self, start: Any, names: Any, query: Any) -> Offset:
        self.initial_offsets += 1
        return self._start_at

    async def placed(self, ranges: Sequence[ShardRange], at_most: float, query: str) -> list[FetcherAddress | None]:
        self.waited.append(at_most)
        late = len(self.waited) <= self.late
        return [None if late else self.fetchers.get(wanted.key, HERE) for wanted in ranges]


def offset(**positions: Position) -> dict[str, Any]:
    """`offset(s0=..., s1=...)` as Spark hands it over."""
    read = {key(int(name[1:])): position for name, position in positions.items()}
    return Offset(read).to_dict({"orders": f"{ARN}/consumer/lake:1"})


def all_known(ends: Offset) -> EndPositions:
    return EndPositions(ends)


def ranges(partitions: Any) -> list[ShardRange]:
    return sorted(r for partition in partitions for r in partition.ranges)


def listened(**options: str) -> Reader:
    """A reader of whose micro-batches the driver says that they are done; its checkpoint has a mark."""
    return Reader({key(0): START}, marked=True, **{LISTENS: "true", **options})


LATER = Position.at_timestamp(START.value + 60_000)


@pytest.mark.parametrize("records", [3, 0])
def test_a_first_micro_batch_that_is_repeated_begins_where_it_began(records: int) -> None:
    reader = listened()
    if records:
        reader.fetcher.there[key(0)] = (after(9), records)
    first = reader.latestOffset() if SPARK_VERSION < (4, 1) else None
    start = reader.initialOffset()
    end = first or reader.latestOffset(start)
    planned = ranges(reader.partitions(start, end))
    assert [wanted.after for wanted in planned] == ([START] if records else [])
    end = json.loads(json.dumps(end))  # as Spark's log has it
    # The next start is asked again where the query begins: now, which is another time, and with other shards.
    again = Reader({key(0): LATER, key(1): LATER}, marked=True)
    for _scan in range(2):
        assert ranges(again.partitions(again.initialOffset(), end)) == planned
    assert again.initial_offsets == 0, "it is no new query"
    assert again.latestOffset(end) == end, "Spark compares offsets as text"
    assert again.fetcher.resumed == [again.offset(end)]
    reader.fetcher.there[key(0)] = again.fetcher.there[key(0)] = (after(20), 2)
    further = again.latestOffset(end)
    assert further.get("begin") == (None if records else offset(s0=START)["streams"])
    assert [wanted.after for wanted in ranges(again.partitions(end, further))] == [after(9) if records else START]


def test_every_scan_reads_what_the_log_says() -> None:
    reader = listened()
    begin = reader.initialOffset()
    for number in (9, 20, 31):
        reader.fetcher.there[key(0)] = (after(number), 3)
        end = reader.latestOffset(begin if SPARK_VERSION >= (4, 2) else None)
        first, *others = [ranges(reader.partitions(json.loads(json.dumps(begin)), end)) for _scan in range(3)]
        assert [wanted.through for wanted in first] == [after(number)]
        assert others == [first, first]
        begin = end


def test_the_first_micro_batch_of_an_earlier_version_begins_where_spark_says() -> None:
    reader = listened()
    end = offset(s0=after(9))
    assert [wanted.after for wanted in ranges(reader.partitions(reader.initialOffset(), end))] == [START]
    assert reader.fetcher.resumed == []


@pytest.mark.parametrize("done", [True, False])
def test_a_micro_batch_after_which_spark_never_asks_is_done_where_the_driver_says_so(done: bool) -> None:
    reader = listened()
    reader.fetcher.there[key(0)] = (after(9), 3)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    reader.partitions(start, end)
    if done:
        reader.finish(end)
    reader.end_query(60.0 if done else 0.0)
    assert reader.fetcher.commits == ([reader.offset(end)] if done else [])


def test_word_that_is_on_its_way_is_waited_for_and_that_of_another_micro_batch_is_not_taken() -> None:
    reader = listened()
    reader.fetcher.there[key(0)] = (after(9), 3)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    reader.partitions(start, end)
    reader.finish({"mark": "other:1"})
    reader.end_query(0.0)
    assert reader.fetcher.commits == []
    reader.words = [{"mark": "other:2"}, end]
    reader.end_query(60.0)
    assert reader.fetcher.commits == [reader.offset(end)]


def test_what_the_driver_has_said_is_not_committed_again_when_spark_asks_for_more() -> None:
    reader = listened()
    reader.fetcher.there[key(0)] = (after(9), 3)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    reader.partitions(start, end)
    reader.finish(end)
    reader.latestOffset(end)
    assert reader.fetcher.commits == [reader.offset(end)]
    reader.finish(end)
    assert reader.fetcher.commits == [reader.offset(end)]


def test_without_a_listener_nothing_is_waited_for() -> None:
    reader = Reader({key(0): START}, marked=True)
    reader.fetcher.there[key(0)] = (after(9), 3)
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start))
    began = time.monotonic()
    reader.end_query(60.0)
    assert time.monotonic() - began < 30
    assert reader.fetcher.commits == []


def test_a_reader_whose_fetcher_has_failed_stops_all_the_same() -> None:
    reader = listened()
    reader.fetcher.there[key(0)] = (after(9), 3)
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start))

    def fail(_: Mark) -> None:
        raise DataLossError("gone")

    reader.fetcher.planned = fail  # type: ignore[method-assign]
    reader.end_query(60.0)


def test_spark_4_0_starts_a_query_with_the_latest_offset() -> None:
    reader = Reader({key(0): START})
    assert reader.latestOffset() == offset(s0=START)
    assert reader.partitions(reader.initialOffset(), offset(s0=START)) == []
    reader.fetcher.there = {key(0): (after(10), 3)}
    assert reader.latestOffset() == offset(s0=after(10))
    assert reader.initial_offsets == 1
    assert ranges(reader.partitions(offset(s0=START), offset(s0=after(10)))) == [ShardRange(key(0), START, after(10))]
    reader.fetcher.there = {key(0): (after(20), 3)}
    assert reader.latestOffset() == offset(s0=after(20))
    assert reader.fetcher.polls[-1][0] == Offset({key(0): after(10)})


# Shows 76.
def test_spark_4_0_shows_the_end_of_an_uncommitted_batch_first() -> None:
    reader = Reader({})
    begin, end = offset(s0=after(10)), offset(s0=after(20))
    assert reader.partitions(end, end) == []
    assert reader.fetcher.polls == [], "nothing may be asked for from the end"
    assert not reader.started
    assert ranges(reader.partitions(begin, end)) == [ShardRange(key(0), after(10), after(20))]
    assert reader.latestOffset() == end
    assert reader.fetcher.polls[0][0] == Offset({key(0): after(20)})
    assert reader.initial_offsets == 0, "a restarted query does not start anew"


def test_asking_for_the_next_offset_says_that_the_micro_batch_before_is_done() -> None:
    """Spark's own commit comes with the next plan: where nothing more arrives, never."""
    reader = Reader({key(0): START})
    reader.fetcher.there = {key(0): (after(10), 3)}
    begin, end = offset(s0=START), offset(s0=after(10))
    assert reader.latestOffset(begin) == end
    reader.partitions(begin, end)
    assert reader.fetcher.commits == []
    for _ in range(3):
        assert reader.latestOffset(end) == end
    reader.commit(end)
    assert reader.fetcher.commits == [Offset({key(0): after(10)})], "said once"


def test_an_end_that_was_only_shown_is_not_done() -> None:
    reader = Reader({})
    begin, end = offset(s0=after(10)), offset(s0=after(20))
    reader.partitions(end, end)
    reader.latestOffset()
    assert reader.fetcher.commits == []
    reader.partitions(begin, end)
    reader.latestOffset()
    assert reader.fetcher.commits == [Offset({key(0): after(20)})]


def test_spark_4_3_says_where_the_query_is() -> None:
    reader = Reader({key(0): START})
    limit = reader.getDefaultReadLimit() if SPARK_VERSION >= (4, 2) else None
    assert reader.latestOffset(reader.initialOffset(), limit) == offset(s0=START)
    assert reader.latestOffset(reader.initialOffset(), limit) == offset(s0=START)
    assert reader.initial_offsets == 1
    reader.fetcher.there = {key(0): (after(10), 3)}
    assert reader.latestOffset(offset(s0=after(5)), limit) == offset(s0=after(10))
    reader.commit(offset(s0=after(5)))
    assert reader.fetcher.commits == [Offset({key(0): after(5)})]
    reader.latestOffset(offset(s0=after(10)), limit)
    assert reader.fetcher.commits[1:] == [Offset({key(0): after(10)})], "the next question says so"


def test_limits_of_the_options_hold() -> None:
    reader = Reader({key(0): START}, maxRecordsPerTrigger="7", maxBytesPerTrigger="3k")
    reader.latestOffset(offset(s0=START), None)
    assert reader.fetcher.polls[-1][1:] == (3072, 7)
    if SPARK_VERSION >= (4, 2):
        limit = reader.getDefaultReadLimit()
        reader.latestOffset(offset(s0=START), limit)
        assert (limit.max_rows, reader.fetcher.polls[-1][1:]) == (7, (3072, 7))


def test_idle_shards_ride_along_with_records_and_cost_no_task() -> None:
    reader = Reader({key(0): START, key(1): START})
    reader.fetcher.there = {key(0): (after(10), 1), key(1): (after(9), 0)}
    end = reader.latestOffset()
    assert end == offset(s0=after(10), s1=after(9))
    assert ranges(reader.partitions(offset(s0=START, s1=START), end)) == [ShardRange(key(0), START, after(10))]
    other = Reader({})
    assert len(ranges(other.partitions(offset(s0=START, s1=START), end))) == 2, (
        "another planner does not know it is empty"
    )


def test_idle_offsets_alone_are_stored_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reader = Reader({key(0): START}, idleCheckpointInterval="60s")
    reader.fetcher.there = {key(0): (after(10), 0)}
    assert reader.latestOffset() == offset(s0=START)
    now[0] += 59
    assert reader.latestOffset() == offset(s0=START)
    now[0] += 1
    assert reader.latestOffset() == offset(s0=after(10))
    reader.partitions(offset(s0=START), offset(s0=after(10)))
    reader.fetcher.there = {key(0): (after(20), 0)}
    assert reader.latestOffset() == offset(s0=after(10))


@pytest.mark.slow
def test_a_micro_batch_without_records_has_one_task_that_reads_nothing_so_that_spark_keeps_its_workers() -> None:
    reader = Reader({key(0): START}, idleCheckpointInterval="1s")
    reader.fetcher.there = {key(0): (after(10), 0)}
    wait_until(lambda: reader.latestOffset() == offset(s0=after(10)), 60, "the offset of an idle shard")
    (partition,) = reader.partitions(offset(s0=START), offset(s0=after(10)))
    assert partition.ranges == ()
    worker: KinesisStreamReader = pickle.loads(pickle.dumps(KinesisStreamReader(reader._options, MANIFEST)))
    assert list(worker.read(pickle.loads(pickle.dumps(partition)))) == []


def test_spark_is_asked_for_a_task_before_it_ends_idle_workers() -> None:
    """`PythonWorkerFactory` ends workers once none of them has got a task for a minute."""
    assert SourceOptions().idle_checkpoint_interval <= 50.0


# Shows 51.
def test_children_follow_after_the_batch_that_ends_their_parent() -> None:
    reader = Reader({key(0): after(5)})
    reader.fetcher.there = {key(0): (SHARD_END, 2)}
    reader.fetcher.starting = [key(1), key(2)]
    end = reader.latestOffset()
    assert end == offset(s0=SHARD_END, s1=TRIM_HORIZON, s2=TRIM_HORIZON)
    assert ranges(reader.partitions(offset(s0=after(5)), end)) == [ShardRange(key(0), after(5), SHARD_END)]
    reader.fetcher.there = {key(1): (after(30), 1)}
    reader.fetcher.finished = [key(0)]
    following = reader.latestOffset()
    assert following == offset(s1=after(30), s2=TRIM_HORIZON)
    assert ranges(reader.partitions(end, following)) == [ShardRange(key(1), TRIM_HORIZON, after(30))]


def test_only_the_first_micro_batch_may_be_a_replay_and_is_checked_for_losses() -> None:
    reader = Reader({key(0): TRIM_HORIZON})
    reader.partitions(offset(s0=after(5)), offset(s0=after(5)))  # Spark 4.0 says where the query is
    assert reader.fetcher.checked == []
    reader.partitions(offset(s0=TRIM_HORIZON), offset(s0=after(5)))
    reader.partitions(offset(s0=after(5)), offset(s0=after(9)))
    begin = Offset({key(0): TRIM_HORIZON})
    assert reader.fetcher.checked == [(begin, [ShardRange(key(0), TRIM_HORIZON, after(5))])]


def test_while_other_sources_have_rows_an_idle_one_answers_at_once() -> None:
    reader = Reader({key(0): after(1)}, pollTimeout="200ms")
    begin = offset(s0=after(1))

    def trigger(*, batch: bool) -> float:
        end = reader.latestOffset(begin)
        if batch:
            reader.commit(begin)  # Spark has planned a micro-batch: it tells every source that the one before is done
            if end != begin:
                reader.partitions(begin, end)
        return reader.fetcher.timeouts[-1]

    assert [trigger(batch=True) for _ in range(4)] == [0.2, 0, 0, 0]
    assert [trigger(batch=False) for _ in range(3)] == [0, 0.2, 0.2], "nobody has rows: no busy waiting"
    reader.fetcher.there = {key(0): (after(9), 1)}
    assert [trigger(batch=True) for _ in range(2)] == [0.2, 0.2], "its own rows"


def test_available_now_ends_at_the_targets_and_leaves_what_came_later() -> None:
    reader = Reader({key(0): after(1), key(1): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [None, all_known(Offset({key(0): after(50), key(1): SHARD_END, key(2): after(60)}))]
    reader.fetcher.there = {key(0): (after(40), 4), key(1): (SHARD_END, 1)}
    reader.fetcher.starting = [key(2)]
    first = reader.latestOffset(offset(s0=after(1), s1=after(1)))
    assert first == offset(s0=after(40), s1=SHARD_END, s2=TRIM_HORIZON)
    # Shard 0 was split after the targets were taken: its end, and its children, are for the next run.
    reader.fetcher.there = {key(0): (SHARD_END, 9), key(2): (after(70), 9)}
    reader.fetcher.starting = [key(3), key(4)]
    second = reader.latestOffset(first)
    assert second == offset(s0=after(50), s1=SHARD_END, s2=after(60))
    assert reader.latestOffset(second) == second


def test_available_now_reads_nothing_before_the_ends_are_known() -> None:
    reader = Reader({key(0): after(1), key(1): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [None, all_known(Offset({key(0): after(50), key(1): after(60)}))]
    reader.fetcher.there = {key(0): (after(70), 3), key(1): (after(60), 0)}
    end = reader.latestOffset(offset(s0=after(1), s1=after(1)))
    assert end == offset(s0=after(50), s1=after(60))
    assert reader.latestOffset(end) == end


def test_available_now_stores_where_idle_shards_are_in_one_micro_batch_at_the_end() -> None:
    reader = Reader({key(0): after(1), key(1): after(1)})
    reader.prepareForTriggerAvailableNow()
    begin = offset(s0=after(1), s1=after(1))
    reader.fetcher.ending = [all_known(Offset({key(0): after(9), key(1): after(8)}))]
    reader.fetcher.there = {key(0): (after(9), 0)}
    polls = reader.fetcher.poll

    def poll(offset: Offset, **limits: Any) -> PollReply:
        if len(reader.fetcher.polls) == 5:
            reader.fetcher.there[key(1)] = (after(8), 0)
        return polls(offset, **limits)

    reader.fetcher.poll = poll  # type: ignore[method-assign]
    end = reader.latestOffset(begin)
    assert end == offset(s0=after(9), s1=after(8))
    assert len(reader.fetcher.polls) > 5, "not one for each shard"
    assert reader.latestOffset(end) == end


def test_available_now_does_not_wait_as_long_as_polls_may() -> None:
    reader = Reader({key(0): after(1)}, pollTimeout="10s")
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [None, all_known(Offset({key(0): after(1)}))]
    assert reader.latestOffset(offset(s0=after(1))) == offset(s0=after(1))
    assert max(reader.fetcher.timeouts) <= 0.2


def test_available_now_is_over_where_a_shard_ended_of_which_nothing_more_is_told() -> None:
    reader = Reader({key(0): SHARD_END})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [EndPositions({key(0): SHARD_END})]
    assert reader.latestOffset(offset(s0=SHARD_END)) == offset(s0=SHARD_END)


def test_available_now_never_steps_back() -> None:
    reader = Reader({key(0): after(90)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [all_known(Offset({key(0): after(50)}))]
    reader.fetcher.there = {key(0): (after(100), 1)}
    assert reader.latestOffset(offset(s0=after(90))) == offset(s0=after(90))


def test_available_now_stops_waiting_when_it_is_asked_to() -> None:
    reader = Reader({key(0): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [None]
    reader.here._run.ending.set()
    assert reader.latestOffset(offset(s0=after(1))) == offset(s0=after(1))


def test_catch_up_puts_everything_up_to_now_into_the_first_batch() -> None:
    reader = Reader({key(0): after(1), key(9): after(1)}, catchUp="true", maxRecordsPerTrigger="1")
    reader.fetcher.found = [Offset({key(0): SHARD_END, key(1): after(30), key(2): after(40)})]
    end = reader.latestOffset()
    assert end == offset(s0=SHARD_END, s1=after(30), s2=after(40), s9=after(1))
    (partition,) = reader.partitions(offset(s0=after(1), s9=after(1)), end)
    assert isinstance(partition, KinesisPartition)
    assert [r.key for r in partition.ranges] == [key(0), key(1), key(2)], "parents before children, in one task"
    assert reader.fetcher.polls == []
    reader.latestOffset()
    assert len(reader.fetcher.polls) == 1, "from then on as usual"


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerTrigger": "1"}, {"maxBytesPerTrigger": "1k"}])
def test_trigger_once_reads_up_to_the_tips(options: dict[str, str]) -> None:
    reader = Reader({key(0): after(1)}, **options)
    reader.fetcher.found = [Offset({key(0): after(30)})]
    # Spark passes this limit with `Trigger.Once`, whatever the default is, and the default with every other trigger.
    assert reader.latestOffset(offset(s0=after(1)), ReadAllAvailable()) == offset(s0=after(30))
    assert reader.fetcher.polls == []
    if SPARK_VERSION >= (4, 2):
        assert not isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)


def test_trigger_once_may_end_where_an_option_says() -> None:
    reader = Reader({key(0): after(1)}, endingPosition="AT_TIMESTAMP:1704067200000")
    reader.fetcher.found = [Offset({key(0): after(5)})]
    assert reader.latestOffset(offset(s0=after(1)), ReadAllAvailable()) == offset(s0=after(5))


@pytest.mark.parametrize("version", [(4, 0), (4, 3)])
@pytest.mark.parametrize(
    ("asked", "finished", "listener", "options", "said"),
    [
        (1, True, True, {}, "need not have read all"),
        (1, False, False, {}, "need not have read all"),
        (1, False, True, {}, None),  # it failed, or was stopped
        (2, True, True, {}, None),
        (1, True, True, {"catchUp": "true", "maxRecordsPerTrigger": "1"}, None),
        (0, True, True, {}, "which the run before had begun"),
        (0, True, True, {"catchUp": "true"}, "which the run before had begun"),
        (0, False, False, {}, None),
    ],
)
def test_a_query_that_ends_by_itself_behind_the_tips_says_so(
    version: tuple[int, int],
    asked: int,
    finished: bool,
    listener: bool,
    options: dict[str, str],
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stream_planner, "SPARK_VERSION", version)
    reader = Reader({key(0): START}, marked=True, **({LISTENS: "true"} if listener else {}), **options)
    reader.fetcher.there[key(0)] = (after(9), 3)
    start, end = offset(s0=START), {**offset(s0=after(9)), "mark": "ab:1"}
    reader.here._run._mark = Mark("ab", 0)
    reader.fetcher.found = [Offset({key(0): after(9)})]
    for _ in range(asked):
        reader.latestOffset(start)
    reader.partitions(start, end)
    if finished:
        reader.finish(end)
    with caplog.at_level(logging.WARNING):
        reader.end_query(0.0)
        reader.end_query(0.0)
    if version >= (4, 2) and asked:
        said = None
    assert len(caplog.messages) == (said is not None)
    assert said is None or said in caplog.text


@pytest.mark.parametrize(
    ("behind", "records", "options", "warned"),
    [
        (0, 3, {}, False),
        (0, 3, {"maxRecordsPerTrigger": "3"}, True),
        (0, 0, {}, False),
        (5, 0, {}, True),
    ],
)
def test_a_query_that_has_read_everything_ends_without_a_word(
    behind: int,
    records: int,
    options: dict[str, str],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stream_planner, "SPARK_VERSION", (4, 0))
    reader = Reader({key(0): START}, **options)
    reader.fetcher.there[key(0)] = (after(9), records)
    reader.fetcher.behind = behind
    reader.partitions(offset(s0=START), reader.latestOffset(offset(s0=START)))
    with caplog.at_level(logging.WARNING):
        reader.end_query(0.0)
    assert len(caplog.messages) == warned


def test_a_query_that_has_failed_at_its_start_says_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_planner, "SPARK_VERSION", (4, 0))
    reader = Reader({key(0): START})

    def fail(*_: object, **__: object) -> PollReply:
        raise DataLossError("gone")

    reader.fetcher.poll = fail  # type: ignore[method-assign]
    with pytest.raises(DataLossError):
        reader.latestOffset(offset(s0=START))
    with caplog.at_level(logging.WARNING):
        reader.end_query(0.0)
    assert not caplog.messages


def test_available_now_goes_before_catch_up() -> None:
    reader = Reader({key(0): after(1)}, catchUp="true")
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [all_known(Offset({key(0): after(5)}))]
    reader.fetcher.there = {key(0): (after(9), 1)}
    end = reader.latestOffset(offset(s0=after(1)))
    assert end == offset(s0=after(5))
    assert reader.latestOffset(end) == end


def test_tasks_are_made_for_each_fetcher_and_know_the_planner() -> None:
    reader = Reader({key(number): after(0) for number in range(4)})
    reader.fetchers = {key(1): THERE}
    reader.late = 3
    reader.fetcher.there = {key(number): (after(10), 1) for number in range(4)}
    begin = reader.initialOffset()
    tasks = reader.partitions(begin, reader.latestOffset(begin))
    assert {(task.address, *(r.key for r in task.ranges)) for task in tasks} == {
        (HERE, key(0), key(2), key(3)),
        (THERE, key(1)),
    }
    assert reader.waited == [0.0] + [0.2] * 3, "no task begins before all shards are read by somebody"
    assert all(task.planner == PLANNER for task in tasks)


def test_parents_and_children_in_one_micro_batch_are_read_by_one_task_whoever_has_them() -> None:
    reader = Reader({key(0): START}, catchUp="true")
    reader.fetchers = {key(0): HERE, key(1): THERE}
    reader.fetcher.found = [Offset({key(0): SHARD_END, key(1): after(30)})]
    begin = reader.initialOffset()
    (task,) = reader.partitions(begin, reader.latestOffset(begin))
    assert task.address is None
    assert [wanted.key for wanted in task.ranges] == [key(0), key(1)]


def test_the_lag_is_reported_without_a_call_to_the_fetcher() -> None:
    reader = Reader({key(0): START})
    assert reader.reportLatestOffset() is None
    reader.latestOffset()
    lags = {"millisBehindLatest": {"orders": {"shardId-000000000000": 5}}}
    assert reader.reportLatestOffset() == {**lags, "bytes": 0, "dataBytes": 0}


def test_the_bytes_of_a_micro_batch_are_reported_beside_its_data_and_not_again_with_the_next() -> None:
    reader = Reader({key(0): START, key(1): START})
    begin = reader.initialOffset()
    reader.fetcher.there = {key(0): (after(5), 3), key(1): (after(6), 4)}
    end = reader.latestOffset(begin)
    assert reader.reportLatestOffset().items() >= {"bytes": 700, "dataBytes": 140}.items()
    assert reader.latestOffset(end) == end
    assert reader.reportLatestOffset().items() >= {"bytes": 0, "dataBytes": 0}.items()


def test_the_bytes_of_a_micro_batch_up_to_the_tips_are_not_known() -> None:
    reader = Reader({key(0): START}, catchUp="true")
    begin = reader.initialOffset()
    reader.fetcher.there = {key(0): (after(5), 3)}
    reader.fetcher.found = [Offset({key(0): after(5)})]
    reader.latestOffset(begin)
    assert reader.here.lag.report.bytes is None


def test_a_pickled_reader_leaves_its_fetcher_behind() -> None:
    reader = KinesisStreamReader(SourceOptions.parse({"manifest": "m.json"}), MANIFEST)
    reader.__dict__["_planner"] = threading.Lock()
    again = pickle.loads(pickle.dumps(reader))
    assert "_planner" not in again.__dict__
    assert again._options == reader._options


def test_a_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a kinesis-efo offset"):
        Reader({}).partitions({"seq": 1}, {"seq": 2})


def test_the_planner_learns_once_from_where_a_query_goes_on_that_has_run_before() -> None:
    """It compares that with the lease table; a new query, or a chosen start, is compared with nothing."""
    new = Reader({key(0): START})
    new.fetcher.there = {key(0): (after(10), 1)}
    start = new.initialOffset()
    end = new.latestOffset(start)
    new.partitions(start, end)
    new.latestOffset(end)
    assert new.fetcher.resumed == []

    again = Reader({key(0): START})
    again.fetcher.there = {key(0): (after(20), 1)}
    begin = offset(s0=after(10))
    end = again.latestOffset(begin)
    again.partitions(begin, end)
    assert again.fetcher.resumed == [Offset({key(0): after(10)})]

    repeating = Reader({key(0): START})
    repeating.partitions(offset(s0=after(10)), offset(s0=after(20)))
    assert repeating.fetcher.resumed == [Offset({key(0): after(20)})], "up to there it was planned before"


def with_lasts(lasts: Mapping[ShardKey, int], **positions: Position) -> dict[str, Any]:
    """As `offset`, with the last records of some shards."""
    read = {key(int(name[1:])): position for name, position in positions.items()}
    return Offset(read, lasts).to_dict({"orders": f"{ARN}/consumer/lake:1"})


def test_a_micro_batch_says_up_to_which_record_it_was_planned() -> None:
    reader = Reader({key(0): START, key(1): START})
    reader.fetcher.there, reader.fetcher.lasts = {key(0): (after(10), 3)}, {key(0): 8}
    begin = reader.initialOffset()
    first = reader.latestOffset(begin)
    assert first == with_lasts({key(0): 8}, s0=after(10), s1=START)
    assert ranges(reader.partitions(begin, first)) == [ShardRange(key(0), START, after(10), 8)]
    reader.fetcher.there, reader.fetcher.lasts = {key(1): (after(7), 1)}, {key(1): 7}
    second = reader.latestOffset(first)
    assert second == with_lasts({key(1): 7}, s0=after(10), s1=after(7)), "no range of shard 0 ends here"
    assert ranges(reader.partitions(first, second)) == [ShardRange(key(1), START, after(7), 7)]


def test_nothing_new_is_the_same_offset_to_the_letter_whoever_wrote_it() -> None:
    """Spark compares texts: one that differs in nothing but a last record would be a micro-batch without rows, again and again."""
    for begin in (offset(s0=after(10)), with_lasts({key(0): 8}, s0=after(10))):
        reader = Reader({})
        reader.partitions(begin, begin)
        for _ in range(8):
            reader.planner._advance._stored_idle_at -= (
                1000  # it is time to store where idle shards are, and none has moved
            )
            reader.planner._advance._idle = {key(0): after(10)}
            assert json.dumps(reader.latestOffset(begin)) == json.dumps(begin)
            assert json.dumps(reader.latestOffset()) == json.dumps(begin)
        catching_up = Reader({}, catchUp="true")
        catching_up.fetcher.found = [Offset({key(0): after(10)}, {key(0): 9})]
        assert json.dumps(catching_up.latestOffset(begin)) == json.dumps(begin)


def test_an_idle_micro_batch_names_no_records() -> None:
    reader = Reader({})
    reader.planner._advance._stored_idle_at -= 1000
    begin = with_lasts({key(0): 8}, s0=after(10))
    reader.fetcher.there = {key(0): (after(30), 0)}
    end = reader.latestOffset(begin)
    assert end == offset(s0=after(30))
    again = Reader({})
    assert ranges(again.partitions(begin, end)) == [ShardRange(key(0), after(10), after(30))]


def test_the_last_record_in_front_of_an_end_within_an_event_is_asked_for() -> None:
    reader = Reader({key(0): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [all_known(Offset({key(0): after(50)}))]
    reader.fetcher.there, reader.fetcher.lasts = {key(0): (after(70), 9)}, {key(0): 69}
    reader.fetcher.cut = {ShardRange(key(0), after(1), after(50)): 48}
    assert reader.latestOffset(offset(s0=after(1))) == with_lasts({key(0): 48}, s0=after(50))


def test_the_last_record_in_front_of_an_end_that_was_asked_for_is_known_whoever_fetches() -> None:
    reader = Reader({key(0): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [EndPositions(Offset({key(0): after(50)}), lasts={key(0): 48})]
    begin = reader.initialOffset()
    # Fetchers elsewhere do not tell of the inside of an event. In front of the end, they tell of the last record as ever.
    for through, last, expected in ((after(20), 19, (after(20), 19)), (after(70), 69, (after(50), 48))):
        reader.fetcher.there, reader.fetcher.lasts = {key(0): (through, 9)}, {key(0): last}
        end = reader.latestOffset()
        assert end == with_lasts({key(0): expected[1]}, s0=expected[0])
        reader.partitions(begin, end)
        begin = end


def test_catching_up_names_the_last_records_of_its_one_micro_batch() -> None:
    reader = Reader({key(0): after(1)}, catchUp="true")
    reader.fetcher.found = [Offset({key(0): after(50), key(1): after(7)}, {key(0): 48})]
    assert reader.latestOffset() == with_lasts({key(0): 48}, s0=after(50), s1=after(7))


def test_available_now_ends_where_nothing_more_is_there_although_positions_do_not_get_to_its_end() -> None:
    """A server whose positions of idle shards are lower than the one that it gave before."""
    reader = Reader({key(0): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [all_known(Offset({key(0): after(50)}))]
    reader.fetcher.there = {key(0): (after(40), 2)}
    first = reader.latestOffset(offset(s0=after(1)))
    polls = reader.fetcher.poll

    def poll(offset: Offset, **limits: Any) -> PollReply:
        # Quiet from before the end was found is no evidence; it has to be so afterwards.
        reader.fetcher.quiet = 60.0 if len(reader.fetcher.polls) < 5 else 1e-9
        return polls(offset, **limits)

    reader.fetcher.poll = poll  # type: ignore[method-assign]
    assert reader.latestOffset(first) == first
    assert len(reader.fetcher.polls) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "lasts"), [(SHARD_END, {}), (after(9), {key(0): 9})], ids=["closed shard", "known record"]
)
def test_available_now_fails_at_a_shard_that_stays_before_its_end(end: Position, lasts: dict[ShardKey, int]) -> None:
    reader = Reader({key(0): after(1)}, retryTimeout="1s")
    reader.prepareForTriggerAvailableNow()
    reader.fetcher.ending = [EndPositions({key(0): end}, lasts)]
    polls, began = reader.fetcher.poll, time.monotonic()

    def poll(offset: Offset, **limits: Any) -> PollReply:
        reader.fetcher.quiet = time.monotonic() - began
        return polls(offset, **limits)

    reader.fetcher.poll = poll  # type: ignore[method-assign]
    with pytest.raises(RetriesExhaustedError, match="is at AFTER:1 and ends at"):
        reader.latestOffset(offset(s0=after(1)))
    assert time.monotonic() - began >= 1.0


def test_a_call_of_a_task_outlasts_the_patience_of_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call begins that patience anew, so that a range would never be given up."""
    made: list[Any] = []
    monkeypatch.setattr(stream_reader, "RangeReader", lambda *given, **more: made.append((given, more)) or FakeRanges())
    reader = Reader({}, retryTimeout="30m")
    list(
        reader.read(
            SimpleNamespace(
                secret="s", planner=PLANNER, query="", ranges=[], address=None, deaggregate=True, hash_ranges={}
            )
        )
    )  # type: ignore[arg-type]
    ((_, _, patience), more) = made[0]
    assert more["fetcher_at"].keywords["call_seconds"] >= patience >= 1800


def test_no_offset_is_told_before_the_query_may_read() -> None:
    # Spark writes a micro-batch as soon as it has one, with the rows that other sources of the query have.
    reader = Reader({key(0): START})
    reader.fetcher.held = [False, False, True, False]
    assert reader.latestOffset() == offset(s0=START)
    assert reader.fetcher.held == [False], "it waits until the lease is held"
    assert len(reader.fetcher.polls) == 1
    reader.latestOffset(offset(s0=START))
    assert len(reader.fetcher.polls) == 2, "and does not wait again: a lease that is lost is an error of its own"


def test_rows_to_start_from_are_read_when_no_run_before_moves_them_any_more() -> None:
    """A run that is ending still writes its last checkpoints before it releases its lease."""
    reader = Reader({key(0): Position.after(10)}, startingPosition="LEASES")

    def wait_held(*, timeout: float) -> bool:
        reader._start_at = Offset({key(0): Position.after(20)})
        return timeout > 0

    reader.fetcher.wait_held = wait_held  # type: ignore[method-assign]
    assert reader.latestOffset(reader.initialOffset()) == reader.latestOffset() == offset(s0=Position.after(20))
    assert reader.initial_offsets == 2, "what is wrong with the rows is told before anything is waited for"


def test_where_a_query_starts_without_rows_is_known_before_its_lease_is_held() -> None:
    """What comes while it waits is read."""
    reader = Reader({key(0): Position.after(10)}, startingPosition="LATEST")
    asked: list[int] = []

    def wait_held(*, timeout: float) -> bool:
        asked.append(reader.initial_offsets)
        return timeout > 0

    reader.fetcher.wait_held = wait_held  # type: ignore[method-assign]
    assert reader.latestOffset(reader.initialOffset()) == offset(s0=Position.after(10))
    assert asked == [1]


def test_a_reader_that_waits_for_its_lease_ends_with_its_query() -> None:
    reader = Reader({key(0): START})
    reader.fetcher.held = [False]
    asking = threading.Thread(target=reader.latestOffset)
    asking.start()
    reader.here._run.ending.set()
    asking.join(60)
    assert not asking.is_alive()


class FakeRanges:
    """Reads nothing."""

    def read(self, ranges: object, fetcher: object) -> list[Any]:
        return []


def test_a_new_query_marks_its_checkpoint_and_counts_what_moves() -> None:
    reader = Reader({key(0): START}, marked=True)
    first = reader.latestOffset(reader.initialOffset() if SPARK_VERSION >= (4, 2) else None)
    assert reader.latestOffset(first) == first
    name, _, moved = first["mark"].partition(":")
    assert moved == "0"
    assert len(name) == 8
    reader.partitions(first, first)
    assert reader.latestOffset() == first, "nothing moved: Spark would take another text for a micro-batch"
    reader.fetcher.there[key(0)] = (after(10), 3)
    second = reader.latestOffset()
    assert second["mark"] == f"{name}:1"
    assert reader.latestOffset() == second, "asked again before it was planned"
    reader.partitions(first, second)
    reader.fetcher.there[key(0)] = (after(20), 3)
    third = reader.latestOffset()
    assert third["mark"] == f"{name}:2"
    assert reader.fetcher.marks == [second["mark"]], "noted once Spark's log has it"
    assert [wanted.after for wanted in ranges(reader.partitions(second, third))] == [after(10)]
    assert reader.fetcher.marks == [second["mark"], third["mark"]]
    assert reader.fetcher.resumed == [], "a new query goes on from no checkpoint"
    other = Reader({key(0): START}, marked=True)
    assert other.latestOffset()["mark"] != first["mark"]


def test_a_query_goes_on_with_the_mark_of_its_checkpoint_and_an_old_one_gets_one_when_it_moves() -> None:
    for mark, expected in (({"mark": "7c1f09ab:41"}, "7c1f09ab:42"), ({}, None)):
        begin = {**offset(s0=after(10)), **mark}
        reader = Reader({}, marked=True)
        assert reader.latestOffset(begin) == begin
        reader.fetcher.there[key(0)] = (after(20), 3)
        moved = reader.latestOffset(begin)["mark"]
        assert moved == (expected or f"{reader.here._run._mark.checkpoint}:1")
        (resumed,) = reader.fetcher.resumed
        assert resumed.to_dict().get("mark") == mark.get("mark")


TWO = replace(MANIFEST, streams={"orders": ORDERS, "clicks": replace(ORDERS, name="clicks")})


def choosing(offset: dict[str, Any] | None, **options: str) -> KinesisStreamReader:
    reader = KinesisStreamReader(SourceOptions.parse({"manifest": "m.json", **options}), TWO)
    reader.prepareForTriggerAvailableNow()
    assert reader.initialOffset() == {"streams": {}, "version": 1}
    reader._choose_streams(offset)
    return reader


def test_query_continues_with_its_streams(caplog: pytest.LogCaptureFixture) -> None:
    reader = choosing(offset(s0=after(10)))
    assert list(reader._manifest.streams) == ["orders"]
    assert (
        "'streams' is not given: the query continues with the streams of its checkpoint, 'orders'; name them"
        in caplog.text
    )
    assert list(choosing(offset(s0=after(10)), streams="*")._manifest.streams) == ["orders", "clicks"]


@pytest.mark.parametrize("start", [None, {"streams": {}, "version": 1}])
def test_new_query_names_one_of_several_streams(start: dict[str, Any] | None) -> None:
    """Spark 4.0 passes no start."""
    with pytest.raises(OptionsError, match=r"has 'clicks', 'orders'; name those to read, or give \* for all"):
        KinesisStreamReader(SourceOptions.parse({"manifest": "m.json"}), TWO).latestOffset(start)
