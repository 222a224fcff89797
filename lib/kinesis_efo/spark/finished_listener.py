"""Listens in the driver for finished micro-batches, and marks the notes of the readers that planned them; see `finished.py`."""

from __future__ import annotations

import atexit
import logging
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from kinesis_efo.private_directory import PrivateDirectory, notes_directory
from kinesis_efo.spark.finished import mark_finished, presence, sweep
from kinesis_efo.spark.progress_listener import ProgressListener, offset_json

logger = logging.getLogger(__name__)

_listened: Final[WeakSet[SparkSession]] = WeakSet()


class FinishedListener(ProgressListener):
    """Marks the notes of micro-batches that are done.

    Args:
        directory: Where notes are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Marks the note of each source."""
        for source in event.progress.sources:
            mark_finished(self._directory, offset_json(source.endOffset))


def listen(spark: SparkSession) -> None:
    """Listen for finished micro-batches in a session, once. Only a classic session is on the host of its readers.

    Args:
        spark: Any session.
    """
    if not isinstance(spark, SparkSession) or spark in _listened:
        return
    directory = notes_directory()
    try:
        sweep(directory)
        jvm: Any = spark.sparkContext._jvm
        here = presence(directory, jvm.java.lang.ProcessHandle.current().pid())
        spark.streams.addListener(FinishedListener(directory))
        with PrivateDirectory(directory) as there:
            there.write(here.name)
    except (OSError, Py4JError) as error:
        logger.info("checkpoints in the lease table will stop one micro-batch early: %s", error)
        return
    _listened.add(spark)
    atexit.register(here.unlink, missing_ok=True)
