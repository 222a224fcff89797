"""Reports the KPL aggregates that tasks of this process drop: in a metric, and in at most one warning per minute and stream.

With `deaggregate=strict`, tasks drop aggregates that have records of other shards, as the KCL does. The KPL resends them; other producers
may not.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from kinesis_efo.metrics import MetricsSettings, Sample, Source, report
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.positions import ShardKey

logger = logging.getLogger(__name__)

WARN_SECONDS: Final = 60.0


class LeftOut:
    """Counts dropped KPL aggregates by stream, logs warnings, and provides the counts as a metric."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        start_report: Callable[[Source, MetricsSettings], Callable[[], None]] = report,
    ) -> None:
        self._now = now
        self._start_report = start_report
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()
        self._warned_at: dict[str, float] = {}

    def add(self, key: ShardKey, aggregates: int, settings: MetricsSettings) -> None:
        """Count the aggregates of a shard that a task has dropped. The first call starts reporting the metric, with `settings`."""
        stream, now = key.stream, self._now()
        with self._lock:
            first = not self._counts
            self._counts[stream] += aggregates
            self._unreported[stream] += aggregates
            due = now - self._warned_at.get(stream, float("-inf")) >= WARN_SECONDS
            number = self._unreported.pop(stream) if due else 0
            if due:
                self._warned_at[stream] = now
        if first:
            atexit.register(self._start_report(self, settings))
        if number:
            logger.warning(
                "stream %s: %d KPL aggregates were dropped here within a minute, the last in shard %s, as set by option "
                "'deaggregate=strict': hash keys of their records belong to other shards, to which the KPL sends them again. Another "
                "producer may not do so: 'deaggregate=true' delivers them",
                stream,
                number,
                key.shard,
            )

    def __call__(self) -> Iterator[Sample]:
        """Yield the current counts as samples of the metric."""
        with self._lock:
            counts = dict(self._counts)
        for stream, count in counts.items():
            yield Sample(metrics.LEFT_OUT, count, (("stream", stream),))


LEFT_OUT: Final = LeftOut()
"""The counts of this process, shared by its tasks."""
