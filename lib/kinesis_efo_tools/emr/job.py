"""Defines the job to submit: its program, its Spark settings, and its fingerprint. No I/O.

The default settings are for a query that runs for months, not for a batch job.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo.options.readers import duration
from kinesis_efo.units import parse_size
from kinesis_efo_tools.emr.projects import split
from kinesis_efo_tools.emr.target import TargetKind

MARKER_SETTING: Final = "spark.kinesisEfo.stopMarker"
"""S3 URI of the stop marker, which `kinesis_efo.driver.graceful` polls in the driver."""
FINGERPRINT_SETTING: Final = "spark.kinesisEfo.fingerprint"
SCHEDULED_SETTING: Final = "spark.kinesisEfo.scheduled"
"""Marks the runs of a job with a schedule. They end by themselves, so they are not stopped when the job changes."""
SHARDS_SETTING: Final = "spark.kinesisEfo.shards"
"""Maximum number of shards for which the job gets memory. A user setting, so that a reshard does not change the fingerprint."""
PYTHON: Final = "./environment/bin/python"
_DAEMON: Final = "kinesis_efo.spark.daemon"
_MIB: Final = 1 << 20
_BUFFER: Final = 256 * _MIB
_LEASE_TIMEOUT_SECONDS: Final = 10.0
_HEAP_MIB: Final = 4096
# Memory of three Python processes with their libraries: the driver program, the planner and the run.
_PYTHON_MIB: Final = 832
# Memory of a fetcher in addition to its buffer: Python, its libraries, and ranges that are being sent to tasks.
_FETCHER_MIB: Final = 200
# Memory per shard in the process that fetches it: its `ShardFeed` (measured), and asyncio's 256 KiB per TLS connection.
_FETCHED_SHARD_KIB: Final = 400
# Memory per shard in the driver if fetchers run on executors: the shard's position and its fetcher's state.
_PLANNED_SHARD_KIB: Final = 20
_SHARDS: Final = 1000
_INSTANCES: Final = 2
_CORES: Final = 4
_EXECUTOR_HEAP_MIB: Final = 8192
_SETTING: Final = re.compile(r"spark\.[A-Za-z0-9_./:-]+")
_QUOTED: Final = re.compile(r"[\s'\"\\]")
_NAME_CHARACTERS: Final = 64  # EMR on EKS limits names to this length (StartJobRun); other targets allow more


@dataclass(frozen=True, slots=True)
class Job:
    """A job to submit.

    Attributes:
        name: Name of the runs (`job_name`).
        program: S3 URI of the program.
        arguments: Arguments of the program.
        spark: Spark settings.
        role_arn: Execution role; None for the instance profile of a cluster.
        release_label: EMR release; used only on EKS.
        logs: S3 URI for the logs; None for the target's own location.
        logs_key_arn: KMS key for the logs.
        fingerprint: Digest of the whole request; equal jobs have equal fingerprints.
        token: Identifies the run; submitting the job twice with the same token starts only one run.
        archive: S3 URI of the environment archive, for targets whose Spark settings do not contain it.
        tags: Tags of the run, if the target supports tags. With them, IAM policies limit a pipeline to runs of its environment.
    """

    name: str
    program: str
    arguments: Sequence[str]
    spark: Mapping[str, str]
    role_arn: str | None
    release_label: str
    logs: str | None
    logs_key_arn: str | None
    fingerprint: str
    token: str
    archive: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def spark_submit(self) -> list[str]:
        """Return the settings as arguments of `spark-submit`."""
        return _arguments(self.spark)

    def spark_submit_text(self) -> str:
        """Return the settings as one string of `spark-submit` arguments, without settings that need quotes (see `spark_defaults`)."""
        # Omit settings that need quotes, because EMR does not document how it splits the string.
        return " ".join(_arguments({name: value for name, value in self.spark.items() if not _QUOTED.search(value)}))

    def spark_defaults(self) -> dict[str, Any]:
        """Return the settings that need quotes, as a part of `configurationOverrides`."""
        others = {name: value for name, value in self.spark.items() if _QUOTED.search(value)}
        return (
            {"applicationConfiguration": [{"classification": "spark-defaults", "properties": others}]} if others else {}
        )


def _arguments(spark: Mapping[str, str]) -> list[str]:
    return [part for name, value in sorted(spark.items()) for part in ("--conf", f"{name}={value}")]


def job_name(environment: str, application: str) -> str:
    """Return the name of all runs of an application.

    >>> job_name("dev", "lake")
    'kinesis-efo-dev-lake'
    >>> job_name("shop.dev", "lake")
    'shop-dev-lake'
    """
    name = "-".join((*split(environment), application))
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def digest(*parts: Any) -> str:
    """Return the SHA-256 of some JSON values, in hex."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def source_option(arguments: Sequence[str], name: str) -> str | None:
    """Find an option of the source, such as `bufferBytes=512m`, in the arguments of a program.

    >>> source_option(["--output", "s3://lake", "--option", "bufferbytes=1g"], "bufferBytes")
    '1g'
    """
    for argument in arguments:
        key, equals, value = argument.rpartition("--option=")[2].partition("=")
        if equals and key.lower() == name.lower():
            return value
    return None


def lease_timeout(arguments: Sequence[str]) -> float:
    """Return the lease timeout, in seconds, of a job with these arguments."""
    text = source_option(arguments, "leaseTimeout")
    try:
        return duration(1)(text) if text else _LEASE_TIMEOUT_SECONDS
    except ValueError:
        raise ConfigurationError(f"option leaseTimeout must be a duration such as 10s; got {text!r}") from None


def spark_settings(
    kind: TargetKind, archive: str, arguments: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the Spark settings of a job.

    `given` has the user's settings, which override the defaults. The memory settings depend on `bufferBytes` and `fetchers` in `arguments`,
    and on `spark.kinesisEfo.shards` (the maximum number of shards) in `given`. Raises ConfigurationError if a setting cannot be passed to
    EMR or is reserved for this library, or if the fetchers leave no core for micro-batches.
    """
    settings = {} if kind is TargetKind.GLUE else _settings(kind, archive, arguments, given)
    for name, value in given.items():
        if name in (MARKER_SETTING, FINGERPRINT_SETTING) or name in _environment(kind, archive):
            raise UsageError(f"--conf {name} is set by kinesis-efo itself: leave it out")
        if not _SETTING.fullmatch(name):
            raise UsageError(f"--conf {name!r}: the name of a setting must match {_SETTING.pattern}; correct it")
        if not value.strip():
            raise UsageError(f"--conf {name}={value}: EMR takes no empty value; leave the setting out")
        settings[name] = value
    return settings


def _settings(kind: TargetKind, archive: str, arguments: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the default settings of jobs on EMR. Glue jobs use Glue's defaults instead."""
    return {
        # A speculative attempt would write its range a second time, unless the sink is transactional.
        "spark.speculation": "false",
        # Dynamic allocation would remove executors that are idle between micro-batches, although the next micro-batch needs them.
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.instances": f"{_INSTANCES}",
        "spark.executor.cores": f"{_CORES}",
        "spark.executor.memory": f"{_EXECUTOR_HEAP_MIB}m",
        **_for_fetchers(arguments, given),
        "spark.driver.cores": "2",
        "spark.driver.memory": f"{_HEAP_MIB}m",
        "spark.driver.memoryOverhead": f"{_overhead_mib(arguments, given)}m",
        # At INFO, every micro-batch logs a dozen lines.
        "spark.log.level": "WARN",
        # Custom daemon module: a new Python worker reads its first record 0.7 s earlier.
        "spark.python.daemon.module": _DAEMON,
        # Only executor failures of the last hour count, so that a run of months does not reach the limit.
        "spark.executor.failuresValidityInterval": "1h",
        **_environment(kind, archive),
        **_long_running(kind),
    }


def refuse_braces(arguments: Iterable[str]) -> None:
    """Raise UsageError for braces that YARN would change in the driver's command: it replaces `{{` with `$`, and removes `}}`.

    Source: Hadoop's `ContainerLaunch.expandEnvironment`.
    """
    for each in arguments:
        if found := re.search(r"\{\{|\}\}|<CPS>", each):
            raise UsageError(
                f"{each!r}: YARN, which starts the job on a cluster, replaces {found[0]!r}; in JSON, write a space between the braces"
            )


def _overhead_mib(arguments: Sequence[str], given: Mapping[str, str]) -> int:
    """Return the driver's memory overhead in MiB: a tenth of the heap for the JVM, plus memory for Python processes and for each shard.

    If the driver fetches, adds one and a half times the buffer: ranges that are being sent to tasks need up to half a buffer more.
    """
    heap = _heap_mib(given, "spark.driver.memory", _HEAP_MIB)
    shards = _count(given, SHARDS_SETTING, _SHARDS)
    if _fetchers(arguments):
        return _PYTHON_MIB + heap // 10 + shards * _PLANNED_SHARD_KIB // 1024
    return _PYTHON_MIB + heap // 10 + _buffer(arguments) * 3 // 2 // _MIB + shards * _FETCHED_SHARD_KIB // 1024


def _fetchers(arguments: Sequence[str]) -> int:
    """Return the number of fetchers on executors; 0 if the driver fetches."""
    text = source_option(arguments, "fetchers")
    return int(text) if text and text.isdecimal() else 0


def _for_fetchers(arguments: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the memory overhead setting of executors that run fetchers, sized for the executor with the most fetchers.

    The size includes a spare fetcher: if an executor is lost, each of the others takes over at most one of its fetchers.
    """
    fetchers = _fetchers(arguments)
    if not fetchers:
        return {}
    instances = _count(given, "spark.executor.instances", _INSTANCES)
    cores = _count(given, "spark.executor.cores", _CORES)
    if fetchers >= instances * cores:
        raise ConfigurationError(
            f"option fetchers is {fetchers}, and {instances} executors with {cores} cores have {instances * cores} cores: each fetcher "
            "keeps one, and micro-batches need at least one more. Take fewer fetchers, or more of --conf spark.executor.instances"
        )
    most = min(fetchers, cores, -(-fetchers // instances) + 1)
    heap = _heap_mib(given, "spark.executor.memory", _EXECUTOR_HEAP_MIB)
    # Divide the shards by the number of fetchers minus one: after the loss of a fetcher, the others take over its shards.
    shards = -(-_count(given, SHARDS_SETTING, _SHARDS) // max(1, fetchers - 1))
    each = _buffer(arguments) // _MIB + _FETCHER_MIB + shards * _FETCHED_SHARD_KIB // 1024
    overhead = _PYTHON_MIB + heap // 10 + most * each
    return {"spark.executor.memoryOverhead": f"{overhead}m"}


def _buffer(arguments: Sequence[str]) -> int:
    text = source_option(arguments, "bufferBytes")
    try:
        return parse_size(text) if text else _BUFFER
    except ValueError:
        raise ConfigurationError(f"option bufferBytes must be a size such as 256m; got {text!r}") from None


def _heap_mib(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, f"{default}m")
    try:
        # For these settings, Spark reads a number without a unit as MiB.
        return parse_size(f"{text}m" if text.isdigit() else text) // _MIB
    except ValueError:
        raise UsageError(f"--conf {name} must be a size such as 4g; got {text!r}") from None


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--conf {name} must be a whole number, at least 1; got {text!r}")
    return int(text)


def _environment(kind: TargetKind, archive: str) -> dict[str, str]:
    """Return the settings that unpack the archive for the driver and the executors, and make its launcher Spark's Python interpreter.

    Sources: Spark "Python Package Management"; EMR Serverless "Using Python libraries"; on Kubernetes, Spark sets the driver's
    environment variables from the settings (`DriverCommandFeatureStep`).
    """
    if kind is TargetKind.GLUE:
        return {}
    settings = {"spark.archives": f"{archive}#environment", "spark.executorEnv.PYSPARK_PYTHON": PYTHON}
    if kind is TargetKind.EKS:
        return {**settings, "spark.pyspark.python": PYTHON, "spark.pyspark.driver.python": PYTHON}
    prefix = {TargetKind.CLUSTER: "spark.yarn.appMasterEnv", TargetKind.SERVERLESS: "spark.emr-serverless.driverEnv"}[
        kind
    ]
    return {**settings, f"{prefix}.PYSPARK_PYTHON": PYTHON, f"{prefix}.PYSPARK_DRIVER_PYTHON": PYTHON}


def _long_running(kind: TargetKind) -> dict[str, str]:
    """Return the settings for runs that last for months: event logs are rotated, and only failed attempts of the last hour count.

    Sources: Spark "Running on YARN", "Monitoring"; EMR on EKS "Using Spark event log rotation". EMR Serverless needs no such settings.
    """
    match kind:
        case TargetKind.CLUSTER:
            return {
                "spark.eventLog.rolling.enabled": "true",
                "spark.eventLog.rolling.maxFileSize": "128m",
                "spark.yarn.maxAppAttempts": "4",
                "spark.yarn.am.attemptFailuresValidityInterval": "1h",
            }
        case TargetKind.EKS:
            return {"spark.eventLog.rotation.enabled": "true", "spark.eventLog.rotation.maxFilesToRetain": "5"}
        case _:
            return {}


def read_settings(parts: Iterable[str]) -> dict[str, str]:
    """Read the settings in the arguments of `spark-submit`.

    >>> read_settings(["spark-submit", "--conf", "spark.a=b=c", "s3://x/y.py"])
    {'spark.a': 'b=c'}
    """
    pairs = (value.partition("=") for flag, value in pairwise(parts) if flag == "--conf")
    return {name: value for name, _, value in pairs}


def read_settings_text(text: str) -> dict[str, str]:
    """Parse the Spark settings in `sparkSubmitParameters` of an EMR job. Returns {} if another tool has written a malformed string."""
    try:
        return read_settings(shlex.split(text))
    except ValueError:
        return {}
