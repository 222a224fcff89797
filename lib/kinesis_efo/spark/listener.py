"""A listener that logs, after each micro-batch, what was read and how far the shards lag.

It skips sources of other kinds: it knows this library's by the form of their offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kinesis_efo.positions import Offset, ShardKey
from kinesis_efo.spark.lag import from_report, notes_directory, read_note

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What one micro-batch read from Kinesis.

    Attributes:
        query: The query's name, or its id where it has none.
        batch: Number of the micro-batch.
        rows: Rows read.
        seconds: How long it took.
        millis_behind: Milliseconds that each shard was behind its tip when the micro-batch was planned; empty where unknown.
        shards: Number of shards that are being read.
    """

    query: str
    batch: int
    rows: int
    seconds: float
    millis_behind: Mapping[ShardKey, int]
    shards: int

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
        return (
            f"query {self.query}, micro-batch {self.batch}: {self.rows:,} rows in {self.seconds:.1f} s; "
            f"{self.shards} shards, {lag}"
        )


class LagListener(StreamingQueryListener):
    """Logs each micro-batch of queries that read Kinesis, at level INFO.

    Args:
        then: Called with each micro-batch, for example to send it somewhere. It runs in Spark's listener thread: return soon.

    ```python
    spark.streams.addListener(LagListener())
    ```
    """

    def __init__(self, then: Callable[[BatchProgress], None] | None = None) -> None:
        self._then = then

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing: Spark logs the start."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Logs the micro-batch and passes it on."""
        for progress in kinesis_progress(event.progress):
            logger.info("%s", progress)
            if self._then is not None:
                self._then(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Does nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Does nothing: `awaitTermination` raises the query's exception."""


def kinesis_progress(progress: Any) -> list[BatchProgress]:
    """The progress of a query's `kinesis-efo` sources, one entry each."""
    found = []
    for source in progress.sources:
        try:
            end = Offset.from_json(source.endOffset or "")
        except ValueError:
            continue
        # On Spark 4.0 `latestOffset` is an offset and not a report.
        lag = from_report(source.latestOffset) or read_note(notes_directory(), end)
        found.append(
            BatchProgress(
                query=progress.name or str(progress.id),
                batch=progress.batchId,
                rows=source.numInputRows,
                seconds=progress.batchDuration / 1000,
                millis_behind=lag,
                shards=sum(not position.is_end for position in end.values()),
            )
        )
    return found
