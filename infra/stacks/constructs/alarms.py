"""Alarms on consumers, on GetRecords if an application may poll, and on writes, lease tables and failed job runs.

Source of metrics and dimensions: Amazon Kinesis Data Streams developer guide, "Monitor with CloudWatch"; EMR Serverless
user guide, "Monitoring EMR Serverless applications and jobs"; EventBridge Scheduler user guide, "Monitoring with CloudWatch".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from infra.settings.model import Environment, OwnStream
from infra.settings.names import JOBS, SCHEDULES, Names, application_name, entry_place
from infra.stacks.cdk import (
    CloudwatchMetricAlarm,
    CloudwatchMetricAlarmMetricQuery,
    CloudwatchMetricAlarmMetricQueryMetric,
    Construct,
)
from infra.stacks.constructs.stream import FanOutStream
from kinesis_efo_infra.alarms import AT_RISK, ConsumerAlarms, Metric, Rule, declare, described
from kinesis_efo_infra.base import put
from kinesis_efo_infra.places import Place
from kinesis_efo_infra.table import LeaseTable

WRITES_THROTTLED = "WriteProvisionedThroughputExceeded"
ITERATOR_AGE = "GetRecords.IteratorAgeMilliseconds"
READS_THROTTLED = "ReadProvisionedThroughputExceeded"
_NEARLY_ALL = 0.9
_SHORTEST_RETENTION = 24
"""Retention in hours that is assumed for an adopted stream, whose settings do not contain it."""


class Alarms(Construct):
    """The alarms of an environment, which notify its SNS topic. Without a topic, no alarms are declared.

    Args:
        scope: The parent construct.
        environment: The environment.
    """

    def __init__(self, scope: Construct, environment: Environment) -> None:
        super().__init__(scope, "alarms")
        self._environment = environment
        self._topics = [environment.alarms.sns_topic] if environment.alarms.sns_topic else None
        self._lag_arns: list[str] = []

    @property
    def lag_arns(self) -> Sequence[str]:
        """ARNs of the lag alarms."""
        return tuple(self._lag_arns)

    def watch_stream(self, key: str, stream: FanOutStream) -> None:
        """Declare alarms on a stream's consumers, and on its writes if it is declared here.

        A stream in another account is skipped, because its metrics are in that account.
        """
        settings = self._environment.streams[key]
        if not self._topics or not Names(self._environment).is_ours(key):
            return
        if isinstance(settings, OwnStream):
            self._writes_throttled(entry_place(key, settings), key, stream)
            self._writes_failing(entry_place(key, settings), key, stream)
        for application in stream.consumers:
            self._consumer(key, stream, application)
        readers = {name: each for name, each in self._environment.applications.items() if key in each.streams}
        polling = [name for name, each in readers.items() if each.polls]
        for application in polling:
            self._polled(key, stream, application)
        if polling:
            self._reads(key, stream)

    def watch_jobs(self, application_id: str) -> None:
        """Declare alarms on failed runs, and on almost exhausted capacity, of the environment's EMR Serverless application."""
        if not self._topics:
            return
        settings = self._environment.emr and self._environment.emr.serverless
        assert settings
        used = CloudwatchMetricAlarmMetricQuery(
            id="used",
            expression=f"SELECT SUM(CPUAllocated) FROM \"AWS/EMRServerless\" WHERE ApplicationId = '{application_id}'",
            period=60,
            label="vCPUs",
            return_data=True,
        )
        self._above(
            "capacity",
            "jobs",
            f"Jobs have almost all of the {settings.maximum_vcpu} vCPUs that they may have; others wait.",
            [used],
            JOBS.join("capacity"),
            threshold=settings.maximum_vcpu * _NEARLY_ALL,
            periods=15,
            datapoints=8,  # not all 15: the metric is zero in some minutes even while workers run
        )
        # Use a query: an alarm on a single metric must name all dimensions, which differ between EMR releases.
        query = f"SELECT SUM(FailedJobs) FROM \"AWS/EMRServerless\" WHERE ApplicationId = '{application_id}'"
        failed = CloudwatchMetricAlarmMetricQuery(
            id="failed", expression=query, period=300, label="failed", return_data=True
        )
        place = JOBS.join("failures")
        self._above("failed-runs", "jobs", "A run of a job has failed, and nothing reads for it.", [failed], place)

    def watch_schedules(self, group: str) -> None:
        """Declare an alarm on scheduled runs that could not be started, which are not reported in any other way."""
        if not self._topics:
            return
        metrics = {"errors": "TargetErrorCount", "dropped": "InvocationDroppedCount"}
        total = _sum("AWS/Scheduler", metrics, {"ScheduleGroup": group}, 300, "not started")
        text = "A run of a job with a schedule could not be started."
        self._above("not-started", "jobs", text, total, SCHEDULES.join("failures"))

    def watch_table(self, application: str, table: LeaseTable) -> None:
        """Declare alarms on errors and throttling of an application's lease table: leases that cannot be renewed expire."""
        if not self._topics:
            return
        name = application_name(application, self._environment.applications[application])
        self._above(
            "leases-failing",
            name,
            f"DynamoDB fails requests to the lease table of {name}: leases may expire.",
            _errors(table.name),
            entry_place(application, self._environment.applications[application]).join("leases_failing"),
            construct=f"leases-failing-{application}",
            periods=3,
            datapoints=2,
        )
        metrics = {"reads": "ReadThrottleEvents", "writes": "WriteThrottleEvents"}
        total = _sum("AWS/DynamoDB", metrics, {"TableName": table.name}, 60, "throttled")
        self._above(
            "leases-throttled",
            name,
            f"The lease table of {name} is throttled: leases may expire.",
            total,
            entry_place(application, self._environment.applications[application]).join("leases"),
            construct=f"leases-{application}",
            periods=3,
            datapoints=2,
        )

    def _above(
        self,
        what: str,
        subject: str,
        text: str,
        queries: list[CloudwatchMetricAlarmMetricQuery],
        place: Place,
        *,
        threshold: float = 0,
        construct: str = "",
        periods: int = 1,
        datapoints: int = 1,
    ) -> None:
        alarm = CloudwatchMetricAlarm(
            self,
            construct or what,
            alarm_name=self._name(subject, what),
            alarm_description=described(text, what),
            comparison_operator="GreaterThanThreshold",
            threshold=threshold,
            evaluation_periods=periods,
            datapoints_to_alarm=datapoints,
            metric_query=queries,
            treat_missing_data="notBreaching",
            actions_enabled=True,
            alarm_actions=self._topics,
            ok_actions=self._topics,
        )
        put(alarm, place)

    def _consumer(self, key: str, stream: FanOutStream, application: str) -> None:
        settings = self._environment.applications[application]
        place = Names(self._environment).consumer_place(key, application)
        consumer = Names(self._environment).consumer_name(key, application)
        reader = application_name(application, settings)
        name = Names(self._environment).stream_name(key)
        alarms = ConsumerAlarms(
            self,
            f"consumer-{place.now}",
            name=self._name(reader, name),
            application=reader,
            stream=name,
            stream_name=stream.name,
            consumer_name=consumer,
            notify=self._topics or (),
            lag_threshold_seconds=settings.lag_threshold_seconds,
            # Consumer metrics are missing while an application polls.
            continuous=settings.continuous and not settings.polls,
            retention_hours=self._retention_hours(key),
            place=place,
        )
        self._lag_arns.append(alarms.lag_arn)

    def _polled(self, key: str, stream: FanOutStream, application: str) -> None:
        """Declare a lag alarm for an application that may poll. Its metric covers everything that polls the stream."""
        settings = self._environment.applications[application]
        reader = application_name(application, settings)
        name = Names(self._environment).stream_name(key)
        age = self._alarm(
            Names(self._environment).consumer_place(key, application).join("age"),
            name=self._name(reader, f"{name}/iterator-age"),
            description=f"Something that polls {name}, as {reader} may, is more than {settings.lag_threshold_seconds} s "
            "behind.",
            rule=Rule(
                Metric(ITERATOR_AGE, {"StreamName": stream.name}, "Maximum", 60),
                threshold=settings.lag_threshold_seconds * 1000,
                periods=5,
                datapoints=5,
            ),
        )
        self._lag_arns.append(age.arn)

    def _reads(self, key: str, stream: FanOutStream) -> None:
        """Declare alarms that all polling applications of a stream share: throttled reads, and lag that nears the retention period."""
        name = Names(self._environment).stream_name(key)
        place, dimensions = entry_place(key, self._environment.streams[key]), {"StreamName": stream.name}
        self._alarm(
            place.join("reads"),
            name=self._name(name, "reads-throttled"),
            description=f"GetRecords on {name} is throttled all the time: too many applications poll it.",
            rule=Rule(Metric(READS_THROTTLED, dimensions, "Sum", 60), threshold=0, periods=5, datapoints=5),
        )
        self._retention(
            place, name, f"Something that polls {name}", key, Metric(ITERATOR_AGE, dimensions, "Maximum", 60)
        )

    def _retention(self, place: Place, subject: str, who: str, key: str, metric: Metric) -> None:
        hours = self._retention_hours(key)
        self._alarm(
            place.join("retention"),
            name=self._name(subject, "retention"),
            description=f"{who} is behind by half of the {hours} hours after which records are gone.",
            rule=Rule(metric, threshold=hours * AT_RISK * 3_600_000, periods=5, datapoints=5),
        )

    def _retention_hours(self, key: str) -> int:
        stream = self._environment.streams[key]
        return stream.retention_hours if isinstance(stream, OwnStream) else _SHORTEST_RETENTION

    def _writes_throttled(self, place: Place, key: str, stream: FanOutStream) -> None:
        name = Names(self._environment).stream_name(key)
        self._alarm(
            place.join("writes"),
            name=self._name(name, "writes-throttled"),
            description=f"Producers of {name} are throttled: too few shards, or one hot partition key.",
            rule=Rule(
                Metric(WRITES_THROTTLED, {"StreamName": stream.name}, "Sum", 60), threshold=0, periods=5, datapoints=3
            ),
        )

    def _writes_failing(self, place: Place, key: str, stream: FanOutStream) -> None:
        """Declare an alarm on failed writes. They are the first sign of a disabled key, for which KMS has no metric."""
        name = Names(self._environment).stream_name(key)
        metrics = {"one": "PutRecord.Success", "many": "PutRecords.Success"}
        queries = _metrics("AWS/Kinesis", metrics, {"StreamName": stream.name}, 300, "Average")
        failed = CloudwatchMetricAlarmMetricQuery(
            id="failed",
            expression="IF(FILL(one, 1) < 0.5 OR FILL(many, 1) < 0.5, 1, 0)",
            label="most writes failed",
            return_data=True,
        )
        self._above(
            "writes-failing",
            name,
            f"Most writes into {name} fail: its key may be disabled, or producers may not use it.",
            [*queries, failed],
            place.join("writes_failing"),
            construct=f"writes-failing-{key}",
            periods=3,
            datapoints=2,
        )

    def _alarm(self, place: Place, *, name: str, description: str, rule: Rule) -> CloudwatchMetricAlarm:
        return declare(
            self,
            f"alarm-{place.now}",
            rule,
            name=name,
            description=description,
            notify=self._topics or (),
            place=place,
        )

    def _name(self, subject: str, what: str) -> str:
        # Use names instead of keys, so that an entry whose key changes keeps its alarms. Names cannot contain the separator.
        return f"{Names(self._environment).path}/{subject}/{what}"


def _metrics(
    namespace: str, metrics: Mapping[str, str], dimensions: Mapping[str, str], period: int, stat: str
) -> list[CloudwatchMetricAlarmMetricQuery]:
    """Return queries of metrics for use in an expression. `metrics` maps ids to names; `period` is in seconds."""
    return [
        CloudwatchMetricAlarmMetricQuery(
            id=query,
            metric=CloudwatchMetricAlarmMetricQueryMetric(
                namespace=namespace, metric_name=metric, period=period, stat=stat, dimensions=dict(dimensions)
            ),
        )
        for query, metric in metrics.items()
    ]


def _errors(table: str) -> list[CloudwatchMetricAlarmMetricQuery]:
    """Return queries for the sum of DynamoDB's system errors over all operations that jobs call, each of which has its own metric."""
    metrics = [
        each
        for operation in ("DeleteItem", "PutItem", "Scan", "UpdateItem")
        for each in _metrics(
            "AWS/DynamoDB",
            {operation.lower(): "SystemErrors"},
            {"TableName": table, "Operation": operation},
            60,
            "Sum",
        )
    ]
    return [*metrics, _total([each.id for each in metrics], "failed")]


def _total(queries: Iterable[str], label: str) -> CloudwatchMetricAlarmMetricQuery:
    expression = " + ".join(f"FILL({query}, 0)" for query in queries)
    return CloudwatchMetricAlarmMetricQuery(id="total", expression=expression, label=label, return_data=True)


def _sum(
    namespace: str, metrics: Mapping[str, str], dimensions: Mapping[str, str], period: int, label: str
) -> list[CloudwatchMetricAlarmMetricQuery]:
    """Return queries for the sum of metrics. `metrics` maps ids in the expression to names; `period` is in seconds."""
    return [*_metrics(namespace, metrics, dimensions, period, "Sum"), _total(metrics, label)]
