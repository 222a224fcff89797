"""Alerts on the metrics, as a rule file of Prometheus, each with the section of the page that helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from kinesis_efo.metrics import catalog as metrics
from scripts.prometheus import combined, grew, prometheus_name, selected

DOCS: Final = "docs"
APPLICATION: Final = ("environment", "application")
STREAM: Final = (*APPLICATION, "stream")

HEAD: Final = """\
# Alerts on the metrics of kinesis-efo, for Prometheus and whatever takes its rule files: Mimir, Thanos, Amazon Managed Service for
# Prometheus, Grafana. `make docs` writes this file from scripts/alerts.py. docs/metrics.md says how to use it.
"""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        name: Its name, behind `KinesisEfo`.
        expression: What is so when it goes off.
        lasting: For how long it must be so.
        severity: `critical` if somebody has to look now, else `warning`.
        summary: What is wrong. `{{ $labels.x }}` and `{{ $value }}` are Prometheus'.
        section: The page and its section: what to do.
    """

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    section: str


def _now(metric: metrics.Metric, by: tuple[str, ...]) -> str:
    return combined(metric, by, selected(metric), "5m")


_BUFFERS: Final = prometheus_name(metrics.BUFFER_LIMIT)
_LONG: Final = "{{ $value | humanizeDuration }}"
_WHO: Final = "{{ $labels.application }} ({{ $labels.environment }})"
_OF: Final = "{{ $labels.stream }} of " + _WHO

ALERTS: Final = (
    Alert("Lag", f"{_now(metrics.LAG, STREAM)} / 1000 > 300", "5m", "critical",
          f"{_OF} is {_LONG} behind the tip of its worst shard.", "alarms.md#alarm-lag"),
    Alert("Gone", f"group by ({', '.join(APPLICATION)}) ({_BUFFERS} offset 1h) "
                  f"unless group by ({', '.join(APPLICATION)}) ({_BUFFERS})", "10m", "warning",
          f"{_WHO} has reported nothing for ten minutes, and did an hour ago. Does its job run?", "alarms.md#alarm-lag"),
    Alert("Silent", f"{_now(metrics.SILENCE, STREAM)} > 35", "5m", "critical",
          f"A shard of {_OF} has not sent an event for {_LONG}: its subscription fails, or is not read.",
          "runbook.md#fetching-or-spark"),
    Alert("SparkBehind", f"{_now(metrics.WAITING, STREAM)} > 900", "5m", "warning",
          f"Fetched records of {_OF} have waited for Spark for {_LONG}.", "runbook.md#fetching-or-spark"),
    Alert("SubscribeRefused", grew(metrics.FAILED, STREAM, "5m", 5, error="ResourceInUseException"), "0m", "critical",
          f"Something else reads {_OF} with the same consumer.", "alarms.md#alarm-subscribe-refused"),
    # Among many shards, some subscription fails at any time.
    Alert("SubscriptionsFail", f"{_now(metrics.FAILED, STREAM)} > {_now(metrics.OPENED, STREAM)}", "15m", "warning",
          f"More subscriptions to {_OF} fail than succeed.", "runbook.md#fetching-or-spark"),
    Alert("LeaseMissing", f"{_now(metrics.LEASES_WANTED, APPLICATION)} > {_now(metrics.LEASES_HELD, APPLICATION)}",
          "5m", "critical", f"{_WHO} does not hold the lease on each of its streams, and does not read those.", "errors.md#leaseerror"),
    Alert("LeaseTaken", grew(metrics.LEASES_LOST, APPLICATION, "15m", 0, reason="taken"), "0m", "warning",
          f"Another run took a lease of {_WHO}.", "errors.md#leaselosterror"),
    Alert("LeaseNotRenewed", grew(metrics.LEASES_LOST, APPLICATION, "15m", 0, reason="not renewed"), "0m", "warning",
          f"A lease of {_WHO} was not renewed in time.", "alarms.md#alarm-leases-throttled"),
    Alert("RecordsLost", grew(metrics.LOSSES, STREAM, "15m", 0), "0m", "critical",
          f"Retention took records of {_OF} before they were read, and options allow that.", "errors.md#datalosserror"),
    Alert("AggregatesLeftOut", f"{_now(metrics.LEFT_OUT, STREAM)} > 0", "30m", "warning",
          f"KPL aggregates of {_OF} are left out, longer than a reshard explains.", "runbook.md#kpl-aggregates-are-left-out"),
    Alert("WritesThrottled",
          combined(metrics.RETRIES, STREAM,
                   selected(metrics.RETRIES, error="ProvisionedThroughputExceededException"), "5m") + " > 0",
          "15m", "warning", f"Writes of {_WHO} to {{{{ $labels.stream }}}} are throttled.", "alarms.md#alarm-writes-throttled"),
    Alert("RecordsRefused", grew(metrics.REFUSED, STREAM, "15m", 0), "0m", "warning",
          f"{_WHO} skipped records that can never be written to {{{{ $labels.stream }}}}.", "errors.md#recordrefusederror"),
)  # fmt: skip
"""All alerts, in the order of the file."""


def rules() -> str:
    """The rule file."""
    return HEAD + yaml.safe_dump(
        {"groups": [{"name": "kinesis-efo", "rules": [_rule(alert) for alert in ALERTS]}]}, sort_keys=False, width=118
    )


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": f"KinesisEfo{alert.name}",
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook_url": f"{DOCS}/{alert.section}"},
    }
