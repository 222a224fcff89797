"""`kinesis_efo.job`: runs a Spark program so that it stops gracefully, and ends with the reason if it fails."""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from kinesis_efo.driver.graceful import is_stop, stop_after_batch, stop_signals
from kinesis_efo.driver.listener import ProgressListener
from kinesis_efo.driver.reason import explanation, own_message, reason

logger = logging.getLogger(__name__)

FAILED: Final = 1
INTERRUPTED: Final = 130
"""The exit code that shells report for a program ended by Ctrl-C."""
_LOGGERS: Final = [f"org.apache.spark.sql.execution.streaming.{at}MicroBatchExecution" for at in ("", "runtime.")]
_SAY_SECONDS: Final = 5.0
"""How long a message waits for the program's end."""
_LIBRARIES: Final = re.compile(r"[/\\](?:pyspark|py4j|kinesis_efo)[/\\]|[/\\]lib[/\\]python3\.\d+[/\\](?!site-|dist-)")
"""Paths of Spark, of this library and of Python itself; an installed program is below `site-packages`, too."""


@contextmanager
def job(spark: SparkSession | SparkSession.Builder) -> Iterator[SparkSession]:
    """Run the body as a Spark job: stop it gracefully on request, and end with the reason if it fails.

    At SIGTERM or Ctrl-C, to this process or to Spark's JVM, or when the job's stop marker appears, every query of the session is
    stopped after its micro-batch. So `awaitTermination()` returns, and the program continues and ends with exit code 0. If no query
    runs, Spark is stopped at once; then, and at a second Ctrl-C, the exit code is 130.

    If the body fails, the exit code is 1, and the last lines on stderr are the reason: this library's message in full, even if Spark
    has wrapped it.

    Leaving the context always stops Spark. Enter it on the main thread.

    Args:
        spark: A session, or a builder, whose session is made here, so that the reason is given if Java is missing. The context yields
            the session.

    ```python
    with kinesis_efo.job(SparkSession.builder.appName("orders")) as spark:
        frame = kinesis_efo.read_stream(spark, manifest="ssm:///kinesis-efo/dev/lake")
        frame.writeStream.format("console").start().awaitTermination()
    ```
    """
    code, words, name, session, failures = 0, "", "the job", None, _Failures()
    try:
        session = spark.getOrCreate() if hasattr(spark, "getOrCreate") else spark
        name = session.conf.get("spark.app.name", None) or name
        failures.hear(session)
        with stop_signals(session) as stopping, _queries_stopped(session, stopping):
            try:
                yield session
            except StreamingQueryException as error:
                if not is_stop(error, stopping):
                    raise
    except KeyboardInterrupt:
        code, words = INTERRUPTED, f"{name} was interrupted"
    except Exception as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if not _LIBRARIES.search(each.filename)]
        # Of an error that is explained, the program's own lines are enough.
        sys.stderr.write("".join(traceback.format_list(frames)) if explanation(error) else traceback.format_exc())
        code, words = FAILED, f"{name} failed: {reason(error)}"
    finally:
        try:
            if session is not None:
                _end(session, failures.restore, quietly=code != 0)
        except KeyboardInterrupt:
            code, words = INTERRUPTED, f"{name} was interrupted"
    failures.say(but=words)
    if code:
        sys.stderr.write(f"\n{words}\n")
        sys.stderr.flush()
        raise SystemExit(code)


class _Failures(ProgressListener):
    """Prints why queries fail, in place of Spark's log, which has a hundred lines for each failure.

    A message of this library is delayed: if the program awaits its query, `job` prints the message at its end, and only once.
    """

    hears_progress = False

    def __init__(self) -> None:
        self._waiting: set[str] = set()
        self.restore: Callable[[], object] = list

    def hear(self, spark: SparkSession) -> None:
        """Print failures of queries here instead of in Spark's log. Only a classic session logs to this program's output."""
        if not isinstance(spark, SparkSession):
            return
        jvm: Any = spark.sparkContext._jvm
        try:
            log4j = jvm.org.apache.logging.log4j
            set_level = log4j.core.config.Configurator.setLevel
            levels = [(name, log4j.LogManager.getLogger(name).getLevel()) for name in _LOGGERS]
            spark.streams.addListener(self)
            for name in _LOGGERS:
                set_level(name, log4j.Level.OFF)
            self.restore = lambda: [set_level(*before) for before in levels]
        # TypeError: this Spark logs with something else.
        except (Py4JError, TypeError) as error:
            logger.info("Spark's own log says why queries fail: %s", error)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Is not called."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Print why the query failed: at once and in full if it is not an error of this library."""
        if event.exception is None:
            return
        logger.debug("query %s failed: %s", event.id, event.exception)
        if (message := own_message(event.exception)) is None:
            sys.stderr.write(event.exception)
        else:
            self._waiting.add(message)
            timer = threading.Timer(_SAY_SECONDS, self.say, [message])
            timer.daemon = True
            timer.start()

    def say(self, *messages: str, but: str = "") -> None:
        """Print delayed messages.

        Args:
            messages: The messages; none for all.
            but: A text that is printed anyway; messages in it are dropped.
        """
        for message in sorted(self._waiting & set(messages or self._waiting)):
            self._waiting.discard(message)
            if message not in but:
                sys.stderr.write(f"a query failed: {message}\n")


@contextmanager
def _queries_stopped(spark: SparkSession, stopping: threading.Event) -> Iterator[None]:
    """Stop the queries of a session when `stopping` is set in the body; without any, stop Spark and raise KeyboardInterrupt."""
    left, early = threading.Event(), threading.Event()

    def stop() -> None:
        stopping.wait()
        if left.is_set():
            return
        queries = spark.streams.active
        for query in queries:
            try:
                stop_after_batch(query)
            except Exception as error:
                # The body gets the error from the query.
                logger.info("query %s failed while it was stopped: %s", query.runId, error)
        if not queries:
            # Nothing else ends an action that the body waits for.
            early.set()
            spark.stop()

    thread = threading.Thread(target=stop, name="kinesis-efo job", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        if early.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        left.set()
        stopping.set()
    # Wait, because another query may still be in its micro-batch.
    thread.join()


def _end(spark: SparkSession, restore: Callable[[], object], *, quietly: bool) -> None:
    try:
        # The JVM logs lines until it ends, after the last lines of this process.
        if quietly and isinstance(spark, SparkSession) and spark.sparkContext._jsc is not None:
            spark.sparkContext.setLogLevel("ERROR")
        spark.stop()
        # The program may continue with another session in the same JVM.
        restore()
    # OSError: the JVM is gone.
    except (Py4JError, OSError) as error:
        logger.warning("Spark did not stop in good order: %s", error)
