"""A dashboard that answers one question: is each application keeping up?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra import names
from infra.cdk import CloudwatchDashboard, Construct, Fn
from infra.constructs.alarms import ITERATOR_AGE, LAG, RATE_EXCEEDED, READS_THROTTLED, WRITES_THROTTLED, Alarms
from infra.constructs.stream import FanOutStream
from infra.settings import Environment

_WIDTH = 24
_HEIGHT = 6


class Dashboard(Construct):
    """Lag alarms on top, then a row per application (lag, bytes received, refusals), then a row about writes.

    Args:
        scope: The parent construct.
        environment: The environment.
        streams: Every stream, by key.
        alarms: Alarms of the environment; the state of the lag alarms is shown.
    """

    def __init__(
        self, scope: Construct, environment: Environment, streams: Mapping[str, FanOutStream], alarms: Alarms
    ) -> None:
        super().__init__(scope, "dashboard")
        self._environment, self._streams = environment, streams
        widgets: list[dict[str, Any]] = []
        if alarms.lag_arns:
            state = {"title": "Is each application keeping up?", "alarms": list(alarms.lag_arns)}
            widgets.append({"type": "alarm", "x": 0, "y": 0, "width": _WIDTH, "height": 3, "properties": state})
        top = 3
        for row in [*map(self._application, environment.applications), self._writers()]:
            if not row[0]["metrics"]:
                continue
            width = _WIDTH // len(row)
            widgets += [
                {
                    "type": "metric",
                    "x": n * width,
                    "y": top,
                    "width": width,
                    "height": _HEIGHT,
                    "properties": properties,
                }
                for n, properties in enumerate(row)
            ]
            top += _HEIGHT
        dashboard = CloudwatchDashboard(
            self,
            "dashboard",
            dashboard_name=names.prefix(environment),
            dashboard_body=Fn.jsonencode({"widgets": widgets}),
        )
        dashboard.override_logical_id("applications")

    def _application(self, key: str) -> list[dict[str, Any]]:
        settings = self._environment.applications[key]
        # Metrics of a stream in another account are in that account.
        streams = [each for each in settings.streams if names.is_ours(self._environment, each)]

        limit = {"horizontal": [{"label": "alarm", "value": settings.lag_threshold_seconds * 1000}]}
        if not settings.subscribes:
            # Without a consumer, there are only metrics of all that poll the stream.
            return [
                self._widget(f"{key}: milliseconds behind", self._of_streams(ITERATOR_AGE, streams), "Maximum")
                | {"annotations": limit},
                self._widget(f"{key}: bytes received", self._of_streams("GetRecords.Bytes", streams), "Sum"),
                self._widget(f"{key}: reads throttled", self._of_streams(READS_THROTTLED, streams), "Sum"),
            ]

        def per_stream(metric: str) -> list[list[Any]]:
            return [
                [
                    *self._metric(metric, each),
                    "ConsumerName",
                    names.consumer_name(self._environment, each, key),
                    {"label": each},
                ]
                for each in streams
            ]

        return [
            self._widget(f"{key}: milliseconds behind", per_stream(LAG), "Maximum") | {"annotations": limit},
            self._widget(f"{key}: bytes received", per_stream("SubscribeToShardEvent.Bytes"), "Sum"),
            self._widget(f"{key}: subscriptions refused", per_stream(RATE_EXCEEDED), "Sum"),
        ]

    def _writers(self) -> list[dict[str, Any]]:
        ours = [key for key in self._streams if names.is_ours(self._environment, key)]

        return [
            self._widget("bytes written", self._of_streams("IncomingBytes", ours), "Sum"),
            self._widget("writes throttled", self._of_streams(WRITES_THROTTLED, ours), "Sum"),
        ]

    def _of_streams(self, metric: str, keys: list[str]) -> list[list[Any]]:
        return [[*self._metric(metric, key), {"label": key}] for key in keys]

    def _metric(self, metric: str, key: str) -> list[Any]:
        return ["AWS/Kinesis", metric, "StreamName", self._streams[key].name]

    def _widget(self, title: str, metrics: list[list[Any]], statistic: str) -> dict[str, Any]:
        return {
            "title": title,
            "region": self._environment.region,
            "view": "timeSeries",
            "stat": statistic,
            "period": 60,
            "metrics": metrics,
        }
