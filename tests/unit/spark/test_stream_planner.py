"""A query's place in its run, and the offsets that Spark passes again and again; planning has tests of its own in `test_stream_reader.py`."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kinesis_efo.calls.address import FetcherAddress
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
    address = FetcherAddress("", 1)
    run: Any = Run(
        lambda call: BatchPlan([address], [(each, 0, None) for each in begin], []) if isinstance(call, Plan) else None
    )
    run.secret, run.planner_address, run.query_name = "secret", address, "q"
    options = replace(OPTIONS, accepted_losses={first: Position.after(5), second: Position.after(4)})
    tasks = StreamPlanner(options, ORDERS, lambda: run).tasks(begin.to_dict(), end.to_dict())
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


def test_an_end_needs_a_query_that_ends() -> None:
    run: Any = Run()
    ending = SourceOptions.parse({"manifest": "m.json", "endingPosition": "AT_TIMESTAMP:2020-01-01T00:00Z"})
    with pytest.raises(ConfigurationError, match="'endingPosition' needs a query that ends"):
        StreamPlanner(ending, ORDERS, lambda: run).latest(START.to_dict(), once=False)


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


def test_query_that_goes_on_after_a_signal_fails() -> None:
    run = QueryRun(OPTIONS, Mock(), Mock())
    run.leave_when_quiet()
    run.check_stopping(ends=False)
    for options in ({"ends": True}, {"ends": False, "stall": -1.0}):
        with raises(
            FetcherUnreachableError,
            "the Python process that Spark started for this query received SIGTERM, but Spark did not stop the query; start it again",
        ):
            run.check_stopping(wait=0.0, **options)
