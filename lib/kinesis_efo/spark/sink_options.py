"""The options of the Kinesis sink, and the streams they mean. Relies on the producer's settings for bounds.

Options that mean the same as the source's are the source's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kinesis_efo.aws import SyncClients
from kinesis_efo.errors import OptionsError
from kinesis_efo.manifest import load_manifest
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import SOURCE_OPTIONS, AwsSettings, Option
from kinesis_efo.producer import ProducerSettings
from kinesis_efo.producer.service import region_of
from kinesis_efo.units import parse_duration, parse_size

_SOURCE: Final = {option.name: option for option in SOURCE_OPTIONS}
_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}
"""Spark hands these to sinks too."""


def _setting(name: str, field: str, parse: Callable[[str], Any], rule: str, default: str, meaning: str) -> Option:
    def read(text: str) -> Any:
        value = parse(text)
        try:
            ProducerSettings(**{field: value})
        except OptionsError as error:
            raise ValueError(text) from error
        return value

    return Option(name, read, rule, default, meaning, group=("producer", field))


def _seconds(text: str) -> float:
    return parse_duration(text) / 1000


_flag = _SOURCE["deaggregate"].read

SINK_OPTIONS: Final = (
    Option("manifest", _SOURCE["manifest"].read, _SOURCE["manifest"].rule, "-",
           "names the streams; without it, `stream` is a stream's own name or ARN", "manifest"),
    Option("stream", _SOURCE["manifest"].read, "the name of a stream", "the manifest's, if it has one only",
           "where rows go that have no column `stream`, or null in it", "stream"),
    _setting("maxOutstandingRecords", "max_outstanding_records", int, "a whole number of records, at least 1", "`20000`",
             "records of a task that may wait for acknowledgement; then the task waits"),
    _setting("maxOutstandingBytes", "max_outstanding_bytes", parse_size, "a size such as 64m, at least 1k", "`64m`",
             "the same in bytes; at least twice the largest record"),
    _setting("linger", "linger", _seconds, "a duration such as 100ms, up to 60s", "`100ms`",
             "how long a record waits for others to fill its request"),
    _setting("maxInFlight", "max_in_flight", int, "a whole number of requests, 1 to 256", "`8`",
             "requests of a task that may be under way"),
    _setting("ordered", "ordered", _flag, "true or false", "`false`",
             "keep the order of rows with the same partition key within a task"),
    _setting("aggregate", "aggregate", _flag, "true or false", "`false`",
             "pack rows into KPL aggregates, which readers must take apart"),
    _setting("aggregateBytes", "aggregate_bytes", parse_size, "a size from 1k to 1m", "`50k`",
             "an aggregate grows to this at most"),
    _setting("failOnError", "fail_on_error", _flag, "true or false", "`true`",
             "fail on a record that can never be written; else log it and leave it out"),
    _setting("retryTimeout", "retry_timeout", _seconds, "a duration such as 5m, 100ms to 1d", "`5m`",
             "how long a failing shard may make no progress before the task fails"),
    _setting("stallWarning", "stall_warning", _seconds, "a duration such as 30s, 100ms to 1d", "`30s`",
             "how long nothing may be acknowledged before a warning"),
    _setting("backoff.baseMs", "backoff_base", lambda text: int(text) / 1000, "milliseconds, 1 to 2000", "`100`",
             "first backoff"),
    _setting("backoff.maxMs", "backoff_max", lambda text: int(text) / 1000, "milliseconds, 100 to 600000", "`2000`",
             "longest backoff"),
    *(option for option in SOURCE_OPTIONS if option.group and option.group[0] == "aws"),
    *(_SOURCE[name] for name in ("metrics.export", "metrics.emf.to", "metrics.emf.interval")),
)  # fmt: skip
_BY_LOWER_NAME: Final = {option.name.lower(): option for option in SINK_OPTIONS}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a query says about how to write.

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
        """Read Spark's options. Names are case-insensitive.

        Raises:
            OptionsError: One or more options are wrong or unknown; all of them are named.
        """
        faults: list[str] = []
        values: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {"producer": {}, "aws": {}, "metrics": {}}
        for name, text in options.items():
            option = _BY_LOWER_NAME.get(name.lower())
            if option is None:
                if name.lower() not in _SPARKS_OWN:
                    faults.append(_unknown(name))
                continue
            try:
                value = option.read(text)
            except ValueError:
                faults.append(f"kinesis-efo sink option '{option.name}' must be {option.rule}; got {text!r}")
                continue
            if option.group:
                groups[option.group[0]][option.group[1]] = value
            else:
                values[str(option.field)] = value
        if faults:
            raise OptionsError(faults)
        return cls(
            **values,
            producer=ProducerSettings(**groups["producer"]),
            aws=AwsSettings(**groups["aws"]),
            metrics=MetricsSettings(**groups["metrics"]),
        )


@dataclass(frozen=True, slots=True)
class Targets:
    """The streams that rows may go to.

    Attributes:
        default: For rows that name none; None where every row must.
        arns: By logical name; None where names and ARNs are used as they are.
        source: Where the names came from, for messages.
    """

    default: str | None
    arns: Mapping[str, str] | None
    source: str

    @classmethod
    def of(cls, options: SinkOptions, *, named_by_rows: bool) -> Targets:
        """The streams that the options mean. Loads the manifest where there is one.

        Args:
            options: The sink's.
            named_by_rows: Whether there is a column `stream`.

        Raises:
            ManifestError: The manifest cannot be loaded.
            ConfigurationError: The stream is not a name or ARN, or no region is known.
            OptionsError: Nothing says which stream.
        """
        if options.manifest is None:
            if options.stream is not None:
                region_of(options.stream, options.aws)
            elif not named_by_rows:
                raise OptionsError(["kinesis-efo sink needs option 'stream' or 'manifest', or a column 'stream'"])
            return cls(options.stream, None, "option 'stream'")
        manifest = load_manifest(options.manifest, SyncClients(options.aws))
        arns = {name: stream.stream_arn for name, stream in manifest.streams.items()}
        names = ", ".join(map(repr, sorted(arns)))
        default = options.stream
        if default is None and len(arns) == 1:
            (default,) = arns
        if default is None and not named_by_rows:
            raise OptionsError(
                [f"kinesis-efo sink option 'stream' must be one of {names} (manifest {manifest.source})"]
            )
        if default is not None and default not in arns:
            raise OptionsError(
                [
                    f"kinesis-efo sink option 'stream' must be one of {names} (manifest {manifest.source}); got {default!r}"
                ]
            )
        return cls(default, arns, f"manifest {manifest.source}")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1)
    hint = f"; did you mean '{_BY_LOWER_NAME[near[0]].name}'?" if near else ""
    return f"kinesis-efo sink has no option {name!r}{hint}"


def sink_option_table() -> str:
    """The options as a Markdown table, for the README."""
    rows = [f"| `{option.name}` | {option.default} | {option.meaning} |" for option in SINK_OPTIONS]
    return "\n".join(["| sink option | default | |", "|---|---|---|", *rows])
