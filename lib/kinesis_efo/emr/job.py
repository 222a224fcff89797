"""A job as it is submitted: its program, its Spark settings, and its fingerprint. Pure.

The default settings are for a query that runs for months, and would not suit a batch job.
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

from kinesis_efo.emr.projects import split
from kinesis_efo.emr.target import Kind
from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo.options.readers import seconds
from kinesis_efo.units import parse_size

MARKER_SETTING: Final = "spark.kinesisEfo.stopMarker"
"""S3 URI of the stop marker, for which `kinesis_efo.spark.stop_marker` looks in the driver."""
FINGERPRINT_SETTING: Final = "spark.kinesisEfo.fingerprint"
SCHEDULED_SETTING: Final = "spark.kinesisEfo.scheduled"
"""Says of a run that its job has a schedule: it ends by itself, and nobody need stop it for a change."""
SHARDS_SETTING: Final = "spark.kinesisEfo.shards"
"""Most shards that the job reads, for its memory. The user says so: asking Kinesis would make another job of the same one."""
PYTHON: Final = "./environment/bin/python"
_DAEMON: Final = "kinesis_efo.spark.daemon"
_MIB: Final = 1 << 20
_BUFFER: Final = 256 * _MIB
_LEASE_TIMEOUT_SECONDS: Final = 10.0
_HEAP_MIB: Final = 4096
# Memory of three Python processes with their libraries: the driver program, the planner that Spark keeps, and the run.
_PYTHON_MIB: Final = 832
# What a fetcher needs beside its buffer: Python, its libraries, and ranges on their way to tasks.
_FETCHER_MIB: Final = 200
# What a shard costs whoever fetches it: its feed (measured), and the 256 KiB that asyncio has for each TLS connection.
_FETCHED_SHARD_KIB: Final = 400
# What a shard costs the planner of fetchers elsewhere: where it stands, and what a fetcher has of it.
_PLANNED_SHARD_KIB: Final = 20
_SHARDS: Final = 1000
_INSTANCES: Final = 2
_CORES: Final = 4
_EXECUTOR_HEAP_MIB: Final = 8192
_SETTING: Final = re.compile(r"spark\.[A-Za-z0-9_./:-]+")
_QUOTED: Final = re.compile(r"[\s'\"\\]")
_NAME_CHARACTERS: Final = 64  # of EMR on EKS (StartJobRun), the smallest limit of the three


@dataclass(frozen=True, slots=True)
class Job:
    """A job to submit.

    Attributes:
        name: See `job_name`.
        program: S3 URI of the program.
        arguments: Arguments of the program.
        spark: Spark settings.
        role_arn: The role it runs with; None for the instance profile of a cluster.
        release_label: EMR release, on EKS.
        logs: S3 URI for its logs; None if the target decides.
        logs_key_arn: KMS key for the logs.
        fingerprint: Digest of everything that was given: equal jobs have equal fingerprints.
        token: Identifies the run: submitting the job twice with one token makes one run.
        tags: Tags of the run, where the target knows tags: a pipeline may stop the runs of its own environment only.
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
    tags: Mapping[str, str] = field(default_factory=dict)

    def spark_submit(self) -> list[str]:
        """The settings as arguments of `spark-submit`."""
        return _arguments(self.spark)

    def spark_submit_text(self) -> str:
        """The settings that EMR can take as one string."""
        # EMR does not document how it splits the string.
        return " ".join(_arguments({name: value for name, value in self.spark.items() if not _QUOTED.search(value)}))

    def spark_defaults(self) -> dict[str, Any]:
        """The other settings, as a part of `configurationOverrides`."""
        others = {name: value for name, value in self.spark.items() if _QUOTED.search(value)}
        return (
            {"applicationConfiguration": [{"classification": "spark-defaults", "properties": others}]} if others else {}
        )


def _arguments(spark: Mapping[str, str]) -> list[str]:
    return [part for name, value in sorted(spark.items()) for part in ("--conf", f"{name}={value}")]


def job_name(environment: str, application: str) -> str:
    """The name of every run of an application. Its runs are found by it.

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
    """SHA-256 of values that JSON can express, in hex."""
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
    """The lease timeout of a job with these arguments, seconds.

    Raises:
        ConfigurationError: The option's value is not a duration, or does not say its unit.
    """
    text = source_option(arguments, "leaseTimeout")
    try:
        return seconds(text) if text else _LEASE_TIMEOUT_SECONDS
    except ValueError:
        raise ConfigurationError(f"option leaseTimeout must be a duration such as 10s; got {text!r}") from None


def spark_settings(kind: Kind, archive: str, arguments: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The Spark settings of a job.

    Args:
        kind: Where it runs.
        archive: S3 URI of the environment archive.
        arguments: Arguments of the program; `bufferBytes` and `fetchers` among them determine the memory.
        given: The user's settings, which override the defaults. `spark.kinesisEfo.shards` among them tells for how many shards the
            memory should be enough.

    Raises:
        ConfigurationError: A setting cannot be passed to EMR, or is one that this library sets, or fetchers leave no core for
            micro-batches.
    """
    settings = {
        # A speculative attempt at a range also writes it again, unless the sink is transactional.
        "spark.speculation": "false",
        # It would remove executors that are idle between micro-batches, although the next one needs them.
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
        # The first record on a new Python worker is there 0.7 s earlier.
        "spark.python.daemon.module": _DAEMON,
        # Failures of executors are counted per hour, not since the start.
        "spark.executor.failuresValidityInterval": "1h",
        **_environment(kind, archive),
        **_long_running(kind),
    }
    for name, value in given.items():
        if name in (MARKER_SETTING, FINGERPRINT_SETTING) or name in _environment(kind, archive):
            raise UsageError(f"--conf {name} is set by kinesis-efo itself: leave it out")
        if not _SETTING.fullmatch(name):
            raise UsageError(f"--conf {name!r}: the name of a setting must match {_SETTING.pattern}; correct it")
        if not value.strip():
            raise UsageError(f"--conf {name}={value}: EMR takes no empty value; leave the setting out")
        settings[name] = value
    return settings


def refuse_braces(arguments: Iterable[str]) -> None:
    """Refuse what YARN would change in the command of a driver: it makes `$` of `{{`, and takes `}}` away.

    Source: Hadoop's `ContainerLaunch.expandEnvironment`.

    Raises:
        UsageError: An argument or a setting has such braces; the message names the first.
    """
    for each in arguments:
        if found := re.search(r"\{\{|\}\}|<CPS>", each):
            raise UsageError(
                f"{each!r}: YARN, which starts the job on a cluster, replaces {found[0]!r}; in JSON, write a space between the braces"
            )


def _overhead_mib(arguments: Sequence[str], given: Mapping[str, str]) -> int:
    """Memory of the driver beside its heap, MiB: a tenth of the heap for the JVM, Python, and what it fetches itself.

    That is one and a half buffers, for ranges on their way to tasks, and every shard.
    """
    heap = _heap_mib(given, "spark.driver.memory", _HEAP_MIB)
    shards = _count(given, SHARDS_SETTING, _SHARDS)
    if _fetchers(arguments):
        return _PYTHON_MIB + heap // 10 + shards * _PLANNED_SHARD_KIB // 1024
    return _PYTHON_MIB + heap // 10 + _buffer(arguments) * 3 // 2 // _MIB + shards * _FETCHED_SHARD_KIB // 1024


def _fetchers(arguments: Sequence[str]) -> int:
    """The number of fetchers on executors; 0 where the driver fetches."""
    text = source_option(arguments, "fetchers")
    return int(text) if text and text.isdecimal() else 0


def _for_fetchers(arguments: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """What executors need that run fetchers: memory beside the heap for as many as one may have to take.

    Where an executor is lost, the others take its fetchers; more than one in addition does not come at a time.
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
    # Each reads its part of the shards; that of one that is lost, the others share.
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
        # Spark reads a bare number as MiB here.
        return parse_size(f"{text}m" if text.isdigit() else text) // _MIB
    except ValueError:
        raise UsageError(f"--conf {name} must be a size such as 4g; got {text!r}") from None


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--conf {name} must be a whole number, at least 1; got {text!r}")
    return int(text)


def _environment(kind: Kind, archive: str) -> dict[str, str]:
    """Settings that unpack the archive beside driver and executors, and make its launcher the Python that Spark starts.

    Sources: Spark "Python Package Management"; EMR Serverless "Using Python libraries"; for Spark on Kubernetes the driver's
    variables follow from the settings (`DriverCommandFeatureStep`).
    """
    settings = {"spark.archives": f"{archive}#environment", "spark.executorEnv.PYSPARK_PYTHON": PYTHON}
    if kind is Kind.EKS:
        return {**settings, "spark.pyspark.python": PYTHON, "spark.pyspark.driver.python": PYTHON}
    prefix = {Kind.CLUSTER: "spark.yarn.appMasterEnv", Kind.SERVERLESS: "spark.emr-serverless.driverEnv"}[kind]
    return {**settings, f"{prefix}.PYSPARK_PYTHON": PYTHON, f"{prefix}.PYSPARK_DRIVER_PYTHON": PYTHON}


def _long_running(kind: Kind) -> dict[str, str]:
    """Settings for long runs: event logs that rotate, and failed attempts that are counted per hour.

    Sources: Spark "Running on YARN", "Monitoring"; EMR on EKS "Using Spark event log rotation". EMR Serverless needs none.
    """
    match kind:
        case Kind.CLUSTER:
            return {
                "spark.eventLog.rolling.enabled": "true",
                "spark.eventLog.rolling.maxFileSize": "128m",
                "spark.yarn.maxAppAttempts": "4",
                "spark.yarn.am.attemptFailuresValidityInterval": "1h",
            }
        case Kind.EKS:
            return {"spark.eventLog.rotation.enabled": "true", "spark.eventLog.rotation.maxFilesToRetain": "5"}
        case Kind.SERVERLESS:
            return {}


def read_settings(parts: Iterable[str]) -> dict[str, str]:
    """Read the settings in the arguments of `spark-submit`.

    >>> read_settings(["spark-submit", "--conf", "spark.a=b=c", "s3://x/y.py"])
    {'spark.a': 'b=c'}
    """
    pairs = (value.partition("=") for flag, value in pairwise(parts) if flag == "--conf")
    return {name: value for name, _, value in pairs}


def read_settings_text(text: str) -> dict[str, str]:
    """Read the settings in `sparkSubmitParameters`; none if it is malformed, as another tool may have written it."""
    try:
        return read_settings(shlex.split(text))
    except ValueError:
        return {}
