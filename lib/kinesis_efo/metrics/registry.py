"""Where everything that counts can be read together: sources come and go, and the totals of those that went stay.

A source is read from the exporter's thread: it copies what other threads change, and takes no locks of theirs. Relies on
the catalog.
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
"""Names and values, in a fixed order."""

FRESH_SECONDS: Final = 0.5
"""An exporter asks for one metric after the other; what was read for the first one serves for the rest."""


class Sample(NamedTuple):
    """One value.

    Attributes:
        metric: What it is of.
        value: In the metric's unit.
        attributes: What it belongs to.
    """

    metric: Metric
    value: float
    attributes: Attributes


Source = Callable[[], Iterable[Sample]]
"""Something that counts, asked for all its values."""

Values = dict[tuple[Metric, Attributes], float]


def merge(into: Values, samples: Iterable[Sample]) -> Values:
    """Add samples to values; those with the same attributes become one, as their kind says."""
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
    """All sources of a process.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._former: Values = {}
        self._values: Values = {}
        self._read_at = float("-inf")

    def add(self, source: Source) -> None:
        """Read a source from now on."""
        with self._lock:
            self._sources.append(source)
            self._read_at = float("-inf")

    def remove(self, source: Source) -> None:
        """Read a source for the last time: its counters go on counting from where they are."""
        with self._lock:
            self._sources.remove(source)
            merge(self._former, (sample for sample in _read(source) if sample.metric.kind is Kind.COUNTER))
            self._read_at = float("-inf")

    def values(self, fresh: float = FRESH_SECONDS) -> Values:
        """All values, at most so many seconds old."""
        with self._lock:
            if self._now() - self._read_at >= fresh:
                values = dict(self._former)
                for source in self._sources:
                    merge(values, _read(source))
                self._values, self._read_at = values, self._now()
            return self._values


def _read(source: Source) -> list[Sample]:
    try:
        return list(source())
    except Exception:
        # Whatever is wrong with counting must not become the exporter's fault, nor a query's.
        logger.exception("metrics of %s cannot be read", source)
        return []
