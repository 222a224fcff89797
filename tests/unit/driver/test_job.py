"""How a job ends, and with which exit code and last words; with a session that is none."""

import os
import re
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pyspark.errors import PySparkRuntimeError, StreamingQueryException
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from kinesis_efo.driver.job import _Failures, job
from kinesis_efo.errors import OptionsError
from tests.support.world import wait_until

pytestmark = pytest.mark.spark43


class Query:
    """A query that runs until it is stopped."""

    runId = "run"
    lastProgress = None

    def __init__(self, failure: Exception | None = None, *, busy: bool = False) -> None:
        self.status = {"isTriggerActive": busy, "message": "Processing new data"}
        self._ended = threading.Event()
        self._failure = failure

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    def awaitTermination(self) -> None:
        assert self._ended.wait(30)
        if self._failure is not None:
            raise self._failure

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self._ended.set()


class Session:
    """What `job` needs of a session of Spark Connect."""

    def __init__(self, *queries: Query) -> None:
        self.conf = SimpleNamespace(get=lambda _name, _default: "my job")
        self.queries = list(queries)
        self.streams = self
        self.stopped = threading.Event()

    @property
    def active(self) -> list[Query]:
        return [query for query in self.queries if query.isActive]

    def stop(self) -> None:
        self.stopped.set()


RUNNING = "Traceback (most recent call last):\nkinesis_efo.errors.AlreadyRunningError: stream a: read by b\n\tat org.apache.spark\n"


def run(session: Session, body: Any) -> int:
    """Run a body as a job, and return its exit code."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with job(session):  # type: ignore[arg-type]
            body()
    except SystemExit as ended:
        return ended.code  # type: ignore[return-value]
    finally:
        assert session.stopped.is_set()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    return 0


def test_a_successful_job_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(Session(), lambda: None) == 0
    assert capfd.readouterr() == ("", "")


def test_the_last_lines_are_all_faults(capfd: pytest.CaptureFixture[str]) -> None:
    class Loud(Session):
        def stop(self) -> None:
            super().stop()
            sys.stderr.write("Spark says something while it stops\n")

    def fail() -> None:
        raise OptionsError(["one is wrong", "another, too", "and a third"]) from ValueError("the cause")

    assert run(Loud(), fail) == 2
    text = capfd.readouterr().err
    assert text.endswith("\nmy job failed: OptionsError: one is wrong\nanother, too\nand a third\n")
    assert "Spark says something while it stops" in text
    # Where it was, and no traceback: that would say it twice.
    assert re.findall(r'File ".*test_job\.py", line \d+, in (\w+)', text)[-1] == "fail"
    assert text.count("OptionsError: one is wrong") == 1
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("text", "code"), [(RUNNING, 3), (RUNNING.replace("AlreadyRunning", "DataLoss"), 6), ("out of disk", 1)]
)
def test_exit_code_shows_what_failed(text: str, code: int) -> None:
    def fail() -> None:
        raise StreamingQueryException(text)

    assert run(Session(), fail) == code


@pytest.mark.parametrize("error", [OptionsError(["one is wrong"]), KeyError("field"), KeyboardInterrupt()])
def test_job_without_exit_raises_quietly(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    session = Session()
    with pytest.raises(type(error)) as raised, job(session, exit=False):  # type: ignore[arg-type]
        raise error
    assert raised.value is error
    assert session.stopped.is_set()
    assert capfd.readouterr() == ("", "")


OURS = "Traceback (most recent call last):\nkinesis_efo.errors.DataLossError: shard a: gone\n\tat org.apache.spark\n"


def ended(text: str | None) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(UUID(int=1), UUID(int=2), text, None)


def test_an_awaited_querys_error_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    failures = _Failures()
    for text in (None, OURS, OURS):
        failures.onQueryTerminated(ended(text))
    failures.report(but="my job failed: DataLossError: shard a: gone")
    failures.report()
    assert capfd.readouterr().err == ""
    failures.onQueryTerminated(ended(OURS))
    # A program that ends does not wait for them.
    assert {each.daemon for each in threading.enumerate() if isinstance(each, threading.Timer)} == {True}
    failures.report(but="another query's words")
    assert capfd.readouterr().err == "a query failed: DataLossError: shard a: gone\n"


def test_an_unawaited_error_is_printed_later(capfd: pytest.CaptureFixture[str]) -> None:
    failures = _Failures()
    failures.onQueryTerminated(ended("java.io.IOException: full\n\tat java.io.File\n"))
    assert capfd.readouterr().err == "java.io.IOException: full\n\tat java.io.File\n"
    failures = _Failures(delay=0.0)
    failures.onQueryTerminated(ended(OURS))
    text = ""

    def said() -> str:
        nonlocal text
        text += capfd.readouterr().err
        return text

    assert wait_until(said) == "a query failed: DataLossError: shard a: gone\n"


def test_a_missing_java_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    def launch() -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    with pytest.raises(SystemExit) as ended, job(SimpleNamespace(getOrCreate=launch)):  # type: ignore[arg-type]
        pass
    assert ended.value.code == 1
    text = capfd.readouterr().err
    assert f"the job failed: Spark needs Java 17 or 21, but {tmp_path}/bin/java does not run" in text
    assert "apt-get install openjdk-17-jre-headless" in text
    assert "Traceback" not in text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_that_leaves_the_job_leaves_spark_running() -> None:
    session, parent = Session(), os.getpid()
    try:
        with job(session):  # type: ignore[arg-type]
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                assert not session.stopped.is_set()
    finally:
        if os.getpid() != parent:
            os._exit(1 if session.stopped.is_set() else 0)
    assert session.stopped.is_set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_queries_and_the_program_finishes(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    queries = [Query(), Query()]
    done = []

    def work() -> None:
        signal.raise_signal(number)
        for query in queries:
            query.awaitTermination()
        done.append(True)

    assert run(Session(*queries), work) == 0
    assert done
    assert capfd.readouterr().err == ""


def test_after_a_signal_later_queries_are_stopped_too() -> None:
    session = Session(Query())

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        session.queries[0].awaitTermination()
        session.queries.append(Query())
        session.queries[1].awaitTermination()

    assert run(session, work) == 0


@pytest.mark.parametrize(("awaited", "leaves"), [(0, False), (1, False), (0, True)])
def test_a_failure_during_the_stop_fails_the_job(awaited: int, leaves: bool, capfd: pytest.CaptureFixture[str]) -> None:
    queries = [Query(), Query(StreamingQueryException("the sink is full"))]

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        queries[awaited].awaitTermination()
        if leaves:
            sys.exit(0)

    assert run(Session(*queries), work) == 1
    assert capfd.readouterr().err.endswith("\nmy job failed: StreamingQueryException: the sink is full\n")


def test_a_signal_that_ended_hadoop_too_is_no_failure() -> None:
    query = Query(StreamingQueryException("ExitCodeException exitCode=143: "))

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        query.awaitTermination()

    assert run(Session(query), work) == 0


def test_query_that_the_signal_has_ended_already_is_no_failure() -> None:
    looked = threading.Event()

    class Ended(Session):
        @property
        def active(self) -> list[Query]:
            looked.set()
            return []

    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        assert looked.wait(30)
        raise StreamingQueryException("ExitCodeException exitCode=143: ")

    assert run(Ended(), work) == 0


@pytest.mark.parametrize("end", [RuntimeError("SparkContext was shut down"), SystemExit(0), None])
def test_without_a_query_a_signal_stops_spark(end: BaseException | None, capfd: pytest.CaptureFixture[str]) -> None:
    session = Session()

    def count() -> None:
        signal.raise_signal(signal.SIGINT)
        assert session.stopped.wait(30)
        if end is not None:
            raise end

    assert run(session, count) == 130
    assert capfd.readouterr().err == "\nmy job was interrupted\n"


def test_ctrl_c_while_spark_stops_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    class Slow(Session):
        def stop(self) -> None:
            super().stop()
            raise KeyboardInterrupt

    assert run(Slow(), lambda: None) == 130
    assert capfd.readouterr().err == "\nmy job was interrupted\n"


def test_a_second_ctrl_c_ends_the_job_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    query = Query(busy=True)

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    try:
        assert run(Session(query), work) == 130
        assert query.isActive
    finally:
        query.stop()
    assert capfd.readouterr().err == "\nmy job was interrupted\n"
