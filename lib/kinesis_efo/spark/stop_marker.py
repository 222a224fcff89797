"""A file or object whose appearance asks a query to stop, for services that cannot signal the driver. Relies on Spark and py4j.

Cancelling a step of EMR ends `spark-submit` and leaves the driver in YARN alone; Kubernetes grants a pod half a minute.
`kinesis-efo emr submit` names a marker in the job's settings, and `kinesis-efo emr stop` writes it.
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
"""Where the marker will be, as Hadoop writes it; without this setting, nobody looks."""
_LOOK_EVERY: Final = 5.0


def watch_marker(spark: SparkSession, found: Callable[[], None], *, every: float = _LOOK_EVERY) -> Callable[[], None]:
    """Look for the marker of a session's job, in a thread, until it is there.

    Args:
        spark: A classic session.
        found: Called once, in that thread, when the marker is there.
        every: Seconds between looks.

    Returns:
        Ends the looking.
    """
    location = spark.conf.get(SETTING, None)
    if location is None:
        return lambda: None
    ended = threading.Event()
    thread = threading.Thread(
        target=_look, args=(spark, location, found, every, ended), name="stop marker", daemon=True
    )
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(max(every, 1.0))

    return end


def _look(spark: SparkSession, location: str, found: Callable[[], None], every: float, ended: threading.Event) -> None:
    warned = False
    while not ended.wait(every):
        try:
            there = _exists(spark, location)
        # OSError: the JVM is gone.
        except (Py4JError, OSError) as error:
            if not warned and not ended.is_set():
                logger.warning("cannot look for the stop marker %s, and try on: %s", location, error)
                warned = True
            continue
        if there:
            logger.info("the stop marker %s is there", location)
            found()
            return


def _exists(spark: SparkSession, location: str) -> bool:
    context = spark.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    return bool(path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path))
