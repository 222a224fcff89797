"""The dashboard of an environment, which shows whether each application keeps up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.cdk import Construct
from infra.stacks.constructs.alarms import ITERATOR_AGE, READS_THROTTLED, WRITES_THROTTLED, Alarms
from infra.stacks.constructs.stream import FanOutStream
from kinesis_efo_infra import dashboard
from kinesis_efo_infra.alarms import BYTES, LAG, RATE_EXCEEDED
from kinesis_efo_infra.dashboard import Widget, metric
from kinesis_efo_infra.places import Place


class Dashboard(dashboard.Dashboard):
    """Lag alarms on top, then a row per application (lag, bytes received, refusals), then a row about writes.

    Args:
        scope: The parent construct.
        environment: The environment.
        streams: All streams, by key.
        alarms: Alarms of the environment; the states of the lag alarms are shown.
    """

    def __init__(
        self, scope: Construct, environment: Environment, streams: Mapping[str, FanOutStream], alarms: Alarms
    ) -> None:
        self._environment, self._streams = environment, streams
        super().__init__(
            scope,
            "dashboard",
            name=Names(environment).prefix,
            region=environment.region,
            rows=[*map(self._application, environment.applications), self._writers()],
            alarms=alarms.lag_arns,
            place=Place("applications"),
        )

    def _application(self, key: str) -> list[Widget]:
        settings = self._environment.applications[key]
        # Skip streams in other accounts, because their metrics are in those accounts.
        streams = [each for each in settings.streams if Names(self._environment).is_ours(each)]
        limit = settings.lag_threshold_seconds * 1000
        if not settings.subscribes:
            # Without consumers, use the streams' metrics, which cover everything that polls the streams.
            return [
                Widget(f"{key}: milliseconds behind", self._of_streams(ITERATOR_AGE, streams), "Maximum", limit),
                Widget(f"{key}: bytes received", self._of_streams("GetRecords.Bytes", streams), "Sum"),
                Widget(f"{key}: reads throttled", self._of_streams(READS_THROTTLED, streams), "Sum"),
            ]

        def per_stream(name: str) -> list[list[Any]]:
            return [
                metric(name, self._streams[each].name, each, Names(self._environment).consumer_name(each, key))
                for each in streams
            ]

        return [
            Widget(f"{key}: milliseconds behind", per_stream(LAG), "Maximum", limit),
            Widget(f"{key}: bytes received", per_stream(BYTES), "Sum"),
            Widget(f"{key}: subscriptions refused", per_stream(RATE_EXCEEDED), "Sum"),
        ]

    def _writers(self) -> list[Widget]:
        ours = [key for key in self._streams if Names(self._environment).is_ours(key)]
        return [
            Widget("bytes written", self._of_streams("IncomingBytes", ours), "Sum"),
            Widget("writes throttled", self._of_streams(WRITES_THROTTLED, ours), "Sum"),
        ]

    def _of_streams(self, name: str, keys: list[str]) -> list[list[Any]]:
        return [metric(name, self._streams[key].name, key) for key in keys]
