"""The source's options for streaming and batch: the table (from which the documentation is generated) and the parsed options."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from kinesis_efo.arns import CONSUMER_ARN, STREAM_ARN
from kinesis_efo.hosts import parse_host
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import readers as read
from kinesis_efo.options.readers import Bounds, ends, query_starts
from kinesis_efo.options.settings import (
    AWS_OPTIONS,
    MANIFEST_OPTION,
    METRICS_OPTIONS,
    OBSOLETE_OPTIONS,
    AwsSettings,
    Deaggregation,
    RetrySettings,
    Start,
)
from kinesis_efo.options.table import Option, OptionTable
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The source's options, parsed and validated. Sizes are in bytes, durations in seconds.

    >>> SourceOptions.parse({"manifest": "ssm:///kinesis-efo/dev/lake", "bufferBytes": "64m"}).buffer_bytes
    67108864
    >>> SourceOptions.parse({"manifest": "m.json", "bufferBytes": "lots"})
    Traceback (most recent call last):
        ...
    kinesis_efo.errors.OptionsError: kinesis-efo option 'bufferBytes' must be a size such as 256m; got 'lots'
    """

    manifest: str | None = None
    stream_arns: tuple[str, ...] = ()
    consumer_arns: tuple[str, ...] = ()
    lease_table: str | None = None
    streams: tuple[str, ...] | None = None
    read_mode: str = "efo"
    polling_interval: float = 1.0
    transport: str = "auto"
    start: Start = field(default_factory=Start)
    new_stream_start: Start = field(default_factory=lambda: Start(TRIM_HORIZON))
    drop_removed_streams: bool = False
    ends: Bounds = field(default_factory=Bounds)
    batch: bool = False
    times: tuple[str, ...] = ()
    loaded: int | None = None
    clock: bool = False
    cores: int | None = None
    max_bytes_per_trigger: int | None = None
    max_records_per_trigger: int | None = None
    min_bytes_per_trigger: int | None = None
    max_trigger_delay: float = 1.0
    max_shard_skew: float | None = None
    buffer_bytes: int = 256 << 20
    slow_queries: str = "apart"
    shard_rate: int = 1 << 20
    fail_on_data_loss: bool = True
    accepted_losses: Mapping[ShardKey, Position] = field(default_factory=dict)
    deaggregate: Deaggregation = Deaggregation.ALL
    fetcher_host: str | None = None
    fetcher_bind_host: str | None = None
    fetcher_ports: range = range(1)
    driver_host: str | None = None
    fetchers: int | None = None
    supervisor: str | None = None
    program: str = ""
    listens: bool = False
    catch_up: bool = False
    lease_timeout: float = 10.0
    checkpoint_rate: float = 25.0
    poll_timeout: float = 0.2
    idle_checkpoint_interval: float = 50.0
    retry: RetrySettings = field(default_factory=RetrySettings)
    aws: AwsSettings = field(default_factory=AwsSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The options as Spark passed them, by name, unparsed."""

    @property
    def arrival_step(self) -> int | None:
        """Resolution (milliseconds) of the arrival times that fetchers record: a tenth of `max_shard_skew`; None if not recorded."""
        return None if self.max_shard_skew is None else round(self.max_shard_skew * 100)

    @property
    def patience(self) -> float:
        """Seconds for which a task waits for a lease or a fetcher: enough to retry AWS calls, and for a crashed run's lease to expire."""
        return self.retry.timeout + 3 * self.lease_timeout + 30

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options that Spark passes. Names are case-insensitive. Raises `OptionsError`, which lists all invalid options."""
        return replace(_TABLE.parse(options, _contradictions), given=dict(options))


def _start(text: str) -> Start:
    return Start(from_leases=True) if text.strip().upper() == "LEASES" else Start(read.query_start(text.strip()))


def _query_start(text: str) -> Start:
    return Start(bounds=query_starts(text)) if text.lstrip().startswith("{") else _start(text)


def _deaggregation(text: str) -> Deaggregation:
    # `all` is the former name of `true`.
    return Deaggregation.ALL if text.strip().lower() == "all" else _DEAGGREGATION(text)


_DEAGGREGATION: Final = read.word_for(Deaggregation, "true", "false", "strict")


SOURCE_OPTIONS: Final = (
    MANIFEST_OPTION,
    Option("streamArn", read.several(STREAM_ARN), "the ARN of a stream, or several separated by commas, each once", "-",
           "instead of a manifest", "stream_arns"),
    Option("consumerArn", read.several(CONSUMER_ARN), "the ARN of a stream consumer, or several separated by commas, each once", "-",
           "a consumer of each stream in `streamArn`; not needed with `readMode=polling`", "consumer_arns"),
    Option("leaseTable", read.text, "the name of a DynamoDB table", "-",
           "use with `streamArn`; without a table, leases protect only against programs of the same user on the same host", "lease_table"),
    Option("streams", read.names, "logical stream names separated by commas, each once, or * for all", "the only one",
           "which streams of the manifest to read", "streams"),
    Option("readMode", read.one_of("efo", "polling"), "efo or polling", "`efo`",
           "`polling` fetches records with GetRecords, without a consumer, as batch reads always do", "read_mode", of_run=True),
    Option("transport", read.one_of("auto", "http2", "http1"), "auto, http2 or http1", "`auto`",
           "protocol of subscriptions; `auto`: HTTP/2 if the service supports it, else HTTP/1.1", "transport", of_run=True),
    Option("pollingInterval", read.duration(0.2, 10), "a duration such as 1s, from 200ms to 10s", "`1s`",
           "with `readMode=polling`, time between calls to a shard at its tip; longer with more than 500 shards", "polling_interval", of_run=True, formerly=("polling.interval",)),
    Option("startingPosition", read.Typed(_query_start, read.MOMENT),
           "LATEST, EARLIEST (TRIM_HORIZON), LEASES or a time in ISO 8601 or epoch ms, or JSON with one for each stream or shard",
           "`LATEST`", "where a new query starts; a restarted query continues from its checkpoint", "start", also=("startingTimestamp",)),
    Option("newStreamPosition", read.Typed(_start, read.MOMENT), "EARLIEST (TRIM_HORIZON), LATEST, LEASES or a time in ISO 8601 or epoch ms", "`TRIM_HORIZON`",
           "start position of a stream not yet in the checkpoint", "new_stream_start"),
    Option("removedStreams", read.word_for(lambda word: word == "drop", "fail", "drop"), "fail or drop", "`fail`",
           "what to do if the checkpoint has a stream that is no longer read", "drop_removed_streams"),
    Option("endingPosition", ends, "LATEST, a time in ISO 8601 or epoch ms, or JSON with one for each stream or shard", "`LATEST`",
           "exclusive end of a batch read, or of a query with `Trigger.AvailableNow` or `Trigger.Once`; `LATEST` is the tip at the start", "ends", also=("endingTimestamp",)),
    Option("maxShardRate", read.bounded(read.size, 64 << 10), "a size such as 1m, at least 64k", "`1m`",
           "maximum bytes per second from each shard, for batch reads and for queries that [read apart](glossary.md#reads-apart); for the latter, at most 2m", "shard_rate", of_run=True, formerly=("apartRate", "batch.maxRate")),
    Option("maxBytesPerTrigger", read.bounded(read.size, 1), "a size such as 64m, at least 1 byte", "-",
           "estimated maximum size of a micro-batch; at least one whole event", "max_bytes_per_trigger"),
    Option("maxRecordsPerTrigger", read.bounded(read.integer, 1), "a whole number of records, at least 1", "-",
           "maximum records in a micro-batch; a single event may exceed it", "max_records_per_trigger"),
    Option("minBytesPerTrigger", read.bounded(read.size, 1), "a size such as 64m, at least 1 byte", "-",
           "a micro-batch with less data waits for more, at most for `maxTriggerDelay`", "min_bytes_per_trigger"),
    Option("maxTriggerDelay", read.duration(0, 60), "a duration such as 1s, up to 60s", "`1s`",
           "longest time a micro-batch waits for more data; without `minBytesPerTrigger`, it waits only while every shard with records is more "
           "than 1 s behind, and only in a query with one source, which `kinesis_efo.read_stream` created", "max_trigger_delay"),
    Option("maxShardSkew", read.duration(10, 86_400), "a duration such as 30s, from 10s to 24h", "-",
           "how far a shard may be read ahead of the slowest shard, by arrival time; for watermarks", "max_shard_skew", of_run=True),
    Option("bufferBytes", read.bounded(read.size, 1 << 20), "a size such as 256m", "`256m`",
           "memory of each fetcher for events; at least 1m", "buffer_bytes", of_run=True),
    Option("slowQueries", read.one_of("apart", "hold"), "apart or hold", "`apart`",
           "`apart`: a slow query that fills the buffer continues alone, with GetRecords; `hold`: the other queries wait for it", "slow_queries", of_run=True),
    Option("failOnDataLoss", read.flag, "true or false", "`true`",
           "fail if records expired before they were read; if false, log a warning", "fail_on_data_loss", of_run=True),
    Option("acceptDataLoss", read.positions, 'JSON such as {"orders": {"shardId-000000000003": "AFTER:4959..."}}', "-",
           "the losses to accept, copied from the error; a later loss is an error again", "accepted_losses"),
    Option("deaggregate", read.Typed(_deaggregation, _DEAGGREGATION.hint), "true, false or strict", "`true`",
           "unpack KPL aggregates; `strict`: drop an aggregate with a hash key of another shard, as the KCL does", "deaggregate"),
    Option("fetchers", read.unless("driver", read.bounded(read.integer, 1, 1_000)), "driver, or a number of tasks from 1 to 1000", "`driver`",
           "where events are fetched: on the driver's host, or in this many Spark tasks", "fetchers", of_run=True),
    Option("fetcherHost", read.peer, "a host name or address that tasks can connect to, without a port",
           "the address of Spark's driver; tasks also try the host's addresses",
           "address at which tasks on other hosts reach the fetcher; if this is an IP address of the fetcher's host, the fetcher listens only there",
           "fetcher_host", of_run=True),
    Option("fetcherPort", read.ports, "a port or a range such as 40000-40100", "any free port",
           "port on which the fetcher listens; of a range, the first free port", "fetcher_ports", of_run=True),
    Option("catchUp", read.flag, "true or false", "`false`",
           "read up to the tip in the first micro-batch; needed for `Trigger.AvailableNow` and `Trigger.Once` before Spark 4.2", "catch_up"),
    Option("leaseTimeout", read.duration(1, 3600), "a duration such as 10s, at least 1s", "`10s`",
           "a lease that is not renewed for this long is free", "lease_timeout", of_run=True),
    Option("checkpointWritesPerSecond", read.bounded(read.number, 1, 1_000), "a number of writes per second, from 1 to 1000", "`25`",
           "maximum shard positions written to the lease table per second, in total", "checkpoint_rate", of_run=True, formerly=("checkpointRate",)),
    Option("pollTimeout", read.duration(0.001, 60), "a duration such as 200ms, up to 60s", "`200ms`",
           "how long a trigger waits for data before it reports that there is none", "poll_timeout"),
    Option("idleCheckpointInterval", read.duration(1), "a duration such as 50s, at least 1s", "`50s`",
           "how often offsets of idle shards are stored", "idle_checkpoint_interval"),
    *AWS_OPTIONS,
    Option("retryTimeout", read.duration(1, 7 * 86_400), "a duration such as 10m, from 1s to 7d", "`10m`",
           "how long a query retries if all calls for a shard fail, the lease table is unreachable, or calls fail at the query's start",
           "retry.timeout", of_run=True, formerly=("subscribe.retryTimeout",)),
    *METRICS_OPTIONS,
    Option("metricsShards", read.bounded(read.integer, 0, 10_000), "a whole number up to 10000", "`100`",
           "maximum number of shards with separate metrics; the rest share the label `other`; 0: by stream only", "metrics.shards", of_run=True, formerly=("metrics.shards",)),
)  # fmt: skip
STREAMING: Final = {option.name for option in SOURCE_OPTIONS} - {
    "manifest", "streamArn", "streams", "startingPosition", "endingPosition", "maxShardRate", "failOnDataLoss", "deaggregate",
    "retryTimeout", "metricsShards", *(option.name for option in (*AWS_OPTIONS, *METRICS_OPTIONS)),
}  # fmt: skip
"""The options that only streaming queries use."""
# Options that are set by `kinesis_efo.read_stream` and `kinesis_efo.read`, not by users.
DRIVER_HOST: Final = "session.driverHost"
SUPERVISOR: Final = "session.supervisor"
PROGRAM: Final = "session.program"
LISTENS: Final = "session.listens"
BATCH: Final = "session.batch"
TIMES: Final = "session.times"
CORES: Final = "session.cores"
LOADED: Final = "session.loaded"
CLOCK: Final = "session.clock"
HINTS: Final = (
    Option("registration", read.one_of("none"), "none: this library never registers consumers at run time. Declare the consumer in "
           "infra/environments/<environment>.yaml and run `cdktf deploy`", "-", "an option of version 0.1"),
    Option(BATCH, read.flag, "true or false", "-", "whether this is a batch read", "batch"),
    Option(TIMES, read.names, "since or until", "-", "which of the two were given, for messages", "times"),
    Option(CORES, read.integer, "a whole number", "-", "the cores of the session's executors", "cores"),
    Option(LOADED, read.integer, "epoch milliseconds", "-", "when `kinesis_efo.read` was called, by Kinesis' clock", "loaded"),
    Option(CLOCK, read.flag, "true or false", "-", "whether the only row of the read is Kinesis' time", "clock"),
    Option(DRIVER_HOST, parse_host, "a host name or address", "-", "the address of Spark's driver", "driver_host"),
    Option(SUPERVISOR, read.text, "the path of a socket", "-", "the Unix socket of the supervisor, which starts fetchers", "supervisor"),
    Option(LISTENS, read.flag, "true or false", "-", "whether the driver reports which micro-batches are done", "listens"),
    Option(PROGRAM, read.text, "the name of a session", "-", "the session of Spark Connect among those of its server", "program"),
)  # fmt: skip
_SECRET: Final = frozenset({"externalId"})
REMOVED: Final = (
    "latencyHooks", "subscribe.maxRetries", "subscribe.backoff.baseMs", "subscribe.backoff.maxMs", "subscribe.backoff.factor",
    "shardsPerTask", "batch.shardsPerTask", "fetcherTls",
)  # fmt: skip
OBSOLETE: Final = (
    *OBSOLETE_OPTIONS,
    Option("fetcherBindHost", parse_host, "a host name or address, without a port", "-", "address that the fetcher binds to",
           "fetcher_bind_host", of_run=True, instead="an address of the host in 'fetcherHost' is the only one that the fetcher binds to"),
)  # fmt: skip
_TABLE: Final = OptionTable("kinesis-efo", SourceOptions, (*SOURCE_OPTIONS, *HINTS, *OBSOLETE), removed=REMOVED)


def _contradictions(values: Mapping[str, Any], names: Set[str]) -> Iterator[str]:
    needed = ["streamArn", "consumerArn"]
    direct = [name for name in (*needed, "leaseTable") if name in names]
    for name in sorted(names & STREAMING if values.get(BATCH) else ()):
        yield f"kinesis-efo option '{name}' is for a streaming query; a batch read ignores it: leave it out"
    if values.get(BATCH) or values.get("readMode") == "polling":
        needed.remove("consumerArn")
    if "manifest" in names and direct:
        yield f"kinesis-efo option 'manifest' takes the place of {_quoted(direct)}; give one or the other"
    elif "manifest" not in names and (missing := [name for name in needed if name not in direct]):
        yield (
            "kinesis-efo needs option 'manifest'" + (f", or {_quoted(missing)} besides {_quoted(direct)}" if direct else
            " (a path, ssm:///name or s3://bucket/key), or 'streamArn' and 'consumerArn'") + (", or readMode=polling" if "streamArn" in direct else "")
        )  # fmt: skip
    if "streams" in names and "manifest" not in names and direct:
        yield "kinesis-efo option 'streams' selects streams of a manifest; remove it, or give 'manifest'"
    if values.get("fetchers") is not None and SUPERVISOR not in names:
        yield (
            f"kinesis-efo option 'fetchers' is {values['fetchers']}, but `spark.readStream.format(...)` cannot start Spark tasks: use "
            f"kinesis_efo.read_stream(spark, ..., fetchers={values['fetchers']})"
        )
    if "streamArn" in values and "manifest" not in names:
        yield from _arn_faults(values["streamArn"], values.get("consumerArn", ()), needed)
        if not values.get(BATCH) and "leaseTable" not in names:
            yield from _needs_table(values)


def _arn_faults(streams: Sequence[str], consumers: Sequence[str], needed: Sequence[str]) -> Iterator[str]:
    parts = [match.groupdict() for each in streams if (match := STREAM_ARN.fullmatch(each))]
    if len(regions := sorted({each["region"] for each in parts})) > 1:
        yield f"kinesis-efo option 'streamArn' must have streams of one region; got {', '.join(regions)}"
    for name, count in Counter(each["name"] for each in parts).items():
        if count > 1:
            yield (
                f"kinesis-efo option 'streamArn' has {count} streams named {name!r}, which a checkpoint could not distinguish; give them "
                "different names in a manifest"
            )
    found = Counter(each.partition("/consumer/")[0] for each in consumers)
    if foreign := sorted(found.keys() - streams):
        yield (
            f"kinesis-efo option 'consumerArn' must be a consumer of 'streamArn' {', '.join(map(repr, streams))}; "
            f"got a consumer of {', '.join(map(repr, foreign))}"
        )
    elif consumers and "consumerArn" in needed and (missing := [each for each in streams if each not in found]):
        yield f"kinesis-efo option 'consumerArn' must have a consumer of each stream; got none of {', '.join(map(repr, missing))}"
    if twice := [each for each in streams if found[each] > 1]:
        yield f"kinesis-efo option 'consumerArn' must have one consumer of each stream; got several of {', '.join(map(repr, twice))}"


def _needs_table(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error for each option that requires a lease table. Called for queries without a lease table."""
    for name in ("startingPosition", "newStreamPosition"):
        if (start := values.get(name)) is not None and start.from_leases:
            yield f"kinesis-efo option '{name}' is LEASES, which needs 'leaseTable' or a manifest: its rows have the positions"
    if values.get("fetchers") is not None:
        yield (
            f"kinesis-efo option 'fetchers' is {values['fetchers']}, which needs 'leaseTable' or a manifest: fetchers run on several hosts, and "
            "without a table, only those of one host exclude each other"
        )
    if values.get("deaggregate") is Deaggregation.STRICT:
        yield (
            "kinesis-efo option 'deaggregate' is strict, which needs 'leaseTable' or a manifest: only the table records that Kinesis once "
            "distributed a stream's records itself, and no aggregate may be left out since"
        )


# Replaces the streaming option of the same name: if a table has several options with one name, the last of them applies.
_BATCH_START: Final = Option("startingPosition", lambda text: Start(bounds=read.starts(text)),
    "EARLIEST (TRIM_HORIZON), a time in ISO 8601 or epoch ms, or JSON with one for each stream or shard",
    "-", "where a batch read starts", "start", also=("startingTimestamp",))  # fmt: skip
_BATCH_TABLE: Final = OptionTable(
    "kinesis-efo", SourceOptions, (*SOURCE_OPTIONS, *HINTS, *OBSOLETE, _BATCH_START), removed=REMOVED
)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The parsed options of a batch read."""

    source: SourceOptions = field(default_factory=SourceOptions)
    starts: Bounds = field(default_factory=lambda: Bounds(TRIM_HORIZON))

    def name(self, argument: str, option: str) -> str:
        """Return the name of a position for messages: `argument` (`since` or `until`) if the user passed it, else the option's name."""
        return argument if argument in self.source.times else f"kinesis-efo option '{option}'"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> BatchOptions:
        """Parse the options that Spark passes. Names are case-insensitive.

        >>> BatchOptions.parse({"manifest": "m.json"}).starts.everywhere == TRIM_HORIZON
        True
        """
        source = replace(
            _BATCH_TABLE.parse({**options, BATCH: "true"}, _contradictions), given=dict(options), read_mode="polling"
        )
        return cls(source, source.start.bounds or Bounds(TRIM_HORIZON))


def are_for_batch(options: Iterable[str]) -> bool:
    """Whether some of the options only exist for batch reads. At `load()`, Spark does not indicate whether a read is streaming or batch."""
    revealing = {BATCH.lower(), "shardspertask", "batch.shardspertask", "batch.maxrate"}
    return not revealing.isdisjoint(map(str.lower, options))


def _quoted(names: list[str]) -> str:
    *rest, last = [f"'{name}'" for name in names]
    return f"{', '.join(rest)} and {last}" if rest else last


def of_run(options: SourceOptions) -> dict[str, str]:
    """Return the values of all options that apply to a whole run, as strings by option name. Secrets are hashed."""
    return {
        option.name: _text(option.name, attrgetter(option.field)(options))
        for option in (*SOURCE_OPTIONS, *OBSOLETE)
        if option.of_run
    }


def differences(run: Mapping[str, str], query: Mapping[str, str]) -> list[str]:
    """Return one error message for each option that prevents a query from sharing a run. Compares two results of `of_run`."""
    return [
        f"kinesis-efo option '{name}' is {_shown(name, query.get(name, '-'))} here and {_shown(name, run.get(name, '-'))} in a query of this "
        "Spark program that reads the same stream: queries that share a stream share a run, so give all of them the same value"
        for name in sorted(run.keys() | query.keys())
        if run.get(name) != query.get(name)
    ]


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case range():
            return "-" if value == range(1) else f"{value[0]}" if len(value) == 1 else f"{value[0]}-{value[-1]}"
    return hashlib.sha256(str(value).encode()).hexdigest() if name in _SECRET else str(value)


def _shown(name: str, text: str) -> str:
    if text == "-":
        return "not set"
    return "another" if name in _SECRET else text
