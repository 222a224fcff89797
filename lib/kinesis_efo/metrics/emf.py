"""Metrics as lines of CloudWatch's embedded metric format: whoever collects a log collects them.

Source: Amazon CloudWatch user guide, "Specification: Embedded metric format". Every dimension that tells shards apart would be a
custom metric of its own on the bill; a shard is therefore a member of its line, for Logs Insights, and no dimension.
Relies on the registry and the catalog.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from kinesis_efo.metrics.catalog import DIMENSIONS, Kind, Metric
from kinesis_efo.metrics.registry import Attributes, MetricsRegistry, Values

logger = logging.getLogger(__name__)

NAMESPACE: Final = "KinesisEfo"
_MOST_METRICS: Final = 100
_END_SECONDS: Final = 2.0
"""How long lines may take that are being written when the end comes: a file system may hang."""
_NO_DIMENSION: Final = "shard"
_DETAIL: Final = ("error", "reason")
"""Attributes that are a dimension too, but not the only way to see their metric: without them it is the total."""


def emf_lines(values: Values, before: Values, epoch_ms: int) -> Iterator[str]:
    """The lines of one interval, one per set of attributes.

    Args:
        values: What was read now.
        before: What was read an interval ago: counters tell how much they have grown.
        epoch_ms: Now.
    """
    by_attributes: dict[Attributes, dict[Metric, float]] = {}
    for (metric, attributes), value in values.items():
        by_attributes.setdefault(attributes, {})[metric] = _value(metric, value, before.get((metric, attributes), 0))
    for attributes, found in by_attributes.items():
        assert len(found) <= _MOST_METRICS, "the format allows no more in a line"
        names = {DIMENSIONS[name]: value for name, value in attributes if value}
        dimensions = [DIMENSIONS[name] for name, value in attributes if value and name != _NO_DIMENSION]
        total = [name for name in dimensions if name not in {DIMENSIONS[detail] for detail in _DETAIL}]
        directive = {
            "Namespace": NAMESPACE,
            "Dimensions": [dimensions] if dimensions == total else [dimensions, total],
            "Metrics": [{"Name": metric.cloudwatch, "Unit": metric.cloudwatch_unit} for metric in found],
        }
        line: dict[str, Any] = {"_aws": {"Timestamp": epoch_ms, "CloudWatchMetrics": [directive]}, **names}
        line |= {metric.cloudwatch: value for metric, value in found.items()}
        yield json.dumps(line, separators=(",", ":"))


def _value(metric: Metric, value: float, before: float) -> float:
    if metric.kind is Kind.COUNTER:
        # One that is lower than before has begun anew.
        value -= before if before <= value else 0
    return round(value, 6)


def emf_sink(where: str) -> Callable[[str], None]:
    """What writes lines to `stdout`, `stderr` or a file.

    A file is opened for each set of lines: it may be rotated, and several processes may append to it.
    """

    def to_stream(text: str) -> None:
        stream = sys.stderr if where == "stderr" else sys.stdout
        stream.write(text)
        stream.flush()

    def to_file(text: str) -> None:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        with Path(where).open("a", encoding="utf-8") as file:
            file.write(text)

    return to_stream if where in ("stdout", "stderr") else to_file


class EmfWriter:
    """Writes the lines of a registry now and then, and a last time at its end.

    Args:
        registry: What is read.
        interval: Seconds between two sets of lines.
        write: Takes a set of lines; see `emf_sink`.
        epoch: Seconds since the epoch.
    """

    def __init__(
        self,
        registry: MetricsRegistry,
        interval: float,
        write: Callable[[str], None],
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._interval = interval
        self._write = write
        self._epoch = epoch
        self._before: Values = {}
        self._failed = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinesis-efo metrics", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write what has come since the last lines, and end. Bounded; may be called again."""
        if not self._end.is_set():
            self._end.set()
            self._thread.join(_END_SECONDS)
            if not self._thread.is_alive():
                self.write()

    def write(self) -> None:
        """Write one set of lines. What is wrong with that is logged, once until it works again."""
        values = self._registry.values(fresh=0)
        lines = "".join(f"{line}\n" for line in emf_lines(values, self._before, round(self._epoch() * 1000)))
        try:
            if lines:
                self._write(lines)
        except (OSError, ValueError) as error:
            if not self._failed:
                logger.warning("metrics cannot be written as EMF lines: %s", error)
            self._failed = True
        else:
            # Growth that could not be written comes with the next lines.
            self._before, self._failed = values, False

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            self.write()
