"""Listens in the driver for finished micro-batches, and reports the marks of their ends to the runs of this Spark program.

A reader sees that a micro-batch is done when Spark asks for the end of the next one. Before a stop it may never ask, for example with
the `Trigger.AvailableNow` of Spark 4.0, which runs one micro-batch, or between two triggers that are far apart.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.marks import Mark
from kinesis_efo.planner.program import RunFile, files_of
from kinesis_efo.planner.run_link import RunConnection
from kinesis_efo.planner.run_messages import FinishedBatches
from kinesis_efo.private_directory import notes_directory
from kinesis_efo.processes import Process
from kinesis_efo.spark.progress_listener import ProgressListener, offset_json

logger = logging.getLogger(__name__)

_listened: Final[WeakSet[SparkSession]] = WeakSet()


class _MarkedOffset(msgspec.Struct):
    """An offset, of which only the mark is parsed: it may have thousands of shards."""

    streams: msgspec.Raw
    mark: str


class FinishedListener(ProgressListener):
    """Reports finished micro-batches to runs.

    Args:
        directory: The directory of the runs' files.
        jvm: The JVM of the program.
    """

    def __init__(self, directory: Path, jvm: Process) -> None:
        self._directory = directory
        self._jvm = jvm

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the end of each source. A run that misses it learns it when Spark asks for the next micro-batch."""
        marks = [mark for source in event.progress.sources if (mark := mark_of(source.endOffset)) is not None]
        if not marks:
            return
        told = FinishedBatches(marks, event.progress.name)
        try:
            for path in files_of(self._directory, self._jvm):
                self._tell(path, told)
        except OSError as error:
            logger.debug("no run was told of a micro-batch: %s", error)

    def _tell(self, path: Path, told: FinishedBatches) -> None:
        try:
            file = RunFile(path)
        except (OSError, msgspec.MsgspecError):
            return  # the run has ended, or the file is not fully written yet
        try:
            with RunConnection(file.entry.address, file.entry.secret) as client:
                client.finished(told)
        except KinesisEfoError as error:
            logger.debug("a run was not told of a micro-batch: %s", error)
        finally:
            file.close()


def mark_of(offset: str | None) -> Mark | None:
    """The mark of an offset in a progress; None if it has none, or belongs to another source.

    >>> mark_of('{"mark":"7c1f09ab:3","streams":{},"version":1}'), mark_of('{"mark":"7c1f09ab:3"}'), mark_of("7")
    (Mark(checkpoint='7c1f09ab', moved=3), None, None)
    """
    try:
        return Mark.parse(msgspec.json.decode(offset_json(offset), type=_MarkedOffset).mark)
    except (msgspec.MsgspecError, ValueError):
        return None


def listen(spark: SparkSession) -> bool:
    """Listen for finished micro-batches in a session, once.

    Args:
        spark: Any session.

    Returns:
        Whether there is a listener: only for a classic session, which is on the host of its readers.
    """
    if isinstance(spark, SparkSession) and spark not in _listened:
        try:
            jvm: Any = spark.sparkContext._jvm
            process = Process.of(jvm.java.lang.ProcessHandle.current().pid())
            spark.streams.addListener(FinishedListener(notes_directory(), process))
        except Py4JError as error:
            logger.info("checkpoints in the lease table will stop one micro-batch early: %s", error)
            return False
        _listened.add(spark)
    return spark in _listened
