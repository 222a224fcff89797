"""Alarms on a consumer: it falls behind, it nears the end of the retention, or its subscriptions are refused.

Source of metrics and dimensions: Amazon Kinesis Data Streams developer guide, "Monitor with CloudWatch".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kinesis_efo_infra import checks
from kinesis_efo_infra.base import Part, put
from kinesis_efo_infra.cdk import CloudwatchMetricAlarm, Construct
from kinesis_efo_infra.places import Place

LAG: Final = "SubscribeToShardEvent.MillisBehindLatest"
BYTES: Final = "SubscribeToShardEvent.Bytes"
RATE_EXCEEDED: Final = "SubscribeToShard.RateExceeded"
AT_RISK: Final = 0.5
"""The fraction of a stream's retention by which an application may be behind before it is in danger of losing records."""
TAKEOVERS: Final = 5  # in five minutes; the library gives up after as many


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric in CloudWatch, as returned by `metric` of streams and consumers.

    Attributes:
        metric_name: Its name.
        dimensions: Stream, and consumer if there is one.
        statistic: What is computed of each period, such as `Maximum` or `p99`.
        period: Length of a period in seconds.
        namespace: Its namespace.
    """

    metric_name: str
    dimensions: Mapping[str, str]
    statistic: str = "Average"
    period: int = 300
    namespace: str = "AWS/Kinesis"

    def to_alarm_config(self) -> dict[str, Any]:
        """Return the metric as keyword arguments of `CloudwatchMetricAlarm`."""
        arguments = asdict(self)
        if self.statistic.startswith("p"):
            arguments["extended_statistic"] = arguments.pop("statistic")
        return arguments


@dataclass(frozen=True, slots=True)
class Rule:
    """When an alarm on a metric goes off.

    Attributes:
        metric: The metric.
        threshold: The alarm is for values above this.
        periods: How many periods are looked at.
        datapoints: In how many of them the value must be above the threshold.
        missing: How a period without data is treated.
    """

    metric: Metric
    threshold: float
    periods: int
    datapoints: int
    missing: str = "notBreaching"


def described(description: str, what: str) -> str:
    """Return the description of an alarm: what is wrong, and the page that says what to do."""
    return f"{description} Runbook: docs/runbook.md, alarm {what}."


def declare(
    scope: Construct, id: str, rule: Rule, *, name: str, description: str, notify: Sequence[str], place: Place | None
) -> CloudwatchMetricAlarm:
    """Declare an alarm on a metric.

    Args:
        scope: The parent construct.
        id: Its id within the parent.
        rule: When it goes off.
        name: Its name; the part after the last `/` is the name of its section in the runbook.
        description: What is wrong then.
        notify: ARNs of topics that it notifies.
        place: Its Terraform name.
    """
    topics = list(notify) or None
    alarm = CloudwatchMetricAlarm(
        scope,
        id,
        alarm_name=name,
        alarm_description=described(description, name.rpartition("/")[2]),
        **rule.metric.to_alarm_config(),
        evaluation_periods=rule.periods,
        datapoints_to_alarm=rule.datapoints,
        comparison_operator="GreaterThanThreshold",
        threshold=rule.threshold,
        treat_missing_data=rule.missing,
        actions_enabled=True,
        alarm_actions=topics,
        ok_actions=topics,
    )
    return put(alarm, place)


class ConsumerAlarms(Part):
    """The three alarms on a consumer. `StreamConsumer.alarms` declares them.

    Args:
        scope: The parent construct.
        id: Its id within the parent.
        name: What their names begin with, before `/lag`, `/retention` and `/subscribe-refused`.
        application: Who reads, for descriptions.
        stream: The stream, for descriptions.
        stream_name: Name of the stream in Kinesis; may be a reference.
        consumer_name: Name of the consumer.
        notify: ARNs of SNS topics that they notify; without one, they only show in CloudWatch.
        lag_threshold_seconds: The first goes off when it is further behind than this for five minutes.
        continuous: Whether it always has a subscription: silence is an alarm then.
        retention_hours: How long the stream retains records.
        tags: Their tags, in addition to the provider's.
        place: Their Terraform name, joined with what each of them is about.

    Raises:
        ArgumentError: The threshold or the retention is out of range.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        name: str,
        application: str,
        stream: str,
        stream_name: str,
        consumer_name: str,
        notify: Sequence[str] = (),
        lag_threshold_seconds: int = 300,
        continuous: bool = True,
        retention_hours: int = 24,
        tags: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        owner = f"ConsumerAlarms {id!r}"
        remedy = "give seconds; the default is 300"
        checks.number(owner, "lag_threshold_seconds", lag_threshold_seconds, 1, 31_536_000, remedy)
        checks.number(owner, "retention_hours", retention_hours, 24, 8760, "a day is 24, a year is 8760")
        super().__init__(scope, id, tags)
        dimensions = {"StreamName": stream_name, "ConsumerName": consumer_name}
        lag = Metric(LAG, dimensions, "Maximum", 60)
        # An open subscription receives events even if the stream is idle, so no data means that there is no reader.
        silence = "breaching" if continuous else "notBreaching"
        rules = {
            "lag": (
                "lag",
                f"{application} is more than {lag_threshold_seconds} s behind on {stream}"
                + (", or reads nothing at all." if continuous else "."),
                Rule(lag, threshold=lag_threshold_seconds * 1000, periods=5, datapoints=5, missing=silence),
            ),
            "rate": (
                "subscribe-refused",
                f"Subscriptions of {application} on {stream} keep being refused: is something else using its consumer?",
                Rule(Metric(RATE_EXCEEDED, dimensions, "Sum"), threshold=TAKEOVERS, periods=1, datapoints=1),
            ),
            "retention": (
                "retention",
                f"{application} on {stream} is behind by half of the {retention_hours} hours after which records are gone.",
                Rule(lag, threshold=retention_hours * AT_RISK * 3_600_000, periods=5, datapoints=5),
            ),
        }
        self._arns = {
            part: declare(
                self, part, rule, name=f"{name}/{what}", description=description, notify=notify,
                place=place.join(part) if place else None,
            ).arn
            for part, (what, description, rule) in rules.items()
        }  # fmt: skip

    @property
    def lag_arn(self) -> str:
        """ARN of the alarm on lag, whose state dashboards show."""
        return self._arns["lag"]

    @property
    def arns(self) -> Sequence[str]:
        """ARN of each of them."""
        return tuple(self._arns.values())
