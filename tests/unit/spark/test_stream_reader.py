"""The stream reader's planning, in the order in which Spark 4.0 and 4.3 call it, against a scripted fetcher."""

import asyncio
import logging
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.planning import PollReply, ShardProgress
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import ConfigurationError, OptionsError
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import LISTENS
from kinesis_efo.positions import TRIM_HORIZON, Mark, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.access import Next, Plan
from kinesis_efo.run.query_ends import EndPositions
from kinesis_efo.run.query_planner import QueryPlanner
from kinesis_efo.spark import stream_planner, stream_reader
from kinesis_efo.spark.stream_planner import StreamPlanner
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from kinesis_efo.tasks.compat import SPARK_VERSION
from tests.support.fetched import after, key

pytestmark = pytest.mark.spark

HERE, THERE, PLANNER = (FetcherAddress("here", port) for port in (1, 2, 3))
START = Position.at_timestamp(1_700_000_000_000)
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
ORDERS = StreamRef("orders", "orders", ARN, f"{ARN}/consumer/lake:1")
MANIFEST = Manifest("lake", "dev", "us-east-1", "leases", {"orders": ORDERS}, "manifest.json", {"orders": "orders"})


class Query:
    """What a query planner asks of a query, answered by a script: how far each shard goes, and with how many records."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.polls: list[tuple[Offset, int, int]] = []
        self.timeouts: list[float] = []
        self.checked: list[tuple[Offset, list[ShardRange]]] = []
        self.resumed: list[Offset] = []
        self.marks: list[str] = []
        self.there: dict[ShardKey, tuple[Position, int]] = {}
        self.found: Offset | None = None
        self.ending: EndPositions | None = None
        self.cut: dict[ShardRange, int] = {}
        self.lasts: dict[ShardKey, int] = {}
        self.behind = 5
        self.quiet: dict[ShardKey, float] = {}
        self.finished: frozenset[ShardKey] = frozenset()
        self.at_poll: Callable[[], None] = lambda: None

    async def wait_held(self, at_most: float) -> bool:
        return at_most > 0

    def stop_reading(self, shards: frozenset[ShardKey]) -> None:
        self.finished = shards

    def pause(self, *, yes: bool) -> None: ...

    def rewrite_lease_rows(self, offset: Offset) -> None: ...

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> PollReply:
        self.at_poll()
        self.polls.append((offset, max_bytes, max_records))
        self.timeouts.append(at_most)
        shards = []
        for shard, at in offset.items():
            through, records = self.there.get(shard, (at, 0))
            if at.reaches(through):
                through, records = at, 0
            last = self.lasts.get(shard) if records else None
            quiet = self.quiet.get(shard, 0.0)
            shards.append(ShardProgress(shard, through, records, 100 * records, self.behind, last, quiet, 20 * records))
        return PollReply(shards, [], [])

    def plan(self, end: Offset) -> None:
        self.progress.plan(end)

    def begin(self, offset: Offset) -> None:
        self.progress.begin(offset)

    def finish(self, mark: Mark) -> bool:
        return self.progress.finish(mark)

    async def check_replay(
        self, begin: Offset, ranges: list[ShardRange], end: Offset | None, *, repeated: bool = True
    ) -> None:
        self.progress.begin(begin, end)
        self.checked.append((begin, ranges))

    async def ends(self, offset: Offset, at_most: float) -> EndPositions | None:
        return self.ending

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        return self.found

    def still_quiet(self, _: Offset, quiet: dict[ShardKey, float]) -> dict[ShardKey, float]:
        return quiet

    def last_records(self, ranges: list[ShardRange]) -> dict[ShardKey, int]:
        return {wanted.key: self.cut[wanted] for wanted in ranges if wanted in self.cut}

    def resume(self, offset: Offset) -> None:
        self.resumed.append(offset)

    def record_logged(self, mark: Mark) -> None:
        self.marks.append(str(mark))


class Reader(KinesisStreamReader):
    """A reader with a query planner of its own in place of a run."""

    def __init__(self, initial: Mapping[ShardKey, Position], *, marked: bool = False, **options: str) -> None:
        parsed = SourceOptions.parse({"manifest": "m.json", **options})
        super().__init__(parsed, MANIFEST)
        self.marked = marked
        self.query: Any = Query()
        self.late = 0
        self.waited: list[float] = []
        self.fetchers: dict[ShardKey, FetcherAddress] = {}
        self.seconds = 100.0
        self.reports: list[str] = []
        """Marks of micro-batches that the driver reports during each call."""
        self.clock = SimpleNamespace(monotonic=lambda: self.seconds, time=lambda: self.seconds, sleep=asyncio.sleep)
        self.limits = KINESIS_LIMITS
        self.unfinished: Mark | None = None
        self.reading = False
        self.secret, self.query_name = "s", "q"
        self.start_at = Offset(initial)
        self.planner = QueryPlanner(self, self.query, "q", parsed, MANIFEST.streams)
        run: Any = self
        self.here = self.__dict__["_planner"] = StreamPlanner(parsed, MANIFEST, lambda: run)

    def start(self) -> None: ...

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        data = super().latestOffset(start, limit)
        # Offsets are compared whole in most tests. Marks have tests of their own.
        return data if self.marked else {name: value for name, value in data.items() if name not in ("begin", "mark")}

    @property
    def planner_address(self) -> FetcherAddress:
        return PLANNER

    def finish(self, end: dict[str, Any]) -> None:
        """Let the driver say that a micro-batch is done."""
        asyncio.run(self.planner.finished([Mark.parse(end["mark"])], None))

    def record_logged(self, mark: Mark) -> None:
        self.query.record_logged(mark)
        self.unfinished = mark

    def ask(self, call: Any) -> Any:
        match call:
            case Plan():
                self.unfinished = call.end.mark
            case Next():
                self.unfinished = None
        return asyncio.run(self._answered(call))

    async def _answered(self, call: Any) -> Any:
        answering = asyncio.ensure_future(self.planner.answer(call))
        await asyncio.sleep(0)
        for mark in self.reports:
            await self.planner.finished([Mark.parse(mark)], None)
        return await answering

    async def initial(self, start: Any, names: Any, query: Any) -> Offset:
        return self.start_at

    async def placed(self, ranges: Sequence[ShardRange], at_most: float, query: str) -> list[FetcherAddress | None]:
        self.waited.append(at_most)
        late = len(self.waited) <= self.late
        return [None if late else self.fetchers.get(wanted.key, HERE) for wanted in ranges]


def offset(**positions: Position) -> dict[str, Any]:
    """`offset(s0=..., s1=...)` as Spark hands it over."""
    read = {key(int(name[1:])): position for name, position in positions.items()}
    return Offset(read).to_dict({"orders": f"{ARN}/consumer/lake:1"})


def ranges(partitions: Any) -> list[ShardRange]:
    return sorted(r for partition in partitions for r in partition.ranges)


def test_limits_of_the_options_hold(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader({key(0): START}, maxRecordsPerTrigger="7", maxBytesPerTrigger="3k")
    reader.latestOffset(offset(s0=START), None)
    (warning,) = (each.getMessage() for each in caplog.records if "maxBytesPerTrigger" in each.getMessage())
    assert "counts the data of records since 0.3" in warning
    assert reader.query.polls[-1][1:] == (3072, 7)
    if SPARK_VERSION >= (4, 2):
        limit = reader.getDefaultReadLimit()
        reader.latestOffset(offset(s0=START), limit)
        assert (limit.max_rows, reader.query.polls[-1][1:]) == (7, (3072, 7))


def test_idle_offsets_alone_are_stored_once_per_interval() -> None:
    reader = Reader({key(0): START}, idleCheckpointInterval="60s")
    reader.query.there = {key(0): (after(10), 0)}
    assert reader.latestOffset() == offset(s0=START)
    reader.seconds += 59
    assert reader.latestOffset() == offset(s0=START)
    reader.seconds += 1
    assert reader.latestOffset() == offset(s0=after(10))
    reader.partitions(offset(s0=START), offset(s0=after(10)))
    reader.query.there = {key(0): (after(20), 0)}
    assert reader.latestOffset() == offset(s0=after(10))


def test_idle_micro_batch_has_one_empty_task() -> None:
    reader = Reader({key(0): START})
    reader.seconds += 1000
    reader.query.there = {key(0): (after(10), 0)}
    assert reader.latestOffset() == offset(s0=after(10))
    (partition,) = reader.partitions(offset(s0=START), offset(s0=after(10)))
    assert partition.ranges == ()
    options = SourceOptions.parse({"manifest": "m.json"})
    worker: KinesisStreamReader = pickle.loads(pickle.dumps(KinesisStreamReader(options, MANIFEST)))
    assert list(worker.read(pickle.loads(pickle.dumps(partition)))) == []


def test_only_the_first_micro_batch_is_checked_for_losses() -> None:
    reader = Reader({key(0): TRIM_HORIZON})
    assert reader.partitions(offset(s0=after(5)), offset(s0=after(5))) == []  # Spark 4.0 says where the query is
    assert reader.query.checked == []
    reader.partitions(offset(s0=TRIM_HORIZON), offset(s0=after(5)))
    reader.partitions(offset(s0=after(5)), offset(s0=after(9)))
    begin = Offset({key(0): TRIM_HORIZON})
    assert reader.query.checked == [(begin, [ShardRange(key(0), TRIM_HORIZON, after(5))])]


def test_idle_source_answers_at_once_if_others_have_rows() -> None:
    reader = Reader({key(0): after(1)}, pollTimeout="200ms")
    begin = offset(s0=after(1))

    def trigger(*, batch: bool) -> float:
        end = reader.latestOffset(begin)
        if batch:
            reader.commit(begin)  # Spark has planned a micro-batch: it tells every source that the one before is done
            if end != begin:
                reader.partitions(begin, end)
        return reader.query.timeouts[-1]

    assert [trigger(batch=True) for _ in range(4)] == [0.2, 0, 0, 0]
    assert [trigger(batch=False) for _ in range(3)] == [0, 0.2, 0.2], "nobody has rows: no busy waiting"
    reader.query.there = {key(0): (after(9), 1)}
    assert [trigger(batch=True) for _ in range(2)] == [0.2, 0.2], "its own rows"


@pytest.mark.parametrize("version", [(4, 0), (4, 3)])
@pytest.mark.parametrize(
    ("asked", "finished", "listener", "options", "said"),
    [
        (1, True, True, {}, "may not have read all"),
        (1, False, False, {}, "may not have read all"),
        (1, False, True, {}, None),  # it failed, or was stopped
        (2, True, True, {}, None),
        (1, True, True, {"catchUp": "true", "maxRecordsPerTrigger": "1"}, None),
        (0, True, True, {}, "which an earlier run had begun"),
        (0, True, True, {"catchUp": "true"}, "which an earlier run had begun"),
        (0, False, False, {}, None),
    ],
)
def test_query_that_ends_behind_the_tips_warns(
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
    reader.query.there[key(0)] = (after(9), 3)
    start, end = offset(s0=START), {**offset(s0=after(9)), "mark": "ab:1"}
    reader.query.found = Offset({key(0): after(9)})
    for _ in range(asked):
        reader.latestOffset(start)
    reader.partitions(start, end)
    if finished:
        reader.finish(end)
    with caplog.at_level(logging.WARNING):
        reader.here.warn_of_unread(0.0)
        reader.here.warn_of_unread(0.0)
    if version >= (4, 2) and asked:
        said = None
    assert len(caplog.messages) == (said is not None)
    assert said is None or said in caplog.text


@pytest.mark.parametrize(
    ("behind", "records", "options", "warned"),
    [(0, 3, {}, False), (0, 3, {"maxRecordsPerTrigger": "3"}, True), (0, 0, {}, False), (5, 0, {}, True)],
)
def test_query_that_has_read_everything_ends_without_warning(
    behind: int,
    records: int,
    options: dict[str, str],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stream_planner, "SPARK_VERSION", (4, 0))
    reader = Reader({key(0): START}, **options)
    reader.query.there[key(0)] = (after(9), records)
    reader.query.behind = behind
    reader.partitions(offset(s0=START), reader.latestOffset(offset(s0=START)))
    with caplog.at_level(logging.WARNING):
        reader.here.warn_of_unread(0.0)
    assert len(caplog.messages) == warned


def test_report_of_the_last_micro_batch_is_awaited() -> None:
    reader = Reader({key(0): START}, marked=True, **{LISTENS: "true"})
    reader.query.there[key(0)] = (after(9), 3)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    reader.partitions(start, end)
    began = time.monotonic()
    for reports, finished in ((["other:1"], False), (["other:2", end["mark"]], True)):
        reader.reports = reports
        reader.here.warn_of_unread(60.0 if finished else 0.0)
        reached = reader.query.progress.finished
        assert (reached is not None and str(reached.mark) == end["mark"]) is finished
    assert time.monotonic() - began < 30, "the report ends the wait"


def test_tasks_are_made_once_all_shards_have_a_fetcher() -> None:
    reader = Reader({key(number): after(0) for number in range(4)})
    reader.fetchers, reader.late = {key(1): THERE}, 3
    reader.query.there = {key(number): (after(10), 1) for number in range(4)}
    begin = reader.initialOffset()
    tasks = reader.partitions(begin, reader.latestOffset(begin))
    assert {(task.address, *(r.key for r in task.ranges)) for task in tasks} == {
        (HERE, key(0), key(2), key(3)),
        (THERE, key(1)),
    }
    assert reader.waited == [0.0] + [0.2] * 3
    assert all(task.planner == PLANNER for task in tasks)


def test_pickled_reader_has_no_planner() -> None:
    reader = KinesisStreamReader(SourceOptions.parse({"manifest": "m.json"}), MANIFEST)
    reader.__dict__["_planner"] = threading.Lock()
    again = pickle.loads(pickle.dumps(reader))
    assert "_planner" not in vars(again)
    assert vars(again).items() <= vars(reader).items()
    assert len(vars(again)) >= 2, "its options and its manifest"


def test_unpickled_reader_has_its_modules_before_they_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, loaded = "kinesis_efo.records.decoder", list[bool]()
    monkeypatch.delitem(sys.modules, decoder)
    monkeypatch.setattr(stream_reader.latency, "install", lambda: loaded.append(decoder in sys.modules))
    pickle.loads(pickle.dumps(KinesisStreamReader(SourceOptions(), MANIFEST)))
    assert loaded == [True]


def test_a_checkpoint_of_another_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a kinesis-efo offset"):
        Reader({}).partitions({"seq": 1}, {"seq": 2})


def with_lasts(lasts: Mapping[ShardKey, int], **positions: Position) -> dict[str, Any]:
    """As `offset`, with the last records of some shards."""
    read = {key(int(name[1:])): position for name, position in positions.items()}
    return Offset(read, lasts).to_dict({"orders": f"{ARN}/consumer/lake:1"})


def test_last_record_before_an_end_within_an_event() -> None:
    reader = Reader({key(0): after(1)})
    reader.prepareForTriggerAvailableNow()
    reader.query.ending = EndPositions(Offset({key(0): after(50)}))
    reader.query.there, reader.query.lasts = {key(0): (after(70), 9)}, {key(0): 69}
    reader.query.cut = {ShardRange(key(0), after(1), after(50)): 48}
    assert reader.latestOffset(offset(s0=after(1))) == with_lasts({key(0): 48}, s0=after(50))


def test_shard_that_ends_quietly_is_not_read_while_others_wait() -> None:
    """Its later records would take up `maxRecordsPerTrigger`, so that the others never get to their ends."""
    reader = Reader({key(0): after(1), key(1): after(1)})
    query = reader.query
    reader.prepareForTriggerAvailableNow()
    query.ending = EndPositions(Offset({key(0): after(50), key(1): after(50)}))

    def pass_time() -> None:
        reader.seconds += 5.0
        query.quiet = {key(0): reader.seconds - 100.0}
        if query.finished:
            query.there = {key(1): (after(50), 9)}
        assert len(query.polls) < 10

    query.at_poll = pass_time
    assert reader.latestOffset(offset(s0=after(1), s1=after(1))) == offset(s0=after(1), s1=after(50))
    assert query.finished == {key(0)}


def test_call_of_a_task_outlasts_the_patience_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
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


class FakeRanges:
    """Reads nothing."""

    def read(self, ranges: object, fetcher: object) -> list[Any]:
        return []


def test_new_query_marks_its_checkpoint_and_counts_moves() -> None:
    reader = Reader({key(0): START}, marked=True)
    first = reader.latestOffset(reader.initialOffset() if SPARK_VERSION >= (4, 2) else None)
    assert reader.latestOffset(first) == first
    name, _, moved = first["mark"].partition(":")
    assert moved == "0"
    assert len(name) == 8
    reader.partitions(first, first)
    assert reader.latestOffset() == first, "nothing moved: Spark would take another text for a micro-batch"
    reader.query.there[key(0)] = (after(10), 3)
    second = reader.latestOffset()
    assert second["mark"] == f"{name}:1"
    assert reader.latestOffset() == second, "asked again before it was planned"
    reader.partitions(first, second)
    reader.query.there[key(0)] = (after(20), 3)
    third = reader.latestOffset()
    assert third["mark"] == f"{name}:2"
    assert reader.query.marks == [second["mark"]], "noted once Spark's log has it"
    assert [wanted.after for wanted in ranges(reader.partitions(second, third))] == [after(10)]
    assert reader.query.marks == [second["mark"], third["mark"]]
    assert reader.query.resumed == [], "a new query goes on from no checkpoint"
    other = Reader({key(0): START}, marked=True)
    assert other.latestOffset()["mark"] != first["mark"]


def test_mark_of_the_checkpoint_continues_or_is_added() -> None:
    for mark, expected in (({"mark": "7c1f09ab:41"}, "7c1f09ab:42"), ({}, "[0-9a-f]{8}:1")):
        begin = {**offset(s0=after(10)), **mark}
        reader = Reader({}, marked=True)
        assert reader.latestOffset(begin) == begin
        reader.query.there[key(0)] = (after(20), 3)
        moved = reader.latestOffset(begin)["mark"]
        assert re.fullmatch(expected, moved)
        (resumed,) = reader.query.resumed
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
