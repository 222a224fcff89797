"""Watches for the stop marker, a file or object that asks a query to stop if no signal reaches the driver in time.

Cancelling an EMR step ends `spark-submit` but not the driver in YARN; Kubernetes gives a pod half a minute to end.
`kinesis-efo emr submit` sets the marker's location in the job's settings, and `kinesis-efo emr stop` writes the marker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

SETTING: Final = "spark.kinesisEfo.stopMarker"
"""The Spark setting with the marker's location, as a Hadoop path. Without it there is nothing to watch."""
_CHECK_EVERY: Final = 5.0


def watch_marker(spark: SparkSession, found: Callable[[], None], *, every: float = _CHECK_EVERY) -> Callable[[], None]:
    """Watch in a thread for the stop marker of a session's job, until it exists.

    Args:
        spark: A classic session.
        found: Called once, in that thread, when the marker exists.
        every: Seconds between checks.

    Returns:
        A function that ends the watch.
    """
    location = spark.conf.get(SETTING, None)
    if location is None:
        return lambda: None
    ended = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(spark, location, found, every, ended), name="stop marker", daemon=True
    )
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(max(every, 1.0))

    return end


def _watch(spark: SparkSession, location: str, found: Callable[[], None], every: float, ended: threading.Event) -> None:
    warned = False
    while not ended.wait(every):
        try:
            there = _exists(spark, location)
        # OSError: the JVM is gone.
        except (Py4JError, OSError) as error:
            if not warned and not ended.is_set():
                logger.warning("cannot check for the stop marker %s: %s; trying again", location, error)
                warned = True
            continue
        if there:
            logger.info("found the stop marker %s", location)
            found()
            return


def _exists(spark: SparkSession, location: str) -> bool:
    context = spark.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    return bool(path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path))
