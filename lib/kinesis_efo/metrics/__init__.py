"""The library's metrics, exported through OpenTelemetry or as CloudWatch EMF lines.

Fetchers and producers only increment numbers, which an exporter reads once per interval. The overhead per record is therefore negligible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kinesis_efo.metrics.catalog import METRICS, Kind, Metric
from kinesis_efo.metrics.emf import EmfWriter, emf_sink
from kinesis_efo.metrics.labels import Labels
from kinesis_efo.metrics.registry import Attributes, MetricsRegistry, Sample, Source

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


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where to send metrics, and how many shards to report separately."""

    export: Literal["otel", "emf", "none"] = (
        "otel"  # `otel` (no effect until an OpenTelemetry SDK is configured), `emf` or `none`
    )
    emf_to: str = "stdout"  # Destination of EMF lines: `stdout`, `stderr`, or the path of a file to append to
    emf_interval: float = 60.0  # Seconds between writes of EMF lines
    # Maximum number of shards with per-shard metrics; other shards are reported together as `other`. 0 disables per-shard metrics
    shards: int = 100

    def __str__(self) -> str:
        """Return the value of the option `metricsExport`."""
        return f"emf:{self.emf_to}:{self.emf_interval:g}s" if self.export == "emf" else self.export


def report(source: Source, settings: MetricsSettings) -> Callable[[], None]:
    """Start reporting the metrics of a source. The exporter reads the source once per interval, in its own thread.

    Returns a function that exports the last values and stops reporting, within a few seconds. Later calls do nothing.
    """
    match settings.export:
        case "emf":
            writer = EmfWriter(source, settings.emf_interval, emf_sink(settings.emf_to))
            writer.start()
            return writer.close
        case "otel":
            return _to_otel(source)
    return lambda: None


def _to_otel(source: Source) -> Callable[[], None]:
    # Import OpenTelemetry lazily: most tasks import this module without reporting metrics.
    from kinesis_efo.metrics.otel import telemetry

    process = telemetry()
    process.registry.add(source)
    reported = [source]

    def end() -> None:
        if reported:
            process.flush()
            process.registry.remove(reported.pop())

    return end
