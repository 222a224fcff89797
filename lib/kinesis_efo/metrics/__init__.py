"""The library's metrics, exported through OpenTelemetry or as CloudWatch EMF lines.

Fetcher and producer only increment plain numbers, which an exporter reads once per interval through a `Source`. Therefore, metrics cost
nothing per record.
"""

from __future__ import annotations

from kinesis_efo.metrics.catalog import METRICS, Kind, Metric
from kinesis_efo.metrics.labels import Labels
from kinesis_efo.metrics.registry import Attributes, MetricsRegistry, Sample, Source
from kinesis_efo.metrics.report import MetricsSettings, report

__all__ = [
    "METRICS",
    "Attributes",
    "Kind",
    "Labels",
    "Metric",
    "MetricsRegistry",
    "MetricsSettings",
    "Sample",
    "Source",
    "report",
]
