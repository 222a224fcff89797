"""Stops a query on SIGTERM, SIGINT or a stop marker, after the running micro-batch instead of in the middle of it.

This only saves time: whatever ends a query, its offsets ensure that a restart neither loses nor duplicates records.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
MARKER: Final = "spark.kinesisEfo.stopMarker"
"""The Spark setting with the stop marker's location, a Hadoop path, for clusters that end a job without a signal to its driver."""
_PY4J_LOGGERS: Final = (logging.root, logging.getLogger("py4j.clientserver"))
_MARKER_SECONDS: Final = 5.0
_BOUNDARY_SECONDS: Final = 0.05
_SLOW_SECONDS: Final = 2.0
"""A stop that takes longer than this is announced, because the user may believe that it hangs."""
_KILLED_BY_SIGNAL: Final = re.compile(
    # The second alternative is the JDK's message if the signal arrives before the program has started.
    r"ExitCodeException exitCode=(?:130|143)\b|Failed to exec spawn helper: pid: \d+, signal: (?:2|15)\b"
)
"""Pattern for Hadoop's error after SIGINT or SIGTERM has ended a program that Hadoop had started, such as `chmod` for a local file."""
_SIGNAL_SECONDS: Final = 2.0
"""When a signal goes to the whole process group, a query may fail before this process receives it. Wait this long for the signal."""


@contextmanager
def stop_signals(spark: SparkSession) -> Iterator[threading.Event]:
    """Yield an event that is set when this process or Spark's JVM receives SIGTERM or SIGINT, or when the job's stop marker appears.

    A second signal of the same kind to this process is handled as before this context, which restores the handlers when it is left.
    Enter the context on the main thread. The context manager `job` also stops the queries and reports failures.

    Args:
        spark: A session. With a Spark Connect session, only signals to this process set the event.

    ```python
    with stop_signals(spark) as stopping:
        wait_for_stop(frame.writeStream.start(), stopping)
    ```
    """
    stopping = threading.Event()
    process = os.getpid()
    # Use a SimpleQueue: its `put` is reentrant, as required in a signal handler.
    requests: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def handle(number: int, _frame: FrameType | None) -> None:
        # Do not acquire a lock here: a signal handler may interrupt any code of the main thread, including another signal handler.
        requests.put(True)
        again = before[signal.Signals(number)]
        # Skip Spark's own handler: it calls the JVM, while the interrupted code may be reading a reply of the JVM.
        is_sparks = str(getattr(again, "__module__", "")).startswith("pyspark.")
        signal.signal(number, signal.default_int_handler if is_sparks else again)

    def pass_on() -> None:
        if requests.get():
            stopping.set()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    threading.Thread(target=pass_on, name="kinesis-efo stop", daemon=True).start()

    # `getsignal` returns None for a handler that was not installed from Python. Restore the default handler in this case.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, handle)
    _restores.append(restore)
    for loud in _PY4J_LOGGERS:
        loud.addFilter(_is_no_interrupt)
    ends: list[Callable[[], None]] = []
    if isinstance(spark, SparkSession):
        ends = [_handle_in_jvm(spark, stopping.set), watch_marker(spark, stopping.set)]
    try:
        yield stopping
    finally:
        # Do nothing in a forked child: its handlers were restored at the fork, and the session belongs to the parent process.
        if os.getpid() == process:
            for loud in _PY4J_LOGGERS:
                loud.removeFilter(_is_no_interrupt)
            for end in reversed(ends):
                end()
            _restores.remove(restore)
            restore()
            requests.put(False)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Filter py4j's tracebacks of a Ctrl-C that interrupts a call to the JVM, and of closing the connection of this call."""
    error = record.exc_info[1] if record.exc_info and "py4j" in record.pathname else None
    return not any(isinstance(each, KeyboardInterrupt) for each in (error, getattr(error, "__context__", None)))


_restores: Final[list[Callable[[], None]]] = []
"""For each active `stop_signals`, the function that restores the previous handlers."""
_masks: Final = threading.local()


def _before_fork() -> None:
    """Block the signals during a fork: Python would drop a signal that arrives in the child before the child has restored its handlers."""
    if _restores:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    if (mask := _masks.__dict__.pop("before", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    """Restore the handlers, so that the child can be terminated."""
    for restore in reversed(_restores):
        restore()
    _after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def wait_for_stop(query: StreamingQuery, stopping: threading.Event, *, patience: float = 600.0) -> bool:
    """Wait until a query ends. If `stopping` is set first, stop the query between two micro-batches.

    Args:
        query: The running query.
        stopping: The event of `stop_signals`.
        patience: Seconds to wait for the end of the running micro-batch before it is cut short; a restart repeats the micro-batch.

    Returns:
        True if the query was stopped; False if it ended by itself.

    Raises:
        StreamingQueryException: The query failed, before or during the stop. A query that failed only because the signal also ended a
            process that Hadoop had started for it counts as stopped: a restart repeats the micro-batch.
    """
    try:
        while not stopping.is_set():
            if query.awaitTermination(1):
                return False
    except StreamingQueryException as error:
        if not is_stop(error, stopping):
            raise
        return True
    stop_after_batch(query, patience=patience)
    return True


def stop_after_batch(query: StreamingQuery, *, patience: float = 600.0) -> None:
    """Stop a query between two micro-batches. Arguments and errors are those of `wait_for_stop`."""
    logger.info("stopping query %s after its micro-batch", query.runId)
    began, announce_after = time.monotonic(), min(_SLOW_SECONDS, patience / 10)
    running = _batch(query)
    # On a busy host, every check may miss the pause between two micro-batches, so also end this loop when the next one has started.
    while query.isActive and not _at_boundary(query) and _batch(query) == running:
        if (waited := time.monotonic() - began) > patience:
            logger.warning(
                "the micro-batch did not end within %.0f s: cutting it short; a restart repeats it", patience
            )
            break
        if waited > announce_after:
            announce_after = patience
            logger.warning("stopping after the micro-batch, in up to %.0f s; Ctrl-C again cuts it short", patience)
        time.sleep(_BOUNDARY_SECONDS)
    query.stop()
    failure = query.exception()
    if failure is not None:
        if not _killed_by_signal(failure):
            raise failure
        _warn_cut_short()
    logger.info("query %s stopped", query.runId)


def is_stop(error: Exception, stopping: threading.Event) -> bool:
    """Whether a query failed only because the stop signal also ended a process that Hadoop had started for it."""
    if not (_killed_by_signal(error) and stopping.wait(_SIGNAL_SECONDS)):
        return False
    _warn_cut_short()
    return True


def _killed_by_signal(error: object) -> bool:
    # Also search the stack traces, because the message of Hadoop's exception is empty.
    while error is not None:
        if _KILLED_BY_SIGNAL.search(f"{error}\n{getattr(error, '_stackTrace', '')}"):
            return True
        error = getattr(error, "_cause", None)
    return False


def _warn_cut_short() -> None:
    logger.warning(
        "the signal also ended a program that Hadoop ran for the micro-batch, which is cut short; a restart repeats it"
    )


def _batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def _at_boundary(query: StreamingQuery) -> bool:
    status: dict[str, Any] = query.status
    return not status["isTriggerActive"] or str(status["message"]).startswith(("Waiting", "Getting offsets"))


class _JvmHandler:
    """A `sun.misc.SignalHandler` that calls back into Python."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify

    def handle(self, _signal: Any) -> None:
        """Called by the JVM for each signal, in a py4j thread."""
        self._notify()

    class Java:
        implements: Final = ["sun.misc.SignalHandler"]


def _handle_in_jvm(spark: SparkSession, notify: Callable[[], None]) -> Callable[[], None]:
    # Under `spark-submit`, an orchestrator signals the JVM, which would shut Spark down without notifying Python.
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a classic session has a gateway"
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm_signal = gateway.jvm.sun.misc.Signal
    before: list[tuple[Any, Any]] = []
    for number in SIGNALS:
        named = jvm_signal(number.name.removeprefix("SIG"))
        try:
            before.append((named, jvm_signal.handle(named, _JvmHandler(notify))))
        except Py4JJavaError as error:
            # A JVM with the option -Xrs rejects signal handlers. Continue: signals to this process can still stop the job.
            logger.warning(
                "the JVM does not let this library handle %s: %s; remove -Xrs from its options, or signal the Python process",
                number.name,
                error.java_exception,
            )

    def restore() -> None:
        with suppress(Py4JError, OSError):  # the JVM may have ended
            for named, handler in before:
                jvm_signal.handle(named, handler)

    return restore


def watch_marker(
    spark: SparkSession, found: Callable[[], None], *, every: float = _MARKER_SECONDS
) -> Callable[[], None]:
    """Start a thread that calls `found` when the stop marker exists, checked every `every` seconds. Returns a function that ends it."""
    location = spark.conf.get(MARKER, None)
    if location is None:
        return lambda: None
    ended = threading.Event()
    jvm: Any = spark.sparkContext._jvm

    def watch() -> None:
        warned = False
        while not ended.wait(every):
            try:
                path = jvm.org.apache.hadoop.fs.Path(location)
                there = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(path)
            except (Py4JError, OSError) as error:  # OSError: the JVM has ended
                if not warned and not ended.is_set():
                    logger.warning("cannot check for the stop marker %s: %s; trying again", location, error)
                    warned = True
                continue
            if there:
                logger.info("found the stop marker %s", location)
                found()
                return

    thread = threading.Thread(target=watch, name="stop marker", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(max(every, 1.0))

    return end
