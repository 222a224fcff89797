"""The options of the Kinesis source: one object, validated once, all faults reported together.

`SOURCE_OPTIONS` declares every option with its reader, rule, default and meaning; the table in the README is printed
from it. Relies on units for Spark's spelling of sizes and durations.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kinesis_efo.errors import OptionsError
from kinesis_efo.metrics.settings import EXPORTS, MetricsSettings
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.units import parse_duration, parse_size, parse_time


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new query starts.

    Attributes:
        position: A position for every shard, or None for `LATEST` and `LEASES`.
        from_leases: Start where the rows of the lease table say, as a KCL application left them.
    """

    position: Position | None = None
    from_leases: bool = False

    @property
    def latest(self) -> bool:
        """Whether the query starts with what arrives from now on."""
        return self.position is None and not self.from_leases


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often and how patiently a failed subscription is opened again.

    Attributes:
        max_retries: Faults in a row that are borne, without any progress between them.
        base_ms: First backoff, milliseconds.
        max_ms: Longest backoff, milliseconds.
        factor: Growth of the backoff from one fault to the next.
    """

    max_retries: int = 10
    base_ms: int = 1_000
    max_ms: int = 10_000
    factor: float = 1.5


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """How AWS is reached. Everything is optional: the SDK's own configuration fills the rest.

    Attributes:
        region: AWS region; the manifest's when None.
        endpoint_url: One endpoint for every service, as `AWS_ENDPOINT_URL`.
        role_arn: Role to assume, with `external_id` and `role_session_name`.
    """

    region: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    role_session_name: str = "kinesis-efo"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything a query says about how to read. Sizes are bytes, durations seconds.

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
    start: Start = Start()
    max_bytes_per_trigger: int | None = None
    max_records_per_trigger: int | None = None
    buffer_bytes: int = 256 << 20
    fail_on_data_loss: bool = True
    deaggregate: bool = True
    fetcher_host: str | None = None
    catch_up: bool = False
    latency_hooks: bool = True
    lease_timeout: float = 10.0
    poll_timeout: float = 0.2
    idle_checkpoint_interval: float = 60.0
    retry: RetrySettings = RetrySettings()
    aws: AwsSettings = AwsSettings()
    metrics: MetricsSettings = field(default_factory=MetricsSettings)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options. Names are case-insensitive.

        Raises:
            OptionsError: One or more options are wrong, unknown or missing; all of them are named.
        """
        faults: list[str] = []
        values: dict[str, Any] = {}
        for name, text in options.items():
            option = _BY_LOWER_NAME.get(name.lower())
            if option is None:
                faults.append(_unknown(name))
                continue
            try:
                values[option.name] = option.read(text)
            except ValueError as error:
                reason = str(error) if isinstance(error, _Refused) else f"must be {option.rule}"
                faults.append(f"kinesis-efo option '{option.name}' {reason}; got {text!r}")
        faults += _contradictions(values, {name.lower() for name in options})
        if faults:
            raise OptionsError(faults)
        return cls(
            **{
                option.field: values[option.name] for option in SOURCE_OPTIONS if option.field and option.name in values
            },
            retry=RetrySettings(**_group(values, "retry")),
            aws=AwsSettings(**_group(values, "aws")),
            metrics=MetricsSettings(**_group(values, "metrics")),
        )


class _Refused(ValueError):
    """A value that is well formed but not offered; its message replaces the rule."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option as users write it.

    Attributes:
        name: As documented; matched without regard to case.
        read: Text to value; raises ValueError.
        rule: What the text must be, completing "must be ...".
        default: As documented.
        meaning: One line for the option table.
        field: Field of `SourceOptions`, or None where `group` says otherwise.
        group: `(settings object, field)` for options of a nested object.
    """

    name: str
    read: Callable[[str], Any]
    rule: str
    default: str
    meaning: str
    field: str | None = None
    group: tuple[str, str] | None = None


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(text)
    return names


def _flag(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError(text)


def _at_least(parse: Callable[[str], int], least: int, most: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = parse(text)
        if value < least or (most is not None and value > most):
            raise ValueError(text)
        return value

    return read


def _integer(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
        raise ValueError(text)
    return int(text)


def _seconds(least_ms: int, most_ms: int | None = None) -> Callable[[str], float]:
    milliseconds = _at_least(parse_duration, least_ms, most_ms)
    return lambda text: milliseconds(text) / 1000


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 10:
        raise ValueError(text)
    return value


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
            raise _Refused(
                "must be none: this library never registers consumers at run time. "
                "Declare the consumer in infra/environments/<environment>.yaml and run `cdktf deploy`"
            )
    raise ValueError(text)


def _read_mode(text: str) -> str:
    match text.strip().lower():
        case "efo" | "polling" as mode:
            return mode
    raise ValueError(text)


def _fetchers(text: str) -> str:
    match text.strip().lower():
        case "driver":
            return "driver"
        case number if number.isascii() and number.isdigit():
            raise _Refused("must be driver: fetchers on executors are not available in this version")
    raise ValueError(text)


def _export(text: str) -> str:
    if text.strip().lower() not in EXPORTS:
        raise ValueError(text)
    return text.strip().lower()


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text.strip()):
        raise ValueError(text)
    return text.strip()


def _arn(service: str, resource: str) -> Callable[[str], str]:
    pattern = re.compile(rf"arn:[\w-]+:{service}:[\w-]*:\d{{12}}:{resource}")

    def read(text: str) -> str:
        if not pattern.fullmatch(text.strip()):
            raise ValueError(text)
        return text.strip()

    return read


_STREAM = r"stream/[a-zA-Z0-9_.-]{1,128}"
_POSITIVE = _at_least(_integer, 1)
_NAME_RULE = "a name"

SOURCE_OPTIONS: Final = (
    Option("manifest", _text, "a path, ssm:///name or s3://bucket/key", "-",
           "the application's manifest; or `streamArn`, `consumerArn` and `leaseTable`", "manifest"),
    Option("streamArn", _arn("kinesis", _STREAM), "the ARN of a stream", "-", "instead of a manifest", "stream_arn"),
    Option("consumerArn", _arn("kinesis", _STREAM + r"/consumer/[\w.-]+:\d+"), "the ARN of a stream consumer", "-",
           "instead of a manifest; not needed with `readMode=polling`", "consumer_arn"),
    Option("leaseTable", _text, "the name of a DynamoDB table", "-", "instead of a manifest", "lease_table"),
    Option("streams", _names, "logical stream names separated by commas, each once", "all in the manifest",
           "which streams of the manifest to read", "streams"),
    Option("readMode", _read_mode, "efo or polling", "`efo`",
           "`polling` fetches records with GetRecords, without a consumer", "read_mode"),
    Option("polling.interval", _seconds(200, 10_000), "a duration such as 1s, from 200ms to 10s", "`1s`",
           "how long `polling` waits between two looks at a shard that had no more", "polling_interval"),
    Option("startingPosition", _start,
           "LATEST, TRIM_HORIZON, LEASES or AT_TIMESTAMP:<ISO 8601 or epoch ms>", "`LATEST`",
           "where a new query starts; a restarted one goes on from its checkpoint", "start"),
    Option("registration", _registration, "none", "`none`", "consumers are declared, never registered at run time"),
    Option("maxBytesPerTrigger", _at_least(parse_size, 1), "a size such as 64m, at least 1 byte", "-",
           "most bytes in one micro-batch; whole events, at least one", "max_bytes_per_trigger"),
    Option("maxRecordsPerTrigger", _POSITIVE, "a whole number of records, at least 1", "-",
           "most records in one micro-batch; whole events, at least one", "max_records_per_trigger"),
    Option("bufferBytes", _at_least(parse_size, 1 << 20), "a size such as 256m", "`256m`",
           "memory for fetched events; at least 1m", "buffer_bytes"),
    Option("failOnDataLoss", _flag, "true or false", "`true`",
           "fail when records are gone before they were read; else warn and go on", "fail_on_data_loss"),
    Option("deaggregate", _flag, "true or false", "`true`", "take KPL aggregates apart", "deaggregate"),
    Option("fetchers", _fetchers, "driver", "`driver`", "where events are fetched; a number of tasks comes later"),
    Option("fetcherHost", _text, "a host name or address", "loopback; the host's address on a cluster",
           "address the fetcher binds to and is reached at", "fetcher_host"),
    Option("catchUp", _flag, "true or false", "`false`",
           "Spark 4.0's way to `Trigger.AvailableNow`: the first micro-batch reads up to the tip", "catch_up"),
    Option("latencyHooks", _flag, "true or false", "`true`",
           "quick TCP acknowledgements and fewer zip look-ups in Spark's Python workers", "latency_hooks"),
    Option("leaseTimeout", _seconds(1_000, 3_600_000), "a duration such as 10s, at least 1s", "`10s`",
           "a lease that is not renewed for this long is free", "lease_timeout"),
    Option("pollTimeout", _seconds(1, 60_000), "a duration such as 200ms, up to 60s", "`200ms`",
           "how long a trigger waits for data before it answers that there is none", "poll_timeout"),
    Option("idleCheckpointInterval", _seconds(1_000), "a duration such as 60s, at least 1s", "`60s`",
           "how often offsets of idle shards are stored", "idle_checkpoint_interval"),
    Option("region", _text, "an AWS region", "the manifest's", "AWS region", group=("aws", "region")),
    Option("endpointUrl", _url, "a URL such as http://127.0.0.1:4566", "`AWS_ENDPOINT_URL*`",
           "one endpoint for every AWS service", group=("aws", "endpoint_url")),
    Option("roleArn", _arn("iam", r"role/\S+"), "the ARN of a role", "-", "role to assume",
           group=("aws", "role_arn")),
    Option("externalId", _text, "the external id of the role's trust policy", "-", "goes with `roleArn`",
           group=("aws", "external_id")),
    Option("roleSessionName", _text, _NAME_RULE, "`kinesis-efo`", "goes with `roleArn`",
           group=("aws", "role_session_name")),
    Option("subscribe.maxRetries", _at_least(_integer, 0, 1_000), "a whole number up to 1000", "`10`",
           "faults in a row, without progress, before a query fails", group=("retry", "max_retries")),
    Option("subscribe.backoff.baseMs", _at_least(_integer, 1, 600_000), "milliseconds, 1 to 600000", "`1000`",
           "first backoff", group=("retry", "base_ms")),
    Option("subscribe.backoff.maxMs", _at_least(_integer, 1, 600_000), "milliseconds, 1 to 600000", "`10000`",
           "longest backoff", group=("retry", "max_ms")),
    Option("subscribe.backoff.factor", _factor, "a number from 1 to 10", "`1.5`",
           "growth of the backoff", group=("retry", "factor")),
    Option("metrics.export", _export, "otel, emf or none", "`otel`",
           "`otel`: OpenTelemetry, silent until an SDK is configured; `emf`: CloudWatch EMF lines; or `none`",
           group=("metrics", "export")),
    Option("metrics.emf.to", _text, "stdout, stderr or a path", "`stdout`",
           "where EMF lines go; a file is appended to, and may be rotated", group=("metrics", "emf_to")),
    Option("metrics.emf.interval", _seconds(1_000, 3_600_000), "a duration such as 60s, from 1s to 1h", "`60s`",
           "time between EMF lines", group=("metrics", "emf_interval")),
    Option("metrics.shards", _at_least(_integer, 0, 10_000), "a whole number up to 10000", "`100`",
           "most shards whose metrics are told apart, the rest is `other`; 0: per stream only", group=("metrics", "shards")),
)  # fmt: skip
_BY_LOWER_NAME: Final = {option.name.lower(): option for option in SOURCE_OPTIONS}


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1)
    hint = f"; did you mean '{_BY_LOWER_NAME[near[0]].name}'?" if near else ""
    return f"kinesis-efo has no option {name!r}{hint}"


def _contradictions(values: Mapping[str, Any], given: set[str]) -> list[str]:
    needed = ["streamArn", "consumerArn", "leaseTable"]
    direct = [name for name in needed if name.lower() in given]
    if values.get("readMode") == "polling":
        needed.remove("consumerArn")
    faults = []
    if "manifest" in given and direct:
        faults.append(
            f"kinesis-efo option 'manifest' already says what {_quoted(direct)} would say; give one or the other"
        )
    elif "manifest" not in given and (missing := [name for name in needed if name not in direct]):
        faults.append(
            "kinesis-efo needs option 'manifest'" + (f", or {_quoted(missing)} besides {_quoted(direct)}" if direct else
            " (a path, ssm:///name or s3://bucket/key), or 'streamArn', 'consumerArn' and 'leaseTable'")
        )  # fmt: skip
    if "streams" in given and "manifest" not in given and direct:
        faults.append("kinesis-efo option 'streams' selects streams of a manifest; it means nothing with 'streamArn'")
    if "consumerArn" in values and "streamArn" in values:
        stream = values["consumerArn"].split("/consumer/")[0]
        if stream != values["streamArn"]:
            faults.append(
                f"kinesis-efo option 'consumerArn' must be a consumer of 'streamArn' {values['streamArn']!r}; "
                f"got a consumer of {stream!r}"
            )
    faults += [
        f"kinesis-efo option '{name}' needs option 'roleArn'"
        for name in ("externalId", "roleSessionName")
        if name.lower() in given and "rolearn" not in given
    ]
    faults += [
        f"kinesis-efo option '{name}' needs option 'metrics.export' to be emf"
        for name in ("metrics.emf.to", "metrics.emf.interval")
        if name.lower() in given and values.get("metrics.export", "") != "emf"
    ]
    if values.get("subscribe.backoff.baseMs", 1_000) > values.get("subscribe.backoff.maxMs", 10_000):
        faults.append("kinesis-efo option 'subscribe.backoff.baseMs' must not exceed 'subscribe.backoff.maxMs'")
    return faults


def _quoted(names: list[str]) -> str:
    *rest, last = [f"'{name}'" for name in names]
    return f"{', '.join(rest)} and {last}" if rest else last


def _group(values: Mapping[str, Any], group: str) -> dict[str, Any]:
    return {
        option.group[1]: values[option.name]
        for option in SOURCE_OPTIONS
        if option.group and option.group[0] == group and option.name in values
    }


def option_table() -> str:
    """The options as a Markdown table, for the README."""
    rows = [f"| `{option.name}` | {option.default} | {option.meaning} |" for option in SOURCE_OPTIONS]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])
