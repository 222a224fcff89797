"""Exports metrics through OpenTelemetry's API, and sets up an SDK in processes in which users cannot set one up.

The API has no effect without an SDK. Users cannot set up an SDK in Spark's Python workers, which do not run the user's program. There, this
module sets it up from the standard environment variables (`OTEL_METRICS_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`, ...; OpenTelemetry
specification, "Environment Variable Specification"). The SDK's provider serves only this library. It does not become the process's global
provider, so that a program can still set its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider

from kinesis_efo.metrics.catalog import METRICS, Kind, Metric
from kinesis_efo.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider

logger = logging.getLogger(__name__)

METER: Final = "kinesis_efo"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FLUSH_SECONDS: Final = 2.0


def publish(registry: MetricsRegistry, meter: Meter) -> None:
    """Create an OpenTelemetry instrument for every metric. When an SDK collects metrics, the instruments read the registry."""
    for metric in METRICS:
        create: Callable[..., Any] = (
            meter.create_observable_counter if metric.kind is Kind.COUNTER
            else meter.create_observable_up_down_counter if metric.kind is Kind.AMOUNT
            else meter.create_observable_gauge
        )  # fmt: skip
        create(metric.name, callbacks=[_observe(registry, metric)], unit=metric.unit, description=metric.meaning)


def _observe(registry: MetricsRegistry, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        for (of, attributes), value in registry.values().items():
            if of is metric:
                yield Observation(value, {name: text for name, text in attributes if text})

    return observe


class Telemetry:
    """The metrics registry that this process exports through OpenTelemetry, and the SDK provider (`own`) if this library has set one up."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.registry = MetricsRegistry()
        self.own: SdkMeterProvider | None = None
        provider: MeterProvider = get_meter_provider()
        # Only a provider that the program has set up has `force_flush`. The default provider forwards to an SDK that is set up later.
        if not hasattr(provider, "force_flush") and (exporters := exporter_names(environment)):
            self.own = sdk_provider(exporters)
        publish(self.registry, (self.own or provider).get_meter(METER))

    def flush(self) -> None:
        """Export the current metric values, within 2 s, if this library has set up the SDK. An SDK set up by the program is not flushed."""
        if self.own is not None:
            self.registry.values(fresh=0)
            flushing = threading.Thread(target=self.own.force_flush, args=(int(_FLUSH_SECONDS * 1000),), daemon=True)
            flushing.start()
            flushing.join(_FLUSH_SECONDS)


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """Return the exporters that the environment variables request, as entry point names.

    >>> exporter_names({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    ['otlp_proto_http']
    >>> exporter_names({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    ['otlp_proto_grpc']
    >>> exporter_names({}), exporter_names({"OTEL_METRICS_EXPORTER": "none"})
    ([], [])
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environment.get(name) for name in _ENDPOINTS) else "none"
    wanted = environment.get("OTEL_METRICS_EXPORTER") or default
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol.strip() == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in wanted.split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def sdk_provider(exporters: Iterable[str]) -> SdkMeterProvider | None:
    """Set up an SDK with these exporters. Logs a warning and returns None on failure, such as an exporter that is not installed."""
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

        readers = []
        for name in exporters:
            (found,) = entry_points(group="opentelemetry_metrics_exporter", name=name)
            exporter = found.load()()
            readers.append(exporter if isinstance(exporter, MetricReader) else PeriodicExportingMetricReader(exporter))
        # Do not shut down on exit: an exporter that cannot reach its collector must not delay the end of the process.
        return MeterProvider(metric_readers=readers, shutdown_on_exit=False)
    except Exception as error:
        logger.warning(
            "metrics are not exported, although the environment asks for exporter %s: %s. Install opentelemetry-sdk and "
            "opentelemetry-exporter-otlp where Spark's Python finds them, or set OTEL_METRICS_EXPORTER=none",
            ", ".join(exporters),
            f"{type(error).__name__}: {error}",
        )
        return None


_once: Final = threading.Lock()


def telemetry() -> Telemetry:
    """Return this process's `Telemetry`. There is only one, because each OpenTelemetry instrument must be created only once."""
    with _once:
        return _telemetry()


@cache
def _telemetry() -> Telemetry:
    return Telemetry()
