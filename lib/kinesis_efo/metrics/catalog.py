"""The catalog of all metrics: names, units, attributes and meanings. The table in docs/metrics.md is generated from it.

OpenTelemetry units follow UCUM, as required by OpenTelemetry's semantic conventions; CloudWatch units are those of MetricDatum.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """The kind of a metric, which determines how values of several sources with the same attributes are combined."""

    COUNTER = "counter"
    """A total since the start of the process; values are summed."""
    AMOUNT = "gauge"
    """A current amount, such as the bytes in a buffer; the values of several sources are summed."""
    WORST = "gauge, worst"
    """A current measurement, such as a lag, for which higher is worse; only the highest value is reported."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Each metric also has the attributes `application` and `environment`, if available."""

    name: str  # The OpenTelemetry name
    cloudwatch: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    meaning: str

    @property
    def cloudwatch_unit(self) -> str:
        """The CloudWatch unit: milliseconds, seconds, bytes, or else `Count`."""
        return {"ms": "Milliseconds", "s": "Seconds", "By": "Bytes"}.get(self.unit, "Count")


DIMENSIONS: Final = {
    name: name.capitalize() for name in ("application", "environment", "stream", "shard", "fetcher", "error", "reason")
}
"""The CloudWatch dimension of each metric attribute, by the attribute's OpenTelemetry name."""

_SHARD: Final = ("stream", "shard")

LAG: Final = Metric(
    "kinesis_efo.lag", "MillisBehindLatest", Kind.WORST, "ms", _SHARD,
    "age of the oldest unprocessed record; if there is none, how far reading is behind the tip, plus the time since the last event (if over 10 s)",
)  # fmt: skip
SILENCE: Final = Metric(
    "kinesis_efo.silence", "SecondsSinceEvent", Kind.WORST, "s", _SHARD,
    "time since the last event; idle shards receive an event every 5 s, so over 35 s is a problem",
)  # fmt: skip
WAITING: Final = Metric(
    "kinesis_efo.buffer.age", "SecondsUncommitted", Kind.WORST, "s", _SHARD,
    "how long the oldest fetched records have waited for Spark's commit",
)  # fmt: skip
RECORDS: Final = Metric(
    "kinesis_efo.records", "RecordsFetched", Kind.COUNTER, "{record}", _SHARD, "Kinesis records fetched"
)
BYTES: Final = Metric(
    "kinesis_efo.bytes", "BytesFetched", Kind.COUNTER, "By", _SHARD, "bytes of the events fetched, as received"
)
EVENTS: Final = Metric("kinesis_efo.events", "EventsFetched", Kind.COUNTER, "{event}", _SHARD, "events fetched")
BACKPRESSURE: Final = Metric(
    "kinesis_efo.backpressure", "SecondsBackpressured", Kind.COUNTER, "s", _SHARD,
    "time a shard was not read because the buffer was full",
)  # fmt: skip
OPEN: Final = Metric(
    "kinesis_efo.subscriptions.open", "SubscriptionsOpen", Kind.AMOUNT, "{subscription}", ("stream",),
    "open subscriptions; one per shard",
)  # fmt: skip
OPENED: Final = Metric(
    "kinesis_efo.subscriptions.opened", "SubscriptionsOpened", Kind.COUNTER, "{subscription}", ("stream",),
    "successful SubscribeToShard calls",
)  # fmt: skip
RENEWED: Final = Metric(
    "kinesis_efo.subscriptions.renewed", "SubscriptionsRenewed", Kind.COUNTER, "{subscription}", ("stream",),
    "subscriptions renewed after Kinesis ended them, every 5 minutes",
)  # fmt: skip
PAUSED: Final = Metric(
    "kinesis_efo.subscriptions.paused", "SubscriptionsPaused", Kind.COUNTER, "{subscription}", ("stream",),
    "subscriptions closed because the buffer was full for 20 s",
)  # fmt: skip
FAILED: Final = Metric(
    "kinesis_efo.subscriptions.failed", "SubscriptionsFailed", Kind.COUNTER, "{failure}", ("stream", "error"),
    "failed SubscribeToShard calls and broken subscriptions, by error code",
)  # fmt: skip
LOSSES: Final = Metric(
    "kinesis_efo.losses", "Losses", Kind.COUNTER, "{loss}", ("stream",),
    "accepted losses, at most one a minute per shard",
)  # fmt: skip
LEFT_OUT: Final = Metric(
    "kinesis_efo.aggregates.left_out", "AggregatesLeftOut", Kind.COUNTER, "{aggregate}", ("stream",),
    "KPL aggregates dropped by `deaggregate=strict`",
)  # fmt: skip
BUFFERED: Final = Metric(
    "kinesis_efo.buffer.used", "BufferBytes", Kind.AMOUNT, "By", (), "bytes of events that wait for Spark"
)
BUFFER_LIMIT: Final = Metric(
    "kinesis_efo.buffer.limit", "BufferLimitBytes", Kind.AMOUNT, "By", (), "the option `bufferBytes`"
)
QUERIES: Final = Metric("kinesis_efo.queries", "Queries", Kind.AMOUNT, "{query}", (), "queries that share the run")
QUERIES_APART: Final = Metric(
    "kinesis_efo.queries.apart", "QueriesApart", Kind.AMOUNT, "{query}", (),
    "queries that read apart",
)  # fmt: skip
APART_BYTES: Final = Metric(
    "kinesis_efo.apart.bytes", "BytesFetchedApart", Kind.COUNTER, "By", ("stream",),
    "bytes fetched apart, not part of `kinesis_efo.bytes`",
)  # fmt: skip
APART_CALLS: Final = Metric(
    "kinesis_efo.apart.calls", "GetRecordsCallsApart", Kind.COUNTER, "{call}", ("stream",),
    "successful GetRecords calls of queries that read apart",
)  # fmt: skip
LEASES_WANTED: Final = Metric(
    "kinesis_efo.leases.wanted", "LeasesWanted", Kind.AMOUNT, "{lease}", (), "streams that the run reads"
)
LEASES_HELD: Final = Metric(
    "kinesis_efo.leases.held", "LeasesHeld", Kind.AMOUNT, "{lease}", (), "streams whose lease the run holds"
)
LEASES_TAKEN: Final = Metric("kinesis_efo.leases.taken", "LeasesTaken", Kind.COUNTER, "{lease}", (), "leases taken")
LEASES_LOST: Final = Metric(
    "kinesis_efo.leases.lost", "LeasesLost", Kind.COUNTER, "{lease}", ("reason",),
    "leases lost: `taken` by another run, or `not renewed` in time",
)  # fmt: skip
WRITTEN: Final = Metric(
    "kinesis_efo.producer.records", "RecordsWritten", Kind.COUNTER, "{record}", ("stream",), "records acknowledged"
)
WRITTEN_BYTES: Final = Metric(
    "kinesis_efo.producer.bytes", "BytesWritten", Kind.COUNTER, "By", ("stream",), "bytes acknowledged, including keys"
)
REQUESTS: Final = Metric(
    "kinesis_efo.producer.requests", "PutRecordsCalls", Kind.COUNTER, "{call}", ("stream",), "PutRecords calls"
)
RETRIES: Final = Metric(
    "kinesis_efo.producer.retries", "RecordsRetried", Kind.COUNTER, "{record}", ("stream", "error"),
    "Kinesis records sent again, by error code",
)  # fmt: skip
REFUSED: Final = Metric(
    "kinesis_efo.producer.refused", "RecordsRefused", Kind.COUNTER, "{record}", ("stream",),
    "records skipped because they can never be written",
)  # fmt: skip
OUTSTANDING: Final = Metric(
    "kinesis_efo.producer.outstanding", "RecordsOutstanding", Kind.AMOUNT, "{record}", ("stream",),
    "records put and not acknowledged yet",
)  # fmt: skip
OUTSTANDING_BYTES: Final = Metric(
    "kinesis_efo.producer.outstanding.bytes", "BytesOutstanding", Kind.AMOUNT, "By", ("stream",), "bytes outstanding"
)
PUT_WAITS: Final = Metric(
    "kinesis_efo.producer.backpressure", "SecondsPutWaited", Kind.COUNTER, "s", ("stream",),
    "time that puts waited for capacity",
)  # fmt: skip
LATENCY: Final = Metric(
    "kinesis_efo.producer.latency.p99", "PutLatencyP99", Kind.WORST, "s", ("stream",),
    "99 % of all records were acknowledged within this time",
)  # fmt: skip

METRICS: Final = tuple(metric for metric in list(globals().values()) if isinstance(metric, Metric))
"""All metrics, in the order of the table in docs/metrics.md."""
