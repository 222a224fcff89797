"""OpenTelemetry: nothing without an SDK, the user's SDK where there is one, and one by environment variables for Spark's processes."""

import os
import subprocess
import sys

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from kinesis_efo.metrics import METRICS, Kind, MetricsRegistry, Sample
from kinesis_efo.metrics.catalog import RECORDS
from kinesis_efo.metrics.otel import METER, Telemetry, publish
from tests.support.http_server import Handler, served

ORDERS = (("application", "lake"), ("environment", ""), ("stream", "orders"))


def test_every_metric_has_its_unit_and_kind() -> None:
    reader, registry = InMemoryMetricReader(), MetricsRegistry()
    publish(registry, MeterProvider([reader]).get_meter(METER))
    registry.add(lambda: [Sample(metric, 1, ()) for metric in METRICS])
    ((scope,),) = [resource.scope_metrics for resource in reader.get_metrics_data().resource_metrics]
    found = {metric.name: metric for metric in scope.metrics}
    assert found.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        assert (found[metric.name].unit, found[metric.name].description) == (metric.unit, metric.meaning)
        monotonic = getattr(found[metric.name].data, "is_monotonic", None)
        assert monotonic == {Kind.COUNTER: True, Kind.AMOUNT: False, Kind.WORST: None}[metric.kind]
    reader.shutdown()


PROGRAM = """
import sys
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from kinesis_efo.metrics import MetricsSettings, Sample, report
from kinesis_efo.metrics.catalog import RECORDS

reader = InMemoryMetricReader()
if sys.argv[1] == "before":
    set_meter_provider(MeterProvider([reader]))
end = report(lambda: [Sample(RECORDS, 3, ())], MetricsSettings())
if sys.argv[1] == "after":
    set_meter_provider(MeterProvider([reader]))
(metric,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
print(metric.name, metric.data.data_points[0].value)
end()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_programs_own_sdk_is_used_whenever_it_comes(when: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, when]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.stderr) == ("kinesis_efo.records 3\n", "")


class Collector(Handler):
    """An OTLP/HTTP receiver."""

    received: list[tuple[str, ExportMetricsServiceRequest]]

    def do_POST(self) -> None:
        self.received.append((self.path, ExportMetricsServiceRequest.FromString(self.body())))
        self.answer(200)


def test_the_environment_alone_sends_metrics_to_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[str, ExportMetricsServiceRequest]] = []
    with served(Collector, received=received) as endpoint:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": "archive"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        telemetry = Telemetry(environment)
        telemetry.registry.add(lambda: [Sample(RECORDS, 3, ORDERS)])
        telemetry.flush()
        telemetry.own.shutdown()  # type: ignore[union-attr]
    (path, request), *_ = received
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    attributes = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert attributes["service.name"] == "archive"
    (scope,) = resource.scope_metrics
    (records,) = [metric for metric in scope.metrics if metric.name == "kinesis_efo.records"]
    (point,) = records.sum.data_points
    assert (records.sum.is_monotonic, point.as_int) == (True, 3)
    assert {attribute.key: attribute.value.string_value for attribute in point.attributes} == {
        "application": "lake",
        "stream": "orders",
    }
