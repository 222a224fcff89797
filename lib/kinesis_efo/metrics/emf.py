"""Writes metrics as lines of CloudWatch's embedded metric format (EMF), which CloudWatch extracts from collected logs.

Source: Amazon CloudWatch user guide, "Specification: Embedded metric format". AWS charges each combination of dimensions as a custom
metric. Therefore, shard and fetcher are not dimensions, only members of a line's JSON, which Logs Insights can query. Without a fetcher
dimension, a single alarm on the lag covers all fetchers.
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

from kinesis_efo.errors import naming
from kinesis_efo.metrics.catalog import DIMENSIONS, Kind, Metric
from kinesis_efo.metrics.registry import Attributes, Source, Values, merge, samples_of

logger = logging.getLogger(__name__)

NAMESPACE: Final = "KinesisEfo"
_MOST_METRICS: Final = 100
_END_SECONDS: Final = 2.0
"""Maximum seconds for which `close` waits for a write in progress, because a file system may hang."""
_NO_DIMENSIONS: Final = ("shard", "fetcher")
_DETAIL: Final = ("error", "reason")
"""Attributes that subdivide a metric. CloudWatch receives such a metric both with and without the attribute as a dimension."""


def emf_lines(values: Values, before: Values, epoch_ms: int) -> Iterator[str]:
    """Yield the EMF lines of one interval, one per set of attributes. The value of a counter is its increase since `before`."""
    by_attributes: dict[Attributes, dict[Metric, float]] = {}
    for (metric, attributes), value in values.items():
        by_attributes.setdefault(attributes, {})[metric] = _value(metric, value, before.get((metric, attributes), 0))
    for attributes, found in by_attributes.items():
        assert len(found) <= _MOST_METRICS, "the format allows no more in a line"
        names = {DIMENSIONS[name]: value for name, value in attributes if value}
        dimensions = [DIMENSIONS[name] for name, value in attributes if value and name not in _NO_DIMENSIONS]
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
        # A value below the previous one means that the counter was reset, so the increase is the whole value.
        value -= before if before <= value else 0
    return round(value, 6)


def emf_sink(where: str) -> Callable[[str], None]:
    """Create a function that writes lines to `stdout`, `stderr` or a file.

    The function reopens the file for each write, so that the file can be rotated and several processes can append to it.
    """

    def to_stream(text: str) -> None:
        stream = sys.stderr if where == "stderr" else sys.stdout
        with naming(where):
            stream.write(text)
            stream.flush()

    def to_file(text: str) -> None:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        with naming(where), Path(where).open("a", encoding="utf-8") as file:
            file.write(text)

    return to_stream if where in ("stdout", "stderr") else to_file


class EmfWriter:
    """Writes a source's metrics as EMF lines every `interval` seconds and when it is closed. `write` is a function from `emf_sink`."""

    def __init__(
        self,
        source: Source,
        interval: float,
        write: Callable[[str], None],
        epoch: Callable[[], float] = time.time,
        end_seconds: float = _END_SECONDS,
    ) -> None:
        self._source = source
        self._interval = interval
        self._write = write
        self._epoch = epoch
        self._end_seconds = end_seconds
        self._before: Values = {}
        self._failed = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinesis-efo metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write a last set of lines and stop, within a bounded time. Later calls do nothing."""
        if not self._end.is_set():
            self._end.set()
            self._thread.join(self._end_seconds)
            if not self._thread.is_alive():
                self.write()

    def write(self) -> None:
        """Write the current metric values as EMF lines. Of several consecutive failures, only the first is logged."""
        values = merge({}, samples_of(self._source))
        lines = "".join(f"{line}\n" for line in emf_lines(values, self._before, round(self._epoch() * 1000)))
        try:
            if lines:
                self._write(lines)
        except (OSError, ValueError) as error:
            if not self._failed:
                logger.warning("metrics cannot be written as EMF lines: %s; check option 'metricsExport'", error)
            self._failed = True
        else:
            # Update `_before` only after success, so that the next lines include increases that could not be written.
            self._before, self._failed = values, False

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            self.write()
