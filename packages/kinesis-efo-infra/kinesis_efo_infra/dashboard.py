"""A CloudWatch dashboard that shows whether an application keeps up with its streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kinesis_efo_infra.base import Part, put
from kinesis_efo_infra.cdk import CloudwatchDashboard, Construct, Fn
from kinesis_efo_infra.places import Place

_WIDTH: Final = 24
_HEIGHT: Final = 6
_ALARMS_HEIGHT: Final = 3


@dataclass(frozen=True, slots=True)
class Widget:
    """A graph of metrics.

    Attributes:
        title: Title of the graph.
        metrics: Metrics in the format of a CloudWatch dashboard; see `metric`.
        statistic: Statistic to compute for each period, such as `Sum`.
        limit: A value to draw a line at, such as the threshold of an alarm.
    """

    title: str
    metrics: Sequence[Sequence[Any]]
    statistic: str
    limit: float | None = None


def metric(name: str, stream_name: str, label: str, consumer_name: str | None = None) -> list[Any]:
    """Return a Kinesis metric of a stream, or of a consumer of the stream, in the format of a CloudWatch dashboard."""
    consumer = [] if consumer_name is None else ["ConsumerName", consumer_name]
    return ["AWS/Kinesis", name, "StreamName", stream_name, *consumer, {"label": label}]


class Dashboard(Part):
    """A CloudWatch dashboard: states of alarms on top, then rows of graphs. `StreamingApplication.dashboard` declares one.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        name: Name of the dashboard.
        region: Region of the metrics.
        rows: Rows of graphs; a row is left out if its first graph has no metrics.
        alarms: ARNs of the alarms whose states are shown.
        place: Terraform name of the resources; default: derived by CDKTF.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        region: str,
        rows: Sequence[Sequence[Widget]],
        alarms: Sequence[str] = (),
        place: Place | None = None,
    ) -> None:
        super().__init__(scope, id)
        widgets: list[dict[str, Any]] = []
        if alarms:
            state = {"title": "Is each application keeping up?", "alarms": list(alarms)}
            shape = {"x": 0, "y": 0, "width": _WIDTH, "height": _ALARMS_HEIGHT}
            widgets.append({"type": "alarm", **shape, "properties": state})
        top = _ALARMS_HEIGHT
        for row in rows:
            if not row[0].metrics:
                continue
            width = _WIDTH // len(row)
            for number, each in enumerate(row):
                shape = {"x": number * width, "y": top, "width": width, "height": _HEIGHT}
                widgets.append({"type": "metric", **shape, "properties": _properties(each, region)})
            top += _HEIGHT
        dashboard = CloudwatchDashboard(
            self, "dashboard", dashboard_name=name, dashboard_body=Fn.jsonencode({"widgets": widgets})
        )
        self.node.default_child = put(dashboard, place)
        self._name = name

    @property
    def name(self) -> str:
        """Name of the dashboard."""
        return self._name


def _properties(widget: Widget, region: str) -> dict[str, Any]:
    drawn = {} if widget.limit is None else {"horizontal": [{"label": "alarm", "value": widget.limit}]}
    return {
        "title": widget.title,
        "region": region,
        "view": "timeSeries",
        "stat": widget.statistic,
        "period": 60,
        "metrics": [list(each) for each in widget.metrics],
        **({"annotations": drawn} if drawn else {}),
    }
