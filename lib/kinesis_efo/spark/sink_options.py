"""The options of the sink: the table, from which the documentation is generated, and the settings that it fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import AwsSettings
from kinesis_efo.options import readers as read
from kinesis_efo.options.settings import AWS_OPTIONS, METRICS_OPTIONS
from kinesis_efo.options.table import Option, OptionTable
from kinesis_efo.producer import ProducerSettings
from kinesis_efo.producer.settings import BOUNDS
from kinesis_efo.units import parse_size


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The sink's options, parsed and checked.

    >>> SinkOptions.parse({"stream": "orders", "linger": "soon"})
    Traceback (most recent call last):
        ...
    kinesis_efo.errors.OptionsError: kinesis-efo sink option 'linger' must be a duration such as 100ms, up to 60s; got 'soon'
    """

    manifest: str | None = None
    stream: str | None = None
    producer: ProducerSettings = field(default_factory=ProducerSettings)
    aws: AwsSettings = field(default_factory=AwsSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options that Spark passes. Names are case-insensitive."""
        return _TABLE.parse(options)


def _bounded(setting: str, parse: Callable[[str], float]) -> Callable[[str], float]:
    """A reader that enforces the bounds of a producer setting."""
    least, most, _ = BOUNDS[setting]
    return read.bounded(parse, least, most)


def _patience(text: str) -> float:
    # A small number alone was probably meant as seconds: as milliseconds, the first throttle would end the task.
    return read.seconds(text, guess=999)


def _milliseconds(text: str) -> float:
    return read.integer(text) / 1000


SINK_OPTIONS: Final = (
    Option("manifest", read.text, "a path, ssm:///name or s3://bucket/key", "-",
           "names the streams; without it, `stream` is a stream's own name or ARN", "manifest"),
    Option("stream", read.text, "the name of a stream", "the manifest's, if it has one only",
           "target of rows without a column `stream`, or with null in it", "stream"),
    Option("maxOutstandingRecords", _bounded("max_outstanding_records", read.integer),
           "a whole number of records, at least 1", "`20000`",
           "records of a task that may wait for acknowledgement; then the task waits", "producer.max_outstanding_records"),
    Option("maxOutstandingBytes", _bounded("max_outstanding_bytes", parse_size), "a size such as 64m, at least 1k", "`64m`",
           "the same in bytes; at least twice the largest record", "producer.max_outstanding_bytes"),
    Option("linger", _bounded("linger", read.seconds), "a duration such as 100ms, up to 60s", "`100ms`",
           "how long a record waits for others to fill its request", "producer.linger"),
    Option("maxInFlight", _bounded("max_in_flight", read.integer), "a whole number of requests, 1 to 256", "`8`",
           "requests of a task that may be in flight", "producer.max_in_flight"),
    Option("ordered", read.flag, "true or false", "`false`",
           "keep the order of rows with the same partition key within a task", "producer.ordered"),
    Option("aggregate", read.flag, "true or false", "`false`",
           "pack rows into KPL aggregates, which readers must unpack", "producer.aggregate"),
    Option("aggregateBytes", _bounded("aggregate_bytes", parse_size), "a size from 1k to 1m", "`50k`",
           "size of the largest aggregate", "producer.aggregate_bytes"),
    Option("failOnError", read.flag, "true or false", "`true`",
           "fail on a record that can never be written; else log and skip it", "producer.fail_on_error"),
    Option("retryTimeout", _bounded("retry_timeout", _patience), "a duration such as 5m, 100ms to 1d", "`5m`",
           "how long a failing shard may make no progress before the task fails", "producer.retry_timeout"),
    Option("stallWarning", _bounded("stall_warning", _patience), "a duration such as 30s, 100ms to 1d", "`30s`",
           "how long nothing may be acknowledged before a warning", "producer.stall_warning"),
    Option("backoff.baseMs", _bounded("backoff_base", _milliseconds), "milliseconds, 1 to 60000", "`100`",
           "first backoff", "producer.backoff_base", at_most="backoff.maxMs"),
    Option("backoff.maxMs", _bounded("backoff_max", _milliseconds), "milliseconds, 1 to 600000", "`2000`",
           "longest backoff", "producer.backoff_max"),
    *AWS_OPTIONS,
    *METRICS_OPTIONS,
)  # fmt: skip
_TABLE: Final = OptionTable(
    "kinesis-efo sink",
    SinkOptions,
    SINK_OPTIONS,
    # Spark passes these options of its own to sinks, too.
    ignored=("checkpointlocation", "queryname"),
    elsewhere={
        "kinesis.streamName": "spark-sql-kinesis-connector's; here it is 'stream'",
        "topic": "Kafka's; here it is 'stream'",
    },
)
