"""Sends what a source counts to where the settings say. Relies on the two ways out; OpenTelemetry is imported when needed."""

from __future__ import annotations

from collections.abc import Callable

from kinesis_efo.metrics.emf import EmfWriter, emf_sink
from kinesis_efo.metrics.registry import MetricsRegistry, Source
from kinesis_efo.metrics.settings import MetricsSettings


def report(source: Source, settings: MetricsSettings) -> Callable[[], None]:
    """Report a source from now on.

    Args:
        source: Read once per interval, from a thread of the exporter's.
        settings: Where to.

    Returns:
        What ends it, with the last values sent; bounded to a few seconds. May be called again.
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
    # Tasks import this module, too, and few of them report anything.
    from kinesis_efo.metrics.otel import telemetry

    out = telemetry()
    out.registry.add(source)
    left = [source]

    def end() -> None:
        if left:
            out.flush()
            out.registry.remove(left.pop())

    return end
