"""`kinesis_efo.low_latency`: Spark settings for short micro-batches, depending on where the checkpoints are stored.

docs/how-to/latency.md describes the measured effect and the cost of each setting.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from kinesis_efo.errors import ConfigurationError

MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
DAEMON: Final = "spark.python.daemon.module"
_DAEMON: Final = "kinesis_efo.spark.daemon"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming."
_FILE: Final = "file"


@dataclass(frozen=True, slots=True)
class LowLatency:
    """The result of `low_latency`. `print` shows it line by line.

    Attributes:
        settings: Settings that were changed in the session, for queries that are started from now on, or in the session builder.
        at_start: Settings that the running session lacks and that can only be set when a session starts.
        left: Settings that were not changed, with the reason for each.
    """

    settings: dict[str, str] = field(default_factory=dict)
    at_start: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"set: {name}={value}" for name, value in self.settings.items()]
        lines += [f"give to spark-submit: --conf {name}={value}" for name, value in self.at_start.items()]
        lines += [f"left: {name}, {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def low_latency(spark: SparkSession | SparkSession.Builder, *, checkpoint: str | os.PathLike[str]) -> LowLatency:
    """Shorten the micro-batches of a session's queries. Call it before queries are started. Calling it again is harmless.

    Settings that already have a value are not changed, nor are settings that would not help or would make checkpoints less safe. The
    result contains the reasons.

    Args:
        spark: The builder of a classic session, before it creates the session; later settings of the builder override these. Or a running
            session, classic or Spark Connect, in which some settings cannot be changed anymore.
        checkpoint: The `checkpointLocation` of the queries: what is fast on local disks is not safe on an object store.

    Returns:
        The changed settings and, if the session is already running, the settings to pass to `spark-submit`.

    Raises:
        ConfigurationError: `checkpoint` is empty.

    ```python
    builder = SparkSession.builder.appName("orders")
    print(kinesis_efo.low_latency(builder, checkpoint="file:///checkpoints/orders"))
    spark = builder.getOrCreate()
    ```
    """
    place = os.fspath(checkpoint).strip()
    if not place:
        raise ConfigurationError("kinesis_efo.low_latency: checkpoint is empty; set the queries' checkpointLocation")
    done = LowLatency()
    if hasattr(spark, "config"):
        builder = spark
        try:
            spark = SparkSession.active()  # the builder would return this session
        except PySparkRuntimeError:
            done.settings[DAEMON] = _DAEMON
            _choose_manager(None, pyspark.__version__, urlsplit(place).scheme.lower(), place, done)
            for name, value in done.settings.items():
                builder.config(name, value)
            return done
    _choose_manager(spark.conf.get(MANAGER, None), spark.version, _scheme(spark, place), place, done)
    if MANAGER in done.settings:
        spark.conf.set(MANAGER, done.settings[MANAGER])
    if spark.conf.get(DAEMON, None) in (None, ""):
        done.at_start[DAEMON] = _DAEMON
    elif spark.conf.get(DAEMON, None) != _DAEMON:
        done.left[DAEMON] = f"it is {spark.conf.get(DAEMON, None)}"
    return done


def _choose_manager(present: str | None, version: str, scheme: str | None, place: str, done: LowLatency) -> None:
    """For checkpoints on local disks, select Spark's older checkpoint file manager, because the default one starts a process per file."""
    fast = manager_class(version)
    if present not in (None, "", fast):
        done.left[MANAGER] = f"it is {present}"
    elif not scheme:
        done.left[MANAGER] = f"{place!r} has no scheme; prefix it with file:// if it is on local disks"
    elif scheme != _FILE:
        done.left[MANAGER] = f"it is for local disks, and {place!r} is on {scheme}"
    else:
        done.settings[MANAGER] = fast


def manager_class(version: str) -> str:
    """Return the class name of the checkpoint file manager that does not start processes. It depends on the Spark version."""
    major, minor = (int(part) for part in re.findall(r"\d+", version)[:2])
    package = _STREAMING if (major, minor) < (4, 1) else f"{_STREAMING}checkpointing."
    return f"{package}FileSystemBasedCheckpointFileManager"


def _scheme(spark: SparkSession, place: str) -> str | None:
    """Return the scheme of a path's file system; None if it depends on a Spark Connect server's default file system."""
    if scheme := urlsplit(place).scheme:
        return scheme.lower()
    if not isinstance(spark, SparkSession):
        return None
    context: Any = spark.sparkContext
    default: str = context._jsc.hadoopConfiguration().get("fs.defaultFS", f"{_FILE}:///")
    return urlsplit(default).scheme.lower()
