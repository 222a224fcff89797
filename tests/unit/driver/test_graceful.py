"""When a query is stopped, shown on a fake query."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kinesis_efo.driver.graceful import SIGNALS, stop_signals, wait_for_stop


class Query:
    """A fake query whose state changes when its status is read.

    Args:
        script: Changes of the state, one per reading of the status.
    """

    runId = "run"

    def __init__(self, *script: Callable[[Query], None]) -> None:
        self.isActive = True
        self.message = "Processing new data"
        self.trigger_active = True
        self.batch = 7
        self.failure: Exception | None = None
        self.looks = 0
        self.stopped_at: tuple[int, str] | None = None
        self._script = list(script)

    @property
    def lastProgress(self) -> Any:
        return {"batchId": self.batch}

    @property
    def status(self) -> dict[str, Any]:
        self.looks += 1
        if self._script:
            self._script.pop(0)(self)
        return {"message": self.message, "isTriggerActive": self.trigger_active, "isDataAvailable": True}

    def awaitTermination(self, timeout: int | None = None) -> bool:
        return not self.isActive

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False
        self.stopped_at = (self.batch, self.message)


def _asked() -> threading.Event:
    stopping = threading.Event()
    stopping.set()
    return stopping


def _nothing(_query: Query) -> None:
    pass


def _shows(message: str) -> Callable[[Query], None]:
    return lambda query: setattr(query, "message", message)


def test_a_query_ending_by_itself_was_not_stopped() -> None:
    query = Query()
    query.isActive = False
    assert wait_for_stop(query, threading.Event()) is False  # type: ignore[arg-type]
    assert query.stopped_at is None


@pytest.mark.parametrize(
    "message", ["Waiting for next trigger", "Waiting for data to arrive", "Getting offsets from x"]
)
def test_a_query_is_stopped_between_micro_batches(message: str) -> None:
    query = Query(_nothing, _nothing, _shows(message))
    assert wait_for_stop(query, _asked()) is True  # type: ignore[arg-type]
    assert query.stopped_at == (7, message)
    assert query.looks == 3


def test_a_micro_batch_is_cut_after_the_patience() -> None:
    query = Query()
    assert wait_for_stop(query, _asked(), patience=0.1) is True  # type: ignore[arg-type]
    assert query.stopped_at == (7, "Processing new data")


def test_a_failure_while_stopping_is_not_hidden() -> None:
    def fail(query: Query) -> None:
        query.isActive, query.failure = False, RuntimeError("the micro-batch failed")

    with pytest.raises(RuntimeError, match="the micro-batch failed"):
        wait_for_stop(Query(_nothing, fail), _asked())  # type: ignore[arg-type]


class Captured(Exception):
    """A JVM's exception as PySpark shows it: a message, a stack trace and a cause."""

    def __init__(self, message: str, trace: str = "", cause: Exception | None = None) -> None:
        super().__init__(message)
        self._stackTrace = trace
        self._cause = cause


TRACE = "ExitCodeException exitCode=143: \n\tat org.apache.hadoop.util.Shell.runCommand(Shell.java:1044)"


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("Query terminated with exception: ExitCodeException exitCode=143: "),
        RuntimeError('Cannot run program "chmod": error=0, Failed to exec spawn helper: pid: 21146, signal: 15'),
        Captured("terminated with exception:  SQLSTATE: XXKST", f"StreamingQueryException\nCaused by: {TRACE}"),
        Captured("terminated with exception:  SQLSTATE: XXKST", "at StreamExecution", Captured("", TRACE)),
    ],
)
def test_a_hadoop_program_ended_by_signal_is_no_failure(failure: Exception) -> None:
    def hit(query: Query) -> None:
        query.isActive, query.failure = False, failure

    assert wait_for_stop(Query(_nothing, hit), _asked()) is True  # type: ignore[arg-type]


def test_slow_stop_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    script = [_nothing] * 8, _shows("Waiting for data")
    assert wait_for_stop(Query(*script[0], script[1]), _asked(), patience=1.0)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records] == [
        "stopping after the micro-batch, in up to 1 s; Ctrl-C again cuts it short"
    ]


@contextlib.contextmanager
def default_handlers() -> Iterator[None]:
    originals = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in originals.items():
            signal.signal(number, handler)


def test_second_ctrl_c_does_not_call_the_jvm(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's handler calls the JVM while the interrupted code may be reading a reply: py4j logs three tracebacks."""

    def handler(*_: object) -> None:
        pytest.fail("Spark's handler was called")

    handler.__module__ = "pyspark.core.context"
    with default_handlers():
        signal.signal(signal.SIGINT, handler)
        with stop_signals(Client()):  # type: ignore[arg-type]
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as interrupt:
                for name in ("root", "py4j.clientserver"):
                    log = logging.getLogger(None if name == "root" else name)
                    for path in ("/site/py4j/clientserver.py", "/app/job.py"):
                        cause = type(interrupt), interrupt, None
                        log.handle(logging.LogRecord(name, logging.ERROR, path, 1, path, (), cause))
            else:
                pytest.fail("the second signal was ignored")
    assert caplog.messages == ["/app/job.py"] * 2, "errors of the program are logged"


def test_a_foreign_signal_handler_becomes_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a program that embeds Python, or a library that was loaded before it: Python tells nothing of it."""
    real = signal.getsignal
    with default_handlers():
        monkeypatch.setattr(signal, "getsignal", lambda number: None if callable(found := real(number)) else found)
        with stop_signals(Client()) as stopping:  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopping.wait(60)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one has its usual effect"
            assert callable(real(signal.SIGINT))
        assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_DFL}


class Client:
    """A session of Spark Connect, as far as this goes."""


# -- forked children

FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else None


def _pool(number: int) -> int:
    assert FORK is not None
    # Leaving the context terminates the workers and joins them.
    with FORK.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
        workers = multiprocessing.active_children()
    assert len(workers) == 2
    assert not any(each.is_alive() for each in workers)
    return number


def _fork(number: int) -> int:
    ready, report = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.write(report, b".")
            time.sleep(60)
        os._exit(0 if number == signal.SIGINT else 1)
    if number == signal.SIGINT:
        os.read(ready, 1)  # Python ignores a KeyboardInterrupt while it forks
    os.kill(child, number)
    os.close(ready)
    os.close(report)
    return number if os.waitpid(child, 0)[1] in (0, number) else -1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("end_child", "number"),
    [(_pool, signal.SIGTERM), (_fork, signal.SIGTERM), (_fork, signal.SIGINT)],
)
@pytest.mark.parametrize("thread", [False, True], ids=["main thread", "thread of foreachBatch"])
def test_terminated_child_does_not_stop_the_job(end_child: Callable[[int], int], number: int, thread: bool) -> None:
    with default_handlers(), stop_signals(Client()) as stopping:  # type: ignore[arg-type]
        if thread:
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(end_child, number).result(60) == number
        else:
            assert end_child(number) == number
        assert not stopping.wait(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(60)
