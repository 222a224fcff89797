"""The options of the source: the table, from which the documentation is generated, and the settings that it fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kinesis_efo.arns import CONSUMER_ARN, STREAM_ARN
from kinesis_efo.metrics.settings import MetricsSettings
from kinesis_efo.options import readers as read
from kinesis_efo.options.settings import AwsSettings, RetrySettings, Start
from kinesis_efo.options.shared import AWS_OPTIONS, METRICS_OPTIONS
from kinesis_efo.options.table import Given, Option, OptionTable, Refused
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.units import parse_size, parse_time


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The source's options, parsed and checked. Sizes are bytes, durations seconds.

    >>> SourceOptions.parse({"manifest": "ssm:///kinesis-efo/dev/lake", "bufferBytes": "64m"}).buffer_bytes
    67108864
    >>> SourceOptions.parse({"manifest": "m.json", "bufferBytes": "lots"})
    Traceback (most recent call last):
        ...
    kinesis_efo.errors.OptionsError: kinesis-efo option 'bufferBytes' must be a size such as 256m; got 'lots'
    """

    manifest: str | None = None
    stream_arn: str | None = None
    consumer_arn: str | None = None
    lease_table: str | None = None
    streams: tuple[str, ...] | None = None
    read_mode: str = "efo"
    polling_interval: float = 1.0
    start: Start = field(default_factory=Start)
    max_bytes_per_trigger: int | None = None
    max_records_per_trigger: int | None = None
    buffer_bytes: int = 256 << 20
    fail_on_data_loss: bool = True
    deaggregate: bool = True
    fetcher_host: str | None = None
    catch_up: bool = False
    latency_hooks: bool = True
    lease_timeout: float = 10.0
    checkpoint_rate: float = 25.0
    poll_timeout: float = 0.2
    idle_checkpoint_interval: float = 60.0
    retry: RetrySettings = field(default_factory=RetrySettings)
    aws: AwsSettings = field(default_factory=AwsSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options that Spark passes. Names are case-insensitive.

        Raises:
            OptionsError: One or more options are wrong, unknown or missing; the message names all of them.
        """
        return _TABLE.parse(options, _contradictions)


def _start(text: str) -> Start:
    name, colon, rest = text.strip().partition(":")
    match name.upper(), bool(colon):
        case "LATEST", False:
            return Start()
        case "LEASES", False:
            return Start(from_leases=True)
        case "TRIM_HORIZON", False:
            return Start(TRIM_HORIZON)
        case "AT_TIMESTAMP", True:
            return Start(Position.at_timestamp(parse_time(rest)))
    raise ValueError(text)


def _registration(text: str) -> str:
    match text.strip().lower():
        case "none":
            return "none"
        case "lazy" | "eager":
            raise Refused(
                "must be none: this library never registers consumers at run time. "
                "Declare the consumer in infra/environments/<environment>.yaml and run `cdktf deploy`"
            )
    raise ValueError(text)


def _fetchers(text: str) -> str:
    match text.strip().lower():
        case "driver":
            return "driver"
        case number if number.isascii() and number.isdigit():
            raise Refused("must be driver: fetchers on executors are not available in this version")
    raise ValueError(text)


SOURCE_OPTIONS: Final = (
    Option("manifest", read.text, "a path, ssm:///name or s3://bucket/key", "-",
           "the application's manifest; or `streamArn`, `consumerArn` and `leaseTable`", "manifest"),
    Option("streamArn", read.matching(STREAM_ARN), "the ARN of a stream", "-", "instead of a manifest", "stream_arn"),
    Option("consumerArn", read.matching(CONSUMER_ARN), "the ARN of a stream consumer", "-",
           "instead of a manifest; not needed with `readMode=polling`", "consumer_arn"),
    Option("leaseTable", read.text, "the name of a DynamoDB table", "-", "instead of a manifest", "lease_table"),
    Option("streams", read.names, "logical stream names separated by commas, each once", "all in the manifest",
           "which streams of the manifest to read", "streams"),
    Option("readMode", read.one_of("efo", "polling"), "efo or polling", "`efo`",
           "`polling` fetches records with GetRecords, without a consumer", "read_mode"),
    Option("polling.interval", read.bounded(read.seconds, 0.2, 10), "a duration such as 1s, from 200ms to 10s", "`1s`",
           "how long `polling` waits before it asks again for a shard that had no more records", "polling_interval"),
    Option("startingPosition", _start,
           "LATEST, TRIM_HORIZON, LEASES or AT_TIMESTAMP:<ISO 8601 or epoch ms>", "`LATEST`",
           "where a new query starts; a restarted one continues from its checkpoint", "start"),
    Option("registration", _registration, "none", "`none`", "consumers are declared, never registered at run time"),
    Option("maxBytesPerTrigger", read.bounded(parse_size, 1), "a size such as 64m, at least 1 byte", "-",
           "most bytes in one micro-batch; whole events, at least one", "max_bytes_per_trigger"),
    Option("maxRecordsPerTrigger", read.bounded(read.integer, 1), "a whole number of records, at least 1", "-",
           "most records in one micro-batch; whole events, at least one", "max_records_per_trigger"),
    Option("bufferBytes", read.bounded(parse_size, 1 << 20), "a size such as 256m", "`256m`",
           "memory for fetched events; at least 1m", "buffer_bytes"),
    Option("failOnDataLoss", read.flag, "true or false", "`true`",
           "fail if records expired before they were read; else log a warning and continue", "fail_on_data_loss"),
    Option("deaggregate", read.flag, "true or false", "`true`", "unpack KPL aggregates", "deaggregate"),
    Option("fetchers", _fetchers, "driver", "`driver`", "where events are fetched; a number of tasks comes later"),
    Option("fetcherHost", read.text, "a host name or address", "loopback; the host's address on a cluster",
           "address that the fetcher binds to and that tasks connect to", "fetcher_host"),
    Option("catchUp", read.flag, "true or false", "`false`",
           "Spark 4.0's way to `Trigger.AvailableNow`: the first micro-batch reads up to the tip", "catch_up"),
    Option("latencyHooks", read.flag, "true or false", "`true`",
           "quick TCP acknowledgements, fewer zip look-ups and less garbage collection in Spark's Python workers", "latency_hooks"),
    Option("leaseTimeout", read.bounded(read.seconds, 1, 3600), "a duration such as 10s, at least 1s", "`10s`",
           "a lease that is not renewed for this long is free", "lease_timeout"),
    Option("checkpointRate", read.bounded(float, 1, 1_000), "a number of writes a second, from 1 to 1000", "`25`",
           "most checkpoints written to the lease table in a second, all shards together", "checkpoint_rate"),
    Option("pollTimeout", read.bounded(read.seconds, 0.001, 60), "a duration such as 200ms, up to 60s", "`200ms`",
           "how long a trigger waits for data before it reports that there is none", "poll_timeout"),
    Option("idleCheckpointInterval", read.bounded(read.seconds, 1), "a duration such as 60s, at least 1s", "`60s`",
           "how often offsets of idle shards are stored", "idle_checkpoint_interval"),
    *AWS_OPTIONS,
    Option("subscribe.maxRetries", read.bounded(read.integer, 0, 1_000), "a whole number up to 1000", "`10`",
           "faults in a row, without progress, before a query fails", "retry.max_retries"),
    Option("subscribe.backoff.baseMs", read.bounded(read.integer, 1, 600_000), "milliseconds, 1 to 600000", "`1000`",
           "first backoff", "retry.base_ms", at_most="subscribe.backoff.maxMs"),
    Option("subscribe.backoff.maxMs", read.bounded(read.integer, 1, 600_000), "milliseconds, 1 to 600000", "`10000`",
           "longest backoff", "retry.max_ms"),
    Option("subscribe.backoff.factor", read.bounded(float, 1, 10), "a number from 1 to 10", "`1.5`",
           "growth of the backoff", "retry.factor"),
    *METRICS_OPTIONS,
    Option("metrics.shards", read.bounded(read.integer, 0, 10_000), "a whole number up to 10000", "`100`",
           "most shards with metrics of their own, the rest shares `other`; 0: by stream only", "metrics.shards"),
)  # fmt: skip
_TABLE: Final = OptionTable("kinesis-efo", SourceOptions, SOURCE_OPTIONS)


def _contradictions(given: Given) -> Iterator[str]:
    names, values = given.names, given.values
    needed = ["streamArn", "consumerArn", "leaseTable"]
    direct = [name for name in needed if name in names]
    if values.get("readMode") == "polling":
        needed.remove("consumerArn")
    if "manifest" in names and direct:
        yield f"kinesis-efo option 'manifest' takes the place of {_quoted(direct)}; give one or the other"
    elif "manifest" not in names and (missing := [name for name in needed if name not in direct]):
        yield (
            "kinesis-efo needs option 'manifest'" + (f", or {_quoted(missing)} besides {_quoted(direct)}" if direct else
            " (a path, ssm:///name or s3://bucket/key), or 'streamArn', 'consumerArn' and 'leaseTable'")
        )  # fmt: skip
    if "streams" in names and "manifest" not in names and direct:
        yield "kinesis-efo option 'streams' selects streams of a manifest; remove it, or give 'manifest'"
    if "consumerArn" in values and "streamArn" in values:
        stream = values["consumerArn"].split("/consumer/")[0]
        if stream != values["streamArn"]:
            yield (
                f"kinesis-efo option 'consumerArn' must be a consumer of 'streamArn' {values['streamArn']!r}; "
                f"got a consumer of {stream!r}"
            )


def _quoted(names: list[str]) -> str:
    *rest, last = [f"'{name}'" for name in names]
    return f"{', '.join(rest)} and {last}" if rest else last
