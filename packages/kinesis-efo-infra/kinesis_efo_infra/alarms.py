"""CloudWatch alarms on a consumer: high lag, lag that nears the retention period, and refused subscriptions.

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
"""A lag above this fraction of the stream's retention period is treated as a risk of losing records."""
TAKEOVERS: Final = 5  # the alarm goes off above this many refused subscriptions in five minutes


@dataclass(frozen=True, slots=True)
class Metric:
    """A CloudWatch metric, as returned by `Stream.metric` and `StreamConsumer.metric`.

    Attributes:
        metric_name: Name of the metric.
        dimensions: Value of each dimension: `StreamName` and, for a consumer, `ConsumerName`.
        statistic: Statistic to compute for each period, such as `Maximum` or `p99`.
        period: Length of a period in seconds.
        namespace: Namespace of the metric.
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
    """The condition under which an alarm goes off.

    Attributes:
        metric: The metric.
        threshold: The value that the metric must exceed.
        periods: Number of most recent periods to evaluate.
        datapoints: Number of these periods in which the metric must exceed the threshold.
        missing: How CloudWatch treats a period without data (`treat_missing_data`).
    """

    metric: Metric
    threshold: float
    periods: int
    datapoints: int
    missing: str = "notBreaching"


def described(description: str, what: str) -> str:
    """Return the description followed by a reference to the runbook section named `what`."""
    return f"{description} Runbook: docs/runbook.md, alarm {what}."


def declare(
    scope: Construct, id: str, rule: Rule, *, name: str, description: str, notify: Sequence[str], place: Place | None
) -> CloudwatchMetricAlarm:
    """Declare an alarm on a metric.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        rule: When the alarm goes off.
        name: Name of the alarm; the part after the last `/` names its section in the runbook.
        description: What is wrong when the alarm goes off.
        notify: ARNs of SNS topics to notify when the alarm goes off and when it ends.
        place: Terraform name of the resources; default: derived by CDKTF.
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
    """Three alarms on a consumer: lag, retention and refused subscriptions. `StreamConsumer.alarms` declares them.

    Args:
        scope: The parent construct.
        id: Construct id, unique within `scope`.
        name: Prefix of the alarms' names, before `/lag`, `/retention` and `/subscribe-refused`.
        application: The application that uses the consumer, as named in descriptions.
        stream: The stream, as named in descriptions.
        stream_name: Name of the stream in Kinesis; may be a Terraform reference.
        consumer_name: Name of the consumer; may be a Terraform reference.
        notify: ARNs of SNS topics that the alarms notify; if empty, the alarms are visible only in CloudWatch.
        lag_threshold_seconds: The lag alarm goes off when the lag exceeds this for five minutes.
        continuous: Whether the consumer is read all the time; if so, the lag alarm also goes off when its metric has no data.
        retention_hours: How long the stream retains records.
        tags: Tags of the alarms, in addition to the provider's default tags.
        place: Terraform name, to which `_lag`, `_rate` and `_retention` are appended; default: CDKTF derives the names.

    Raises:
        ArgumentError: `lag_threshold_seconds` or `retention_hours` is out of range.
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
        # An open subscription receives events even if the stream is idle, so missing data means that no subscription is open.
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
        """ARN of the lag alarm, whose state is shown on dashboards."""
        return self._arns["lag"]

    @property
    def arns(self) -> Sequence[str]:
        """ARNs of the three alarms."""
        return tuple(self._arns.values())
