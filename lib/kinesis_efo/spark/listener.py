"""A listener that says after each micro-batch what was read and how far each shard lags. Relies on Spark's query progress.

Only sources of this library are looked at: they are known by the form of their offsets.
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
    """One micro-batch, as far as Kinesis is concerned.

    Attributes:
        query: The query's name, or its id where it has none.
        batch: Number of the micro-batch.
        rows: Rows read.
        seconds: How long it took.
        millis_behind: How far each shard was behind its tip when the micro-batch was planned; empty where Spark does not tell.
        shards: How many shards are read.
    """

    query: str
    batch: int
    rows: int
    seconds: float
    millis_behind: Mapping[ShardKey, int]
    shards: int

    @property
    def worst(self) -> tuple[ShardKey, int] | None:
        """The shard that lags most, and its lag in milliseconds."""
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
        then: Called with each of them as well, for example to send it somewhere. Runs in Spark's listener thread: be quick.

    ```python
    spark.streams.addListener(LagListener())
    ```
    """

    def __init__(self, then: Callable[[BatchProgress], None] | None = None) -> None:
        self._then = then

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to say: Spark logs it."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch is done."""
        for progress in kinesis_progress(event.progress):
            logger.info("%s", progress)
            if self._then is not None:
                self._then(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to say."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to say: whoever waits for the query gets its exception."""


def kinesis_progress(progress: Any) -> list[BatchProgress]:
    """What a query's progress says of its sources that are Kinesis streams; one entry per source."""
    found = []
    for source in progress.sources:
        try:
            end = Offset.from_json(source.endOffset or "")
        except ValueError:
            continue
        # Spark 4.0 puts the offset itself here, which is no report.
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
