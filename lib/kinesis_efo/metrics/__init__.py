"""What the library counts, and how that leaves the process: through OpenTelemetry, or as CloudWatch EMF lines.

The parts that work only increment plain numbers. Once per export interval a reporter reads them through a `Source`; nothing
of this is on the way of a record. Relies on the clock and the errors; OpenTelemetry is imported where it is used.
"""

from __future__ import annotations

from kinesis_efo.metrics.catalog import METRICS, Kind, Metric, metric_table
from kinesis_efo.metrics.labels import Labels
from kinesis_efo.metrics.registry import Attributes, MetricsRegistry, Sample, Source
from kinesis_efo.metrics.report import report
from kinesis_efo.metrics.settings import MetricsSettings

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
    "metric_table",
    "report",
]
