"""Stop a query on SIGTERM or SIGINT after its running micro-batch, not in it. Relies on Spark and py4j.

Nothing is lost or twice however a query ends: the offsets see to that. A graceful end saves the work of a micro-batch that
would be done again, and releases the leases, so that a restart begins at once.

Under `spark-submit` the process that an orchestrator signals is the JVM, and the JVM shuts Spark down at once while Python
knows nothing of it. The signal is therefore taken in the JVM too, and passed on.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_efo.spark.stop_marker import watch_marker

logger = logging.getLogger(__name__)

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_EVERY: Final = 0.05
_KILLED_BY_SIGNAL: Final = re.compile(r"ExitCodeException exitCode=(?:130|143)\b")
"""What Hadoop says where a program that it ran (`chmod`, `ls`, on file systems of the host) was ended by SIGINT or SIGTERM."""
_SIGNAL_SECONDS: Final = 2.0
"""A signal to the process group may fail the query before it has reached this process."""


@contextmanager
def stop_signals(spark: SparkSession) -> Iterator[threading.Event]:
    """An event that is set by SIGTERM or SIGINT, whether it reaches this process or Spark's JVM, or by the job's stop marker.

    A second signal to this process has its usual effect. The handlers that were there before come back at the end.

    Args:
        spark: A classic session, made by this process or by `spark-submit`. To be used on the main thread.

    ```python
    with stop_signals(spark) as stopping:
        await_stop(frame.writeStream.start(), stopping)
    ```
    """
    stopping = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    restore_jvm = _handle_in_jvm(spark, stopping.set)
    end_watching = watch_marker(spark, stopping.set)
    try:
        yield stopping
    finally:
        end_watching()
        restore_jvm()
        for number, handler in before.items():
            signal.signal(number, handler)


def await_stop(query: StreamingQuery, stopping: threading.Event, *, patience: float = 600.0) -> bool:
    """Wait until a query ends by itself or `stopping` is set; then end it at the next boundary of micro-batches.

    Args:
        query: The running query.
        stopping: As `stop_signals` gives it.
        patience: Seconds to wait for the running micro-batch before it is cut short; Spark does it again after a restart.

    Returns:
        Whether the query was stopped; False where it came to its end.

    Raises:
        StreamingQueryException: The query failed, be it while it was being stopped. Where all that failed is a program of
            Hadoop's which the signal to stop hit as well, the query counts as stopped: Spark does the micro-batch again.
    """
    try:
        while not stopping.is_set():
            if query.awaitTermination(1):
                return False
    except StreamingQueryException as error:
        if _killed_by_signal(error) and stopping.wait(_SIGNAL_SECONDS):
            return True
        raise
    logger.info("stopping query %s after its micro-batch", query.runId)
    deadline = time.monotonic() + patience
    running = _batch(query)
    # Under load a query is hardly ever between micro-batches when one looks: a new number says that it was.
    while query.isActive and not _at_boundary(query) and _batch(query) == running:
        if time.monotonic() > deadline:
            logger.warning("the micro-batch did not end within %.0f s; it is cut short and done again later", patience)
            break
        time.sleep(_LOOK_EVERY)
    query.stop()
    # What went wrong while waiting is the query's end, not the signal.
    failure = query.exception()
    if failure is not None and not _killed_by_signal(failure):
        raise failure
    logger.info("query %s stopped", query.runId)
    return True


def _killed_by_signal(error: Exception) -> bool:
    if not _KILLED_BY_SIGNAL.search(str(error)):
        return False
    logger.warning(
        "the signal to stop reached a program that Hadoop ran for the micro-batch, and ended it; the micro-batch is cut short "
        "and done again later"
    )
    return True


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
        """Called by the JVM, on a thread of py4j."""
        self._notify()

    class Java:
        """Read by py4j."""

        implements: Final = ["sun.misc.SignalHandler"]


def _handle_in_jvm(spark: SparkSession, notify: Callable[[], None]) -> Callable[[], None]:
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
            # -Xrs keeps the JVM's hands off signals, and an option of another vendor's may too.
            logger.warning("the JVM does not let us handle %s: %s", number.name, error.java_exception)

    def restore() -> None:
        for named, handler in before:
            jvm_signal.handle(named, handler)

    return restore
