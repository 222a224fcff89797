"""A job as it is submitted: what runs, with which settings of Spark, and what identifies it. Pure; relies on units.

The defaults are those of a query that runs for months; each is the setting that a batch job would not want.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from kinesis_efo.emr.target import Kind
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.units import parse_duration, parse_size

MARKER_SETTING: Final = "spark.kinesisEfo.stopMarker"
"""Read by `kinesis_efo.spark.stop_marker` in the driver."""
FINGERPRINT_SETTING: Final = "spark.kinesisEfo.fingerprint"
PYTHON: Final = "./environment/bin/python"
_MIB: Final = 1 << 20
_BUFFER: Final = 256 * _MIB
_LEASE_TIMEOUT_MS: Final = 10_000
_HEAP_MIB: Final = 4096
# Python's own memory, of the driver program and of the process that Spark keeps for the reader, with their libraries.
_PYTHON_MIB: Final = 768
_NAME_CHARACTERS: Final = 64  # API_StartJobRun of EMR on EKS; the shortest of the three


@dataclass(frozen=True, slots=True)
class Job:
    """What is submitted.

    Attributes:
        name: See `job_name`.
        archive: S3 URI of the environment archive.
        program: S3 URI of the program.
        arguments: Of the program.
        spark: Settings of Spark.
        role_arn: The role it runs with; None for the instance profile of a cluster.
        release_label: For EMR on EKS.
        logs: S3 URI for its logs, or None where the target decides.
        logs_key_arn: Customer key for them.
        fingerprint: Of all that was given: the same job has the same one.
        token: Names this run of it: submitted twice, it is one run.
    """

    name: str
    archive: str
    program: str
    arguments: Sequence[str]
    spark: Mapping[str, str]
    role_arn: str | None
    release_label: str
    logs: str | None
    logs_key_arn: str | None
    fingerprint: str
    token: str

    def spark_submit(self) -> list[str]:
        """The settings as `spark-submit` takes them."""
        return [part for name, value in sorted(self.spark.items()) for part in ("--conf", f"{name}={value}")]

    def spark_submit_text(self) -> str:
        """The settings as one text."""
        return " ".join(self.spark_submit())


def job_name(environment: str, application: str) -> str:
    """The name of every run of an application, by which its runs are found.

    >>> job_name("dev", "lake")
    'kinesis-efo-dev-lake'
    """
    name = f"kinesis-efo-{environment}-{application}"
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def digest(*parts: Any) -> str:
    """SHA-256 of values that JSON can express, in hex."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def source_option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option of the source among the arguments of a program, as `bufferBytes=512m`.

    >>> source_option(["--output", "s3://lake", "--option", "bufferbytes=1g"], "bufferBytes")
    '1g'
    """
    for argument in arguments:
        key, equals, value = argument.rpartition("--option=")[2].partition("=")
        if equals and key.lower() == name.lower():
            return value
    return None


def lease_timeout(arguments: Sequence[str]) -> float:
    """Seconds after which a lease of a job with these arguments is free.

    Raises:
        ConfigurationError: The option is no duration.
    """
    text = source_option(arguments, "leaseTimeout")
    try:
        return (parse_duration(text) if text else _LEASE_TIMEOUT_MS) / 1000
    except ValueError:
        raise ConfigurationError(f"option leaseTimeout must be a duration such as 10s; got {text!r}") from None


def spark_settings(kind: Kind, archive: str, arguments: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark for a job.

    Args:
        kind: Where it runs.
        archive: S3 URI of the environment archive.
        arguments: Of the program; its `bufferBytes` decides over the driver's memory.
        given: What the user says; it wins.

    Raises:
        ConfigurationError: A setting cannot be passed on, or is one that this library sets.
    """
    settings = {
        # A second attempt at a range reads it again, and writes it again where the sink is no transaction.
        "spark.speculation": "false",
        # It sees idle executors between micro-batches, and takes away what the next one needs.
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.instances": "2",
        "spark.executor.cores": "4",
        "spark.executor.memory": "8g",
        "spark.driver.cores": "2",
        "spark.driver.memory": f"{_HEAP_MIB}m",
        "spark.driver.memoryOverhead": f"{_overhead_mib(arguments, given)}m",
        # Every micro-batch writes a dozen lines otherwise.
        "spark.log.level": "WARN",
        # Executors that failed last week say nothing about this one.
        "spark.executor.failuresValidityInterval": "1h",
        **_environment(kind, archive),
        **_long_running(kind),
    }
    for name, value in given.items():
        if name in (MARKER_SETTING, FINGERPRINT_SETTING) or name in _environment(kind, archive):
            raise ConfigurationError(f"--conf {name} is set by kinesis-efo itself: leave it out")
        if not name.startswith("spark."):
            raise ConfigurationError(f"--conf {name}: a setting of Spark begins with 'spark.'")
        settings[name] = value
    for name, value in settings.items():
        # EMR takes the settings as one text, and does not say how it takes it apart.
        if not value or re.search(r"[\s'\"\\]", value):
            raise ConfigurationError(
                f"--conf {name}={value}: white space, quotes and nothing cannot be passed on by EMR"
            )
    return settings


def _overhead_mib(arguments: Sequence[str], given: Mapping[str, str]) -> int:
    """Memory of the driver beside its heap: a tenth for the JVM, Python, and the fetcher's buffer with what handles it."""
    text, heap = source_option(arguments, "bufferBytes"), given.get("spark.driver.memory", f"{_HEAP_MIB}m")
    try:
        buffer = parse_size(text) if text else _BUFFER
    except ValueError:
        raise ConfigurationError(f"option bufferBytes must be a size such as 256m; got {text!r}") from None
    try:
        # Spark reads a bare number as MiB here.
        heap_bytes = parse_size(f"{heap}m" if heap.isdigit() else heap)
    except ValueError:
        raise ConfigurationError(f"--conf spark.driver.memory must be a size such as 4g; got {heap!r}") from None
    return _PYTHON_MIB + (heap_bytes // 10 + buffer * 3 // 2) // _MIB


def _environment(kind: Kind, archive: str) -> dict[str, str]:
    """The archive beside driver and executors, and its launcher as Python of everything that Spark starts.

    Sources: Spark "Python Package Management"; EMR Serverless "Using Python libraries"; for Spark on Kubernetes the driver's
    variables follow from the settings (`DriverCommandFeatureStep`).
    """
    settings = {"spark.archives": f"{archive}#environment", "spark.executorEnv.PYSPARK_PYTHON": PYTHON}
    if kind is Kind.EKS:
        return {**settings, "spark.pyspark.python": PYTHON, "spark.pyspark.driver.python": PYTHON}
    prefix = {Kind.CLUSTER: "spark.yarn.appMasterEnv", Kind.SERVERLESS: "spark.emr-serverless.driverEnv"}[kind]
    return {**settings, f"{prefix}.PYSPARK_PYTHON": PYTHON, f"{prefix}.PYSPARK_DRIVER_PYTHON": PYTHON}


def _long_running(kind: Kind) -> dict[str, str]:
    """Bounds on what grows as long as a query runs, and attempts that are counted per hour.

    Sources: Spark "Running on YARN", "Monitoring"; EMR on EKS "Using Spark event log rotation". EMR Serverless sees to its own.
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
    """The settings in the arguments of `spark-submit`.

    >>> read_settings(["spark-submit", "--conf", "spark.a=b=c", "s3://x/y.py"])
    {'spark.a': 'b=c'}
    """
    pairs = (value.partition("=") for flag, value in pairwise(parts) if flag == "--conf")
    return {name: value for name, _, value in pairs}


def read_settings_text(text: str) -> dict[str, str]:
    """The settings in `sparkSubmitParameters`, whoever wrote it."""
    try:
        return read_settings(shlex.split(text))
    except ValueError:
        return {}
