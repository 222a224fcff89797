"""A query's place in its run, and the offsets that Spark passes again and again; what it asks its run for, and the tasks that it makes."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.ending import EndingState
from kinesis_efo.errors import ConfigurationError, FetcherError, FetcherUnreachableError
from kinesis_efo.options import SourceOptions
from kinesis_efo.options.source import LISTENS
from kinesis_efo.positions import Mark, Offset, Position, ShardKey
from kinesis_efo.run.access import BatchPlan, Begin, Logged, Next, Plan, Reading, Step
from kinesis_efo.spark import stream_planner
from kinesis_efo.spark.stream_planner import QueryRun, StreamPlanner, _check_first
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from kinesis_efo.tasks.compat import SPARK_VERSION
from kinesis_efo_local.sequence import Numbering
from tests.support.fetched import key
from tests.support.messages import raises
from tests.support.shared_runs import manifest
from tests.support.world import wait_until

pytestmark = pytest.mark.spark

OPTIONS = SourceOptions.parse({"manifest": "m.json", LISTENS: "true"})
ORDERS = manifest("orders")
START = Offset({key(0): Position.after(1)})


class Run:
    """A run that replies as a test says."""

    def __init__(self, reply: Callable[[Any], Any] = lambda _call: None) -> None:
        self.reply = reply
        self.asked: list[Any] = []
        self.did: list[str] = []
        self.failures = 0
        self.unfinished: Mark | None = None

    def start(self) -> None:
        self.did.append("start")
        if self.failures:
            self.failures -= 1
            raise FetcherError("no run")

    def stop(self) -> None:
        self.did.append("stop")

    def ask(self, call: Any) -> Any:
        self.asked.append(call)
        return self.reply(call)


def query_of(run: Any, options: SourceOptions = OPTIONS) -> QueryRun:
    return QueryRun(options, lambda: run, lambda: run.did.append("last word"))


def test_a_failed_join_is_retried_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[None] = []
    monkeypatch.setattr(stream_planner, "end_ahead", lambda: ended.append(None))
    run = Run()
    run.failures = 1
    query = query_of(run)
    assert run.did == [], "nothing is joined before it is needed"
    with pytest.raises(FetcherError, match="no run"):
        query.begin(START)
    assert len(ended) == 1, "what was started ahead is not needed"
    query.begin(START)
    query.begin(START)
    assert run.did == ["start", "start"]
    (begin,) = run.asked
    assert begin == Begin(mark=begin.mark, resumed=START)
    assert len(ended) == 2


def test_the_last_micro_batch_is_reported_at_the_stop() -> None:
    run = Run(lambda call: isinstance(call, Logged))
    query = query_of(run)
    assert not query.finishes_last(2.0), "not joined"
    query.begin(START)
    run.asked.clear()
    assert not query.finishes_last(2.0), "Spark has asked for more after it"
    run.unfinished = Mark("ab", 3)
    assert query.finishes_last(2.0)
    assert run.asked == [Logged(Mark("ab", 3), 2.0)]
    # Without the driver's reports there is nothing to wait for.
    silent = query_of(run, replace(OPTIONS, listens=False))
    silent.begin(START)
    run.asked.clear()
    assert not silent.finishes_last(2.0)
    assert run.asked == []


@pytest.mark.slow
def test_after_a_signal_the_query_leaves_when_quiet() -> None:
    reading = threading.Event()
    reading.set()

    def reply(call: Any) -> bool:
        if not reading.is_set():
            raise FetcherError("the run has ended")
        return isinstance(call, Reading)

    run = Run(reply)
    query = query_of(run, replace(OPTIONS, lease_timeout=0.5))
    query.begin(START)
    leaving = threading.Thread(target=query.leave_when_quiet)
    leaving.start()
    wait_until(lambda: len(run.asked) > 8, 60, "questions for longer than the quiet may last")
    assert run.did == ["start"]
    reading.clear()
    quiet = time.monotonic()
    leaving.join(60)
    assert run.did == ["start", "last word", "stop"]
    assert time.monotonic() - quiet >= 0.3
    never_joined = Run()
    query_of(never_joined).leave_when_quiet()
    assert never_joined.did == []


def test_a_stopped_reader_removes_its_notes_and_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_planner, "notes_directory", lambda: tmp_path / "notes")
    run: Any = Run(lambda call: Step(START, behind=[(key(0), 7)]) if isinstance(call, Next) else None)
    options = replace(OPTIONS, listens=False)
    reader = KinesisStreamReader(options, ORDERS)
    planner = reader.__dict__["_planner"] = StreamPlanner(options, ORDERS, lambda: run)
    reader.latestOffset(Offset({key(0): Position.after(0)}).to_dict())
    assert reader.reportLatestOffset() == {
        "millisBehindLatest": {"orders": {"shardId-000000000000": 7}}, "bytes": 0, "dataBytes": 0
    }  # fmt: skip
    planner.lag.write(START)
    assert len(list((tmp_path / "notes").iterdir())) == 1
    reader.stop()
    assert list((tmp_path / "notes").iterdir()) == []
    assert run.did == ["start", "stop"]


def test_repeated_ranges_skip_accepted_losses() -> None:
    first, second = key(0), key(1)
    begin = Offset({first: Position.after(5), second: Position.after(5)})
    end = Offset({first: Position.after(9), second: Position.after(9)}, {first: 8, second: 8})
    run = Run(lambda call: served(HERE, shards=2) if isinstance(call, Plan) else None)
    options = replace(OPTIONS, accepted_losses={first: Position.after(5), second: Position.after(4)})
    tasks = planned_by(run, options).tasks(begin.to_dict(), end.to_dict())
    assert {each.key: each.last for task in tasks for each in task.ranges} == {first: None, second: 8}


def test_a_planner_is_made_lazily() -> None:
    reader = KinesisStreamReader(OPTIONS, ORDERS)
    assert "_planner" not in vars(reader)
    reader.prepareForTriggerAvailableNow()
    assert "_planner" not in vars(reader), "the streams are not chosen yet"
    assert reader.reportLatestOffset() is None
    assert reader._planner is reader._planner
    if SPARK_VERSION >= (4, 2):
        assert reader.getDefaultReadLimit().max_bytes == 1 << 62
        limited = KinesisStreamReader(replace(OPTIONS, max_records_per_trigger=7), ORDERS)
        assert limited.getDefaultReadLimit().max_rows == 7


END = Offset({key(0): Position.after(9)}, mark=Mark("ab", 1))
HERE, THERE = FetcherAddress("here", 1), FetcherAddress("there", 1)


def planned_by(run: Run, options: SourceOptions = OPTIONS) -> StreamPlanner:
    there: Any = run
    there.secret, there.planner_address, there.query_name = "secret", HERE, "q"
    return StreamPlanner(options, ORDERS, lambda: there)


def served(*fetchers: FetcherAddress | None, shards: int = 1) -> BatchPlan:
    """A plan for some shards, of which each fetcher has one, and the first one the rest."""
    numbers = [number if number < len(fetchers) else 0 for number in range(shards)]
    return BatchPlan(list(fetchers), [(key(shard), number, 0) for shard, number in enumerate(numbers)])


def test_only_the_first_micro_batch_is_checked_for_losses() -> None:
    run = Run(lambda call: served(HERE) if isinstance(call, Plan) else None)
    planner, (first, second, third) = (
        planned_by(run),
        [Offset({key(0): Position.after(at)}).to_dict() for at in (1, 5, 9)],
    )
    assert planner.tasks(second, second) == []  # Spark 4.0 says where the query is
    planner.tasks(first, second)
    planner.tasks(second, third)
    assert [call.first for call in run.asked if isinstance(call, Plan)] == [True, False]


def test_plan_that_came_with_an_end_is_used_once_logged() -> None:
    ends = [Offset({key(0): Position.after(at)}, mark=Mark("ab", at)) for at in (1, 5, 9)]
    left = ends[1:]
    run: Any = Run(lambda call: Step(left.pop(0), plan=served(HERE)) if isinstance(call, Next) else served(HERE))
    run.record_logged = run.did.append
    planner, at = planned_by(run), ends[0].to_dict()
    for _ in range(2):
        end = planner.latest(at, once=False)
        assert [each.key for task in planner.tasks(at, end) for each in task.ranges] == [key(0)]
        at = end
    assert [type(call) for call in run.asked] == [Begin, Next, Plan, Next]
    assert run.did == ["start", ends[2].mark], "the run learns of the first one by the call"


def test_idle_source_answers_at_once_if_others_have_rows() -> None:
    run = Run(lambda call: {Next: Step(), Plan: served(HERE)}.get(type(call)))
    planner, begin = planned_by(run), START.to_dict()

    def trigger(*, batch: bool) -> bool:
        end = planner.latest(begin, once=False)
        if batch:
            planner.commit()  # Spark has planned a micro-batch: it tells every source that the one before is done
            planner.tasks(begin, end)
        (*_, last) = (call for call in run.asked if isinstance(call, Next))
        return last.hurry

    assert [trigger(batch=True) for _ in range(4)] == [False, True, True, True]
    assert [trigger(batch=False) for _ in range(3)] == [True, False, False], "nobody has rows: no busy waiting"
    run.reply = lambda call: {Next: Step(END), Plan: served(HERE)}.get(type(call))
    assert [trigger(batch=True) for _ in range(2)] == [False, False], "its own rows"


def test_tasks_are_made_once_all_shards_have_a_fetcher() -> None:
    replies = [served(None, shards=4)] * 3 + [served(HERE, THERE, shards=4)]
    run = Run(lambda call: replies.pop(0) if isinstance(call, Plan) else None)
    begin, end = (Offset({key(number): Position.after(at) for number in range(4)}).to_dict() for at in (0, 10))
    tasks = planned_by(run).tasks(begin, end)
    assert {(task.address, *(each.key for each in task.ranges)) for task in tasks} == {
        (HERE, key(0), key(2), key(3)),
        (THERE, key(1)),
    }
    assert replies == [] and all(task.planner == HERE for task in tasks)


def test_idle_micro_batch_has_one_empty_task() -> None:
    run = Run(lambda call: BatchPlan([], []) if isinstance(call, Plan) else None)
    (task,) = planned_by(run).tasks(START.to_dict(), END.to_dict())
    assert task.ranges == ()


@pytest.mark.parametrize("version", [(4, 0), (4, 3)])
@pytest.mark.parametrize(
    ("asked", "behind", "finished", "options", "said"),
    [
        (1, 5, True, {LISTENS: "true"}, "may not have read all"),
        (1, 5, False, {}, "may not have read all"),
        (1, 5, False, {LISTENS: "true"}, None),  # it failed, or was stopped
        (2, 5, True, {LISTENS: "true"}, None),
        (1, 5, True, {LISTENS: "true", "catchUp": "true", "maxRecordsPerTrigger": "1"}, None),
        (0, 5, True, {LISTENS: "true"}, "which an earlier run had begun"),
        (0, 5, True, {LISTENS: "true", "catchUp": "true"}, "which an earlier run had begun"),
        (0, 5, False, {}, None),
        (1, 0, False, {}, None),
        (1, 0, False, {"maxRecordsPerTrigger": "3"}, "may not have read all"),
        (1, 0, None, {LISTENS: "true"}, None),
        (1, 5, None, {LISTENS: "true"}, "may not have read all"),
    ],
)
def test_query_that_ends_behind_the_tips_warns(
    version: tuple[int, int],
    asked: int,
    behind: int | None,
    finished: bool | None,
    options: dict[str, str],
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`finished` is None where it had nothing to read."""
    monkeypatch.setattr(stream_planner, "SPARK_VERSION", version)
    ending = EndingState(False, True, True, None, []) if "catchUp" in options else None
    step = Step(None if finished is None else END, behind=[(key(0), behind)], ending=ending)
    run = Run(lambda call: {Next: step, Plan: served(HERE), Logged: finished}.get(type(call)))
    run.unfinished = END.mark
    planner = planned_by(run, SourceOptions.parse({"manifest": "m.json", **options}))
    for _ in range(asked):
        planner.latest(START.to_dict(), once=False)
    if finished is not None:
        planner.tasks(START.to_dict(), END.to_dict())
    with caplog.at_level(logging.WARNING):
        planner.warn_of_unread(0.0)
        planner.warn_of_unread(0.0)
    if version >= (4, 2) and asked:
        said = None
    assert len(caplog.messages) == (said is not None)
    assert said is None or said in caplog.text


def test_an_end_needs_a_query_that_ends() -> None:
    ending = SourceOptions.parse({"manifest": "m.json", "endingPosition": "AT_TIMESTAMP:2020-01-01T00:00Z"})
    with pytest.raises(ConfigurationError, match="'endingPosition' needs a query that ends"):
        planned_by(Run(), ending).latest(START.to_dict(), once=False)


def test_unfinished_first_micro_batch_before_its_start_is_an_error() -> None:
    shard = ShardKey("orders", "shardId-000000000003")
    through = Position.after(int(Numbering(3, 1_600_000_000).record(1_700_000_000 * 10**9)))
    _check_first(Offset({shard: Position.at_timestamp(1_700_000_000_000)}), Offset({shard: through}))
    with raises(
        ConfigurationError,
        "shard orders:shardId-000000000003: an earlier version has planned micro-batch 0 up to ... without finishing it, and the "
        "checkpoint does not contain its begin; it would begin now, at AT_TIMESTAMP:1700000002000, after its end. Set kinesis-efo option "
        "'startingPosition' to the time at which the query was first started, or delete the checkpoint",
    ):
        _check_first(Offset({shard: Position.at_timestamp(1_700_000_002_000)}), Offset({shard: through}))


def test_query_that_continues_after_a_signal_fails() -> None:
    run = QueryRun(OPTIONS, Mock(), Mock())
    run.leave_when_quiet()
    run.check_stopping(ends=False)
    for options in ({"ends": True}, {"ends": False, "stall": -1.0}):
        with raises(
            FetcherUnreachableError,
            "the Python process that Spark started for this query received SIGTERM, but Spark did not stop the query; start it again",
        ):
            run.check_stopping(wait=0.0, **options)
