"""The metrics as Prometheus has them: their names, and expressions over them."""

from __future__ import annotations

import re
from typing import Final

from kinesis_efo.metrics.catalog import Kind, Metric

UNITS: Final = {"ms": "milliseconds", "s": "seconds", "By": "bytes"}
"""Prometheus' words for the units. A unit in braces only annotates what is counted, and has none."""


def prometheus_name(metric: Metric) -> str:
    """The name that exporters of OpenTelemetry give to a metric (its specification, "Prometheus and OpenMetrics Compatibility").

    >>> from kinesis_efo.metrics import catalog
    >>> prometheus_name(catalog.LAG), prometheus_name(catalog.BYTES)
    ('kinesis_efo_lag_milliseconds', 'kinesis_efo_bytes_total')
    """
    words = re.split("[^a-zA-Z0-9]+", metric.name)
    if not metric.unit.startswith("{") and UNITS[metric.unit] not in words:
        words.append(UNITS[metric.unit])
    if metric.kind is Kind.COUNTER:
        words.append("total")
    return "_".join(words)


def series(name: str, **labels: str) -> str:
    """The series of a name with these labels; a value that begins with `~` is a regular expression.

    >>> series("up", application="~lake|bay", reason="taken")
    'up{application=~"lake|bay", reason="taken"}'
    """
    conditions = ", ".join(
        f'{label}={value[: value.startswith("~")]}"{value.removeprefix("~")}"' for label, value in labels.items()
    )
    return f"{name}{{{conditions}}}" if conditions else name


def selected(metric: Metric, **labels: str) -> str:
    """The metric's series with these labels, as `series` takes them."""
    return series(prometheus_name(metric), **labels)


def combined(metric: Metric, by: tuple[str, ...], found: str, window: str) -> str:
    """The series of all processes and shards as one for each value of some labels: the worst, the sum, or the sum a second.

    Args:
        metric: The metric.
        by: The labels.
        found: Its series, as `selected` gives them.
        window: What a counter's rate is taken over.
    """
    match metric.kind:
        case Kind.WORST:
            return f"max by ({', '.join(by)}) ({found})"
        case Kind.AMOUNT:
            return f"sum by ({', '.join(by)}) ({found})"
        case Kind.COUNTER:
            return f"sum by ({', '.join(by)}) (rate({found}[{window}]))"


def grew(metric: Metric, by: tuple[str, ...], window: str, above: int, **labels: str) -> str:
    """Whether a counter grew by more than a number. One that is counted for the first time grew from nothing, which `increase` misses."""
    found, over = selected(metric, **labels), f"sum by ({', '.join(by)})"
    first = f"{over} ({found}) unless {over} ({found} offset {window})"
    return f"{over} (increase({found}[{window}])) > {above} or ({first}) > {above}"
