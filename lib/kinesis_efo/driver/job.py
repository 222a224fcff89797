"""`kinesis_efo.job`: runs a Spark program that stops gracefully and, if it fails, prints the reason last."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from kinesis_efo.driver.graceful import is_stop, stop_after_batch, stop_signals
from kinesis_efo.driver.listener import ProgressListener
from kinesis_efo.driver.reason import cause, explanation, own_message, reason

logger = logging.getLogger(__name__)

FAILED: Final = 1
INTERRUPTED: Final = 130
"""The exit code of a program ended by Ctrl-C, as shells report it."""
_LOGGERS: Final = [f"org.apache.spark.sql.execution.streaming.{at}MicroBatchExecution" for at in ("", "runtime.")]
_NEXT_QUERY_SECONDS: Final = 0.5
_FAILED_SECONDS: Final = 1.0
_SCHEDULER: Final = "org.apache.spark.scheduler.DAGScheduler"
_LIBRARIES: Final = re.compile(r"[/\\](?:pyspark|py4j|kinesis_efo)[/\\]|[/\\]lib[/\\]python3\.\d+[/\\](?!site-|dist-)")
"""Paths of Spark, Python and this library, whose frames a shortened traceback omits. Other packages may belong to the program."""


@contextmanager
def job(spark: SparkSession | SparkSession.Builder, *, exit: bool = True) -> Iterator[SparkSession]:  # noqa: A002
    """Run the body of a `with` statement as a Spark job: stop it gracefully on request, and print the reason if it fails.

    When this process or Spark's JVM receives SIGTERM or Ctrl-C, or the job's stop marker appears, every query of the session is stopped
    after its micro-batch, and so is each query that the program starts later. Then `awaitTermination()` returns, and the program continues
    and ends with exit code 0. If no query is running at that time, Spark is stopped, and the exit code is 130, as after a second Ctrl-C.

    If the body or a query that is being stopped fails, the exit code is the `exit_code` of this library's error, or 1 for other errors. The
    last lines on stderr are the reason: this library's complete message, even if Spark has wrapped it in another error.

    Leaving the context always stops Spark. Enter the context on the main thread.

    Args:
        spark: A session or a session builder. With a builder, `job` creates the session, and can report missing Java. The context yields
            the session.
        exit: Whether to end the program if the body fails. If False, the error is raised and the reason is not printed, as in notebooks,
            Airflow and tests. `kinesis_efo.cause` then returns this library's error.

    ```python
    with kinesis_efo.job(SparkSession.builder.appName("orders")) as spark:
        frame = kinesis_efo.read_stream(spark, manifest="ssm:///kinesis-efo/dev/lake")
        frame.writeStream.format("console").start().awaitTermination()
    ```
    """
    code, words, name, session, failures, process = 0, "", "the job", None, _Failures(), os.getpid()
    failure: BaseException | None = None
    try:
        session = spark.getOrCreate() if hasattr(spark, "getOrCreate") else spark
        name = session.conf.get("spark.app.name", None) or name
        failures.print_failures(session)
        with stop_signals(session) as stopping, _queries_stopped(session, stopping, failures):
            try:
                yield session
            except StreamingQueryException as error:
                if not is_stop(error, stopping):
                    raise
    except KeyboardInterrupt as error:
        code, words, failure = INTERRUPTED, f"{name} was interrupted", error
    except Exception as error:
        failure = error
        frames = [each for each in traceback.extract_tb(error.__traceback__) if not _LIBRARIES.search(each.filename)]
        # If there is an explanation, print only the traceback's frames in the program's files; otherwise, print the whole traceback.
        if exit:
            sys.stderr.write("".join(traceback.format_list(frames)) if explanation(error) else traceback.format_exc())
        found = cause(error)
        code, words = (found.exit_code if found else FAILED), f"{name} failed: {reason(error)}"
    finally:
        try:
            # Do not stop Spark in a forked child: the session belongs to the process that entered the context.
            if session is not None and os.getpid() == process:
                _end(session, failures.restores, quietly=code != 0, last=exit and code != 0 and not hasattr(sys, "ps1"))
        except KeyboardInterrupt:
            code, words = INTERRUPTED, f"{name} was interrupted"
    failures.report(but=words)
    if failure is not None and not exit:
        raise failure
    if code:
        sys.stderr.write(f"\n{words}\n")
        sys.stderr.flush()
        raise SystemExit(code)


class _Failures(ProgressListener):
    """Prints why queries fail, in place of Spark's log, which has a hundred lines for each failure.

    This library's messages are printed after `delay` seconds, unless `job` prints them earlier because the program awaits the query.
    """

    hears_progress = False

    def __init__(self, delay: float = 5.0) -> None:
        self._delay = delay
        self._waiting: set[str] = set()
        self.restores: list[Callable[[], object]] = []
        """Functions that restore Spark's log levels. They are called after Spark has ended."""

    def print_failures(self, spark: SparkSession) -> None:
        """Start printing why a session's queries fail, and turn off Spark's log for failures. Does nothing with Spark Connect."""
        if not isinstance(spark, SparkSession):
            return
        try:
            spark.streams.addListener(self)
            self.restores.append(_log_level(spark, _LOGGERS, "OFF"))
        # A TypeError is raised if Spark does not log with Log4j.
        except (Py4JError, TypeError) as error:
            logger.info("only Spark's log shows why queries fail: %s", error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Print why the query failed: this library's message after a delay, or the full text of any other error immediately."""
        if event.exception is None:
            return
        logger.debug("query %s failed: %s", event.id, event.exception)
        if (message := own_message(event.exception)) is None:
            sys.stderr.write(event.exception)
        else:
            self._waiting.add(message)
            timer = threading.Timer(self._delay, self.report, [message])
            timer.daemon = True
            timer.start()

    def report(self, *messages: str, but: str = "") -> None:
        """Print delayed messages now: `messages`, or all of them by default. Skips those in `but`, a text that the caller prints itself."""
        for message in sorted(self._waiting & set(messages or self._waiting)):
            self._waiting.discard(message)
            if message not in but:
                sys.stderr.write(f"a query failed: {message}\n")


def _log_level(spark: SparkSession, names: Sequence[str], level: str) -> Callable[[], object]:
    """Set the level of Spark's loggers. Returns a function that restores the levels. Does nothing with Spark Connect."""
    if not isinstance(spark, SparkSession):
        return list
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    set_level = log4j.core.config.Configurator.setLevel
    levels = [(name, log4j.LogManager.getLogger(name).getLevel()) for name in names]
    for name in names:
        set_level(name, log4j.Level.toLevel(level))
    return lambda: [set_level(*before) for before in levels]


@contextmanager
def _queries_stopped(spark: SparkSession, stopping: threading.Event, failures: _Failures) -> Iterator[None]:
    """Stop the session's queries if `stopping` is set during the body. If no query is running, stop Spark and raise KeyboardInterrupt.

    Raises the error of a query that fails while it is being stopped, because the body may not be waiting for this query.
    """
    left, early, process = threading.Event(), threading.Event(), os.getpid()
    failed: list[StreamingQueryException] = []

    def stop_queries() -> None:
        for query in spark.streams.active:
            try:
                stop_after_batch(query)
            except StreamingQueryException as error:
                failed.append(error)
            except Exception as error:
                logger.info("query %s could not be stopped: %s", query.runId, error)

    def stop() -> None:
        stopping.wait()
        if left.is_set():
            return
        if not spark.streams.active:
            # The signal may also have ended the only query, with a program that Hadoop ran for it. Then the body ends by itself.
            if left.wait(_FAILED_SECONDS):
                return
            # Stop Spark, which also ends a running action that the body is waiting for.
            early.set()
            spark.stop()
            return
        with suppress(Py4JError, TypeError):
            # When a query is stopped between two micro-batches, Spark warns, possibly later, that there is no job to cancel. Suppress it.
            failures.restores.append(_log_level(spark, [_SCHEDULER], "ERROR"))
        try:
            stop_queries()
            # Repeat this until the body ends, because the body may start more queries.
            while not left.wait(_NEXT_QUERY_SECONDS):
                stop_queries()
        except Exception as error:
            logger.info("queries are no longer stopped: %s", error)  # the body has stopped Spark

    thread = threading.Thread(target=stop, name="kinesis-efo job", daemon=True)
    thread.start()
    ended: Exception | SystemExit | None = None
    try:
        yield
    except (Exception, SystemExit) as error:
        ended = error
    finally:
        if os.getpid() == process:  # skip this in a forked child, where a lock of the parent could block `set` forever
            left.set()
            stopping.set()
    succeeded = ended is None or (isinstance(ended, SystemExit) and not ended.code)
    # If Spark was stopped early, report an interruption: the body's errors are only consequences, and the body may have caught them.
    if early.is_set() and (succeeded or isinstance(ended, Exception)):
        raise KeyboardInterrupt from None
    # Wait until all queries are stopped, even if the body has ended before.
    thread.join()
    if failed and succeeded:
        raise failed[0]
    if ended is not None:
        raise ended


def _end(spark: SparkSession, restores: Sequence[Callable[[], object]], *, quietly: bool, last: bool) -> None:
    try:
        # Silence the JVM: its log must not follow the reason, which is printed last.
        if quietly and isinstance(spark, SparkSession) and spark.sparkContext._jsc is not None:
            jvm: Any = spark.sparkContext._jvm
            spark.sparkContext.setLogLevel("ERROR")
            if last:
                # A thread that a blocked sink occupies writes its traceback without the log, when this process ends.
                jvm.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
        spark.stop()
        # Unless the program ends, restore Spark's log levels, because another session may follow in the same JVM.
        for restore in () if last else restores:
            restore()
    except (Py4JError, OSError) as error:
        # If the job has failed, log this only for debugging, because the job's own error matters more.
        logger.log(logging.DEBUG if quietly else logging.WARNING, "Spark did not stop cleanly: %s", error)
