"""Listeners for finished micro-batches: `LagListener` prints or passes on their progress, and `FinishedListener` notifies the runs.

They skip sources whose offsets do not have the format of this library.
"""

from __future__ import annotations

import ast
import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.planner.program import RunFile, files_of
from kinesis_efo.planner.run_link import RunConnection
from kinesis_efo.positions import Mark, Offset, ShardKey
from kinesis_efo.processes import Process, notes_directory
from kinesis_efo.run.messages import FinishedBatches
from kinesis_efo.spark.lag import Report, read_note
from kinesis_efo.units import format_size

logger = logging.getLogger(__name__)

_listened: Final[WeakSet[SparkSession]] = WeakSet()


class ProgressListener(StreamingQueryListener):
    """Base class of listeners that need only a single call to the JVM to get a micro-batch's progress.

    PySpark's listener calls the JVM once per field: about a hundred calls and 36 ms of CPU time for each micro-batch.
    """

    hears_progress = True
    """Whether to call `onQueryProgress`. If False, the progress is not fetched from the JVM."""
    _wrapper: Any = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called after each micro-batch, in Spark's listener thread. Does nothing; an override must return soon."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Does nothing. `awaitTermination` raises the exception of a failed query."""

    @property
    def _jlistener(self) -> Any:
        # In a classic session, `addListener` passes the value of `_jlistener` to the JVM. PySpark's own wrapper would be slower.
        if self._wrapper is None:
            jvm: Any = SparkContext._jvm
            self._wrapper = jvm.PythonStreamingQueryListenerWrapper(_FromJvm(self))
        return self._wrapper


class _FromJvm:
    """Receives the JVM's calls for a `ProgressListener`."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def onQueryStarted(self, event: Any) -> None:
        """Does nothing."""

    def onQueryProgress(self, event: Any) -> None:
        if not self._listener.hears_progress:
            return
        progress = json.loads(event.progress().json())
        for source in progress["sources"]:
            # Convert offsets to JSON, as Spark 4.3 does. Spark 4.0 formats them as Python literals, which are five times slower to parse.
            for offset in ("startOffset", "endOffset", "latestOffset"):
                if not isinstance(source[offset], str):
                    source[offset] = json.dumps(source[offset])
        self._listener.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress}))

    def onQueryIdle(self, event: Any) -> None:
        """Does nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJObject(event))

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of one micro-batch of a `kinesis-efo` source.

    Attributes:
        query: The query's name; if it is unnamed, its id.
        batch: Number of the micro-batch.
        rows: Rows read.
        seconds: Duration of the micro-batch in seconds.
        millis_behind: Upper bound of each shard's lag at the end of the micro-batch, in milliseconds: the lag when the micro-batch was
            planned, plus its duration; empty if unknown.
        shards: Number of shards that are being read.
        bytes: Size of the micro-batch as sent by Kinesis; None if unknown.
        data_bytes: Estimated size of the records' data, which `maxBytesPerTrigger` limits; None if unknown.
    """

    query: str
    batch: int
    rows: int
    seconds: float
    millis_behind: Mapping[ShardKey, int]
    shards: int
    bytes: int | None = None
    data_bytes: int | None = None

    @property
    def worst(self) -> tuple[ShardKey, int] | None:
        """The shard with the greatest lag, and this lag in milliseconds; None if no lag is known."""
        return max(self.millis_behind.items(), key=lambda item: item[1], default=None)

    def __str__(self) -> str:
        """Return one line for a log.

        >>> lag = {ShardKey("orders", "shardId-000000000003"): 350}
        >>> print(BatchProgress("archive", 12, 5000, 1.25, lag, 4))
        query archive, micro-batch 12: 5,000 rows in 1.2 s; 4 shards, at most 350 ms behind (orders:shardId-000000000003)
        """
        worst = self.worst
        lag = "lag not known" if worst is None else f"at most {worst[1]:,} ms behind ({worst[0]})"
        size = ""
        if self.bytes is not None and self.data_bytes is not None:
            size = f", {format_size(self.bytes)} as sent, about {format_size(self.data_bytes)} of data"
        return (
            f"query {self.query}, micro-batch {self.batch}: {self.rows:,} rows in {self.seconds:.1f} s{size}; "
            f"{self.shards} shards, {lag}"
        )


def _log(progress: BatchProgress) -> None:
    sys.stderr.write(f"{progress}\n")
    sys.stderr.flush()


class LagListener(ProgressListener):
    """Writes a line to stderr for each micro-batch of queries that read Kinesis.

    Args:
        then: Called with each micro-batch instead of writing the line. It runs in Spark's listener thread and must return soon.

    ```python
    spark.streams.addListener(LagListener())
    spark.streams.addListener(LagListener(logging.getLogger("my job").info))
    ```
    """

    def __init__(self, then: Callable[[BatchProgress], object] | None = None) -> None:
        self._then = then or _log

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Write a line for each Kinesis source of the micro-batch, or pass the source's progress to `then` instead."""
        for each in progress(event.progress):
            self._then(each)


def progress(query: StreamingQuery | StreamingQueryProgress) -> list[BatchProgress]:
    """Return the progress of each `kinesis-efo` source in a query's last micro-batch, or in the progress that a listener receives.

    The list is empty before the first micro-batch, and for queries with only other sources.
    """
    last: Any = getattr(query, "lastProgress", query)
    found = []
    for source in last.sources if last is not None else ():
        try:
            end = Offset.from_json(offset_json(source.endOffset))
        except ValueError:
            continue
        # In Spark 4.0, `latestOffset` is an offset without a report, which `parse` converts to an empty report.
        report = Report.parse(source.latestOffset)
        if report == Report():
            report = read_note(notes_directory(), end)
        found.append(
            BatchProgress(
                query=last.name or str(last.id),
                batch=last.batchId,
                rows=source.numInputRows,
                seconds=last.batchDuration / 1000,
                millis_behind={key: lag + int(last.batchDuration) for key, lag in report.millis_behind.items()},
                shards=sum(not position.is_end for position in end.values()),
                bytes=report.bytes,
                data_bytes=report.data,
            )
        )
    return found


class _MarkedOffset(msgspec.Struct):
    """An offset, of which only the mark is parsed, because parsing the positions of thousands of shards would be slow."""

    streams: msgspec.Raw
    mark: str


class FinishedListener(ProgressListener):
    """Reports finished micro-batches to the runs of this Spark program. The marks of the end offsets identify the micro-batches.

    A run also infers that a micro-batch has finished when Spark requests the end of the next one. But there may be no next one: Spark 4.0
    runs only one micro-batch with `Trigger.AvailableNow`, and a query with rare triggers may be stopped before the next one.
    """

    def __init__(self, directory: Path, jvm: Process) -> None:
        self._directory = directory
        self._jvm = jvm

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a finished micro-batch to the runs. If a report is lost, the run detects the end when the next micro-batch is planned."""
        sources = event.progress.sources
        marks = [mark for source in sources if (mark := mark_of(source.endOffset)) is not None]
        if not marks:
            return
        report = FinishedBatches(marks, event.progress.name, len(sources) == 1, str(event.progress.runId))
        try:
            for path in files_of(self._directory, self._jvm):
                self._report(path, report)
        except OSError as error:
            logger.debug("a finished micro-batch was not reported to the runs: %s", error)

    def _report(self, path: Path, report: FinishedBatches) -> None:
        try:
            file = RunFile(path)
        except (OSError, msgspec.MsgspecError):
            return  # the file is missing or incomplete: its run has ended, or is still writing it
        try:
            with closing(file), RunConnection(file.entry.address, file.entry.secret) as client:
                client.finished(report)
        except KinesisEfoError as error:
            logger.debug("a finished micro-batch was not reported to a run: %s", error)


def mark_of(offset: str | None) -> Mark | None:
    """Return the mark of an offset in a query's progress; None if the offset lacks a mark or belongs to another source.

    >>> mark_of('{"mark":"7c1f09ab:3","streams":{},"version":1}'), mark_of('{"mark":"7c1f09ab:3"}'), mark_of("7")
    (Mark(checkpoint='7c1f09ab', moved=3), None, None)
    """
    try:
        return Mark.parse(msgspec.json.decode(offset_json(offset), type=_MarkedOffset).mark)
    except (msgspec.MsgspecError, ValueError):
        return None


def listen(spark: SparkSession) -> bool:
    """Add a `FinishedListener` to a classic session that does not have one yet. Returns whether the session has one now."""
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


def offset_json(offset: str | None) -> str:
    """Return the JSON text of an offset in a query's progress. A Spark Connect 4.0 client formats the offset as a Python literal.

    >>> offset_json("{'a': None}")
    '{"a": null}'
    """
    text = offset or ""
    if not text.startswith("{'"):
        return text
    try:
        return json.dumps(ast.literal_eval(text))
    except (SyntaxError, TypeError, ValueError):
        return text  # the offset belongs to another kind of source
