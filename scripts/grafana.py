"""A dashboard of Grafana over the metrics in Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.catalog import Kind, Metric
from scripts.prometheus import combined, prometheus_name, selected, series

WIDTH, HEIGHT, COLUMNS = 8, 8, 3
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN: Final = {name: f"~${name}" for name in ("environment", "application", "stream")}
"""The labels that the dashboard's variables choose."""

UNITS: Final = {"ms": "ms", "s": "s", "By": "bytes"}
"""Grafana's names of the units."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph.

    Attributes:
        title: Its title.
        metrics: What it shows; all of one unit.
        by: The labels of its lines, beside the application.
        most: How many lines it shows; None for all.
    """

    title: str
    metrics: tuple[Metric, ...]
    by: tuple[str, ...] = ("stream",)
    most: int | None = None


ROWS: Final = {
    "Does it keep up?": (
        Panel("Behind the tip, worst shard", (metrics.LAG,)),
        Panel("Behind the tip, the ten worst shards", (metrics.LAG,), ("stream", "shard"), 10),
        Panel("Since the last event, worst shard", (metrics.SILENCE,)),
        Panel("Records that wait for Spark", (metrics.WAITING,)),
        Panel("Buffer", (metrics.BUFFERED, metrics.BUFFER_LIMIT), ()),
        Panel("Shards not fetched, for want of room", (metrics.BACKPRESSURE,)),
    ),
    "What is read": (
        Panel("Records", (metrics.RECORDS,)),
        Panel("Bytes", (metrics.BYTES,)),
        Panel("Events", (metrics.EVENTS,)),
    ),
    "Subscriptions": (
        Panel("Open", (metrics.OPEN,)),
        Panel("Opened, renewed, paused", (metrics.OPENED, metrics.RENEWED, metrics.PAUSED)),
        Panel("Failures", (metrics.FAILED,), ("stream", "error")),
        Panel("KPL aggregates left out", (metrics.LEFT_OUT,)),
        Panel("Losses that options allow", (metrics.LOSSES,)),
    ),
    "Queries of one program": (
        Panel("Queries, and those that read apart", (metrics.QUERIES, metrics.QUERIES_APART), ()),
        Panel("Bytes read apart", (metrics.APART_BYTES,)),
        Panel("GetRecords calls", (metrics.APART_CALLS,)),
    ),
    "Leases": (
        Panel("Wanted and held", (metrics.LEASES_WANTED, metrics.LEASES_HELD), ()),
        Panel("Taken", (metrics.LEASES_TAKEN,), ()),
        Panel("Lost", (metrics.LEASES_LOST,), ("reason",)),
    ),
    "Writing": (
        Panel("Records acknowledged", (metrics.WRITTEN,)),
        Panel("Bytes acknowledged", (metrics.WRITTEN_BYTES,)),
        Panel("PutRecords calls", (metrics.REQUESTS,)),
        Panel("Records sent again", (metrics.RETRIES,), ("stream", "error")),
        Panel("Records refused", (metrics.REFUSED,)),
        Panel("99 % acknowledged within", (metrics.LATENCY,)),
        Panel("Records outstanding", (metrics.OUTSTANDING,)),
        Panel("Bytes outstanding", (metrics.OUTSTANDING_BYTES,)),
        Panel("Puts that wait for capacity", (metrics.PUT_WAITS,)),
    ),
}
"""The graphs, by the title of their row."""


def dashboard() -> str:
    """The dashboard, as JSON to import."""
    document = {
        "uid": "kinesis-efo",
        "title": "kinesis-efo",
        "description": "Written by `make docs` from scripts/grafana.py. Metrics: docs/metrics.md. What to do: docs/runbook.md.",
        "tags": ["kinesis", "kinesis-efo"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [_datasource(), *(_variable(name) for name in CHOSEN)]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }
    return json.dumps(document, indent=2) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    """A variable with the values that a label has, within what the variables before it choose."""
    names = list(CHOSEN)
    before = {each: CHOSEN[each] for each in names[: names.index(name)]}
    # Some applications only read, and some only write.
    either = f"~{prometheus_name(metrics.RECORDS)}|{prometheus_name(metrics.WRITTEN)}"
    query = f"label_values({series('', __name__=either, **before)}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(top, 0, 24, 1)}
        for number, panel in enumerate(panels):
            down, right = divmod(number, COLUMNS)
            yield _graph(panel, _place(top + 1 + down * HEIGHT, right * WIDTH, WIDTH, HEIGHT))
        top += 1 + HEIGHT * -(-len(panels) // COLUMNS)


def _place(top: int, left: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": "\n\n".join(f"`{metric.name}`: {metric.meaning}" for metric in panel.metrics),
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _unit(panel.metrics[0]), "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": _expression(panel, metric),
                "legendFormat": _legend(panel, metric),
            }
            for number, metric in enumerate(panel.metrics)
        ],
    }


def _unit(metric: Metric) -> str:
    if metric.kind is Kind.COUNTER:
        # Seconds in a second are a number of shards or puts that wait.
        return "short" if metric.unit == "s" else {"By": "Bps"}.get(metric.unit, "cps")
    return UNITS.get(metric.unit, "short")


def _expression(panel: Panel, metric: Metric) -> str:
    labels = {name: value for name, value in CHOSEN.items() if name != "stream" or "stream" in metric.attributes}
    found = combined(metric, ("application", *panel.by), selected(metric, **labels), "$__rate_interval")
    return found if panel.most is None else f"topk({panel.most}, {found})"


def _legend(panel: Panel, metric: Metric) -> str:
    which = [metric.name.removeprefix("kinesis_efo.")] if len(panel.metrics) > 1 else []
    return " ".join(["{{application}}", *(f"{{{{{label}}}}}" for label in panel.by), *which])
