"""Connects a source to the exporter that the settings select."""

from __future__ import annotations

from collections.abc import Callable

from kinesis_efo.metrics.emf import EmfWriter, emf_sink
from kinesis_efo.metrics.registry import MetricsRegistry, Source
from kinesis_efo.metrics.settings import MetricsSettings


def report(source: Source, settings: MetricsSettings) -> Callable[[], None]:
    """Start reporting a source.

    Args:
        source: Read once per interval, in the exporter's thread.
        settings: Select the exporter.

    Returns:
        A function that sends the last values and ends the report, within a few seconds. Calling it again does nothing.
    """
    match settings.export:
        case "emf":
            return _as_emf(source, settings)
        case "otel":
            return _to_otel(source)
    return lambda: None


def _as_emf(source: Source, settings: MetricsSettings) -> Callable[[], None]:
    registry = MetricsRegistry()
    registry.add(source)
    writer = EmfWriter(registry, settings.emf_interval, emf_sink(settings.emf_to))
    writer.start()
    return writer.close


def _to_otel(source: Source) -> Callable[[], None]:
    # Imported here, because tasks also import this module, and few of them report metrics.
    from kinesis_efo.metrics.otel import telemetry

    process = telemetry()
    process.registry.add(source)
    reported = [source]

    def end() -> None:
        if reported:
            process.flush()
            process.registry.remove(reported.pop())

    return end
