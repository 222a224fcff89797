"""`kinesis_efo.job`: what a Spark job's program does beside its work, so that it ends well and says why it failed."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kinesis_efo.spark.graceful import is_stop, stop_after_batch, stop_signals
from kinesis_efo.spark.reason import reason

logger = logging.getLogger(__name__)

FAILED: Final = 1
INTERRUPTED: Final = 130
"""What shells report of a program that Ctrl-C ended."""


@contextmanager
def job(spark: SparkSession) -> Iterator[None]:
    """Run the body as a Spark job: end it well when it is asked to, and say last and in full why it failed.

    At SIGTERM or Ctrl-C, to this process or to Spark's JVM, or when the job's stop marker appears, every query of the session is
    stopped after its micro-batch. So `awaitTermination()` returns, and the program goes on and ends with exit code 0. Where no query
    runs, Spark is stopped at once; then, and at a second Ctrl-C, the exit code is 130.

    If the body fails, the exit code is 1, and the last words on stderr are the reason: this library's own message, whole, where
    Spark has wrapped it.

    Leaving the context always stops Spark. Enter it on the main thread.

    Args:
        spark: A session, made by this program or by `spark-submit`.

    ```python
    with kinesis_efo.job(spark):
        frame = kinesis_efo.read_stream(spark, manifest="ssm:///kinesis-efo/dev/lake")
        frame.writeStream.format("console").start().awaitTermination()
    ```
    """
    name = spark.conf.get("spark.app.name", None) or "the job"
    code, words = 0, ""
    try:
        with stop_signals(spark) as stopping, _queries_stopped(spark, stopping):
            try:
                yield
            except StreamingQueryException as error:
                if not is_stop(error, stopping):
                    raise
    except KeyboardInterrupt:
        code, words = INTERRUPTED, f"{name} was interrupted"
    except Exception as error:
        traceback.print_exc()
        code, words = FAILED, f"{name} failed: {reason(error)}"
    finally:
        try:
            _end(spark, quietly=code != 0)
        except KeyboardInterrupt:
            code, words = INTERRUPTED, f"{name} was interrupted"
    if code:
        sys.stderr.write(f"\n{words}\n")
        sys.stderr.flush()
        raise SystemExit(code)


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
                # The body learns of it from the query.
                logger.info("query %s failed while it was stopped: %s", query.runId, error)
        if not queries:
            # This is all that ends an action which the body waits for.
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
    # Another query's micro-batch may still be under way.
    thread.join()


def _end(spark: SparkSession, *, quietly: bool) -> None:
    try:
        # The JVM logs lines until it ends, behind the last words of this process.
        if quietly and isinstance(spark, SparkSession) and spark.sparkContext._jsc is not None:
            spark.sparkContext.setLogLevel("ERROR")
        spark.stop()
    # OSError: the JVM is gone.
    except (Py4JError, OSError) as error:
        logger.warning("Spark did not stop in good order: %s", error)
