"""The registry of a process's metric sources. It reads all sources together, and retains the counters of removed sources.

The exporter's thread calls the sources. If other threads change a source's values, the source must copy them without acquiring locks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kinesis_efo.metrics.catalog import Kind, Metric

logger = logging.getLogger(__name__)

Attributes = tuple[tuple[str, str], ...]
"""The attributes of a sample, as pairs of name and value in a fixed order."""

FRESH_SECONDS: Final = 0.5
"""Seconds for which values are reused: an exporter reads the registry once for each metric."""


class Sample(NamedTuple):
    """One value of a metric, in the metric's unit, with attributes such as the stream's name."""

    metric: Metric
    value: float
    attributes: Attributes


Source = Callable[[], Iterable[Sample]]
"""A function that returns all current values of one component, such as a fetcher or a producer."""

Values = dict[tuple[Metric, Attributes], float]


def merge(into: Values, samples: Iterable[Sample]) -> Values:
    """Add samples to `into`, and return it. Samples of a metric with the same attributes are combined according to the metric's kind."""
    for metric, value, attributes in samples:
        key = metric, attributes
        if key not in into:
            into[key] = value
        elif metric.kind is Kind.WORST:
            into[key] = max(into[key], value)
        else:
            into[key] += value
    return into


class MetricsRegistry:
    """All metric sources of a process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._former: Values = {}
        self._values: Values = {}
        self._read_at = float("-inf")

    def add(self, source: Source) -> None:
        with self._lock:
            self._sources.append(source)
            self._read_at = float("-inf")

    def remove(self, source: Source) -> None:
        """Remove a source, but retain the last values of its counters, so that totals do not drop."""
        with self._lock:
            self._sources.remove(source)
            merge(self._former, (sample for sample in samples_of(source) if sample.metric.kind is Kind.COUNTER))
            self._read_at = float("-inf")

    def values(self, fresh: float = FRESH_SECONDS) -> Values:
        """Return all values, at most `fresh` seconds old."""
        with self._lock:
            if self._now() - self._read_at >= fresh:
                values = dict(self._former)
                for source in self._sources:
                    merge(values, samples_of(source))
                self._values, self._read_at = values, self._now()
            return self._values


def samples_of(source: Source) -> list[Sample]:
    """Read the samples of a source. Returns an empty list if the source raises an error."""
    try:
        return list(source())
    except Exception:
        # Only log the error: a failing source must stop neither the exporter nor a query.
        logger.exception("metrics of %s cannot be read", source)
        return []
