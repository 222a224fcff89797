"""A listener that reports after each micro-batch what was read and how far the shards lag.

It skips sources of other kinds, by the form of their offsets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import QueryProgressEvent

from kinesis_efo.positions import Offset, ShardKey
from kinesis_efo.private_directory import notes_directory
from kinesis_efo.spark.lag import Report, read_note
from kinesis_efo.spark.progress_listener import ProgressListener, offset_json
from kinesis_efo.units import format_size


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What one micro-batch read from Kinesis.

    Attributes:
        query: The query's name, or its id if it has none.
        batch: Number of the micro-batch.
        rows: Rows read.
        seconds: How long it took.
        millis_behind: Milliseconds by which each shard was behind its tip when the micro-batch was planned; empty if unknown.
        shards: Number of shards that are being read.
        bytes: Its bytes as sent by Kinesis, which `maxBytesPerTrigger` counts; None if unknown.
        data_bytes: Estimated bytes of the records' data in it; None if unknown.
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
        """The shard with the greatest lag, and this lag in milliseconds."""
        return max(self.millis_behind.items(), key=lambda item: item[1], default=None)

    def __str__(self) -> str:
        """One line for a log.

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


def _say(progress: BatchProgress) -> None:
    sys.stderr.write(f"{progress}\n")
    sys.stderr.flush()


class LagListener(ProgressListener):
    """Writes a line to stderr for each micro-batch of queries that read Kinesis.

    Args:
        then: Called with each micro-batch instead, to log or send it. It runs in Spark's listener thread: return soon.

    ```python
    spark.streams.addListener(LagListener())
    spark.streams.addListener(LagListener(logging.getLogger("my job").info))
    ```
    """

    def __init__(self, then: Callable[[BatchProgress], object] | None = None) -> None:
        self._then = then or _say

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass the micro-batch on."""
        for progress in kinesis_progress(event.progress):
            self._then(progress)


def kinesis_progress(progress: Any) -> list[BatchProgress]:
    """The progress of each `kinesis-efo` source of a query."""
    found = []
    for source in progress.sources:
        try:
            end = Offset.from_json(offset_json(source.endOffset))
        except ValueError:
            continue
        # On Spark 4.0 `latestOffset` is an offset and not a report.
        report = Report.parse(source.latestOffset)
        if report == Report():
            report = read_note(notes_directory(), end)
        found.append(
            BatchProgress(
                query=progress.name or str(progress.id),
                batch=progress.batchId,
                rows=source.numInputRows,
                seconds=progress.batchDuration / 1000,
                millis_behind=report.millis_behind,
                shards=sum(not position.is_end for position in end.values()),
                bytes=report.bytes,
                data_bytes=report.data,
            )
        )
    return found
