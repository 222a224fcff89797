"""What a query takes by its trigger, with 1,000 records/s and with none, and how old its records are.

The query is that of the benchmark `latency`, after `low_latency`. What is counted is the CPU of all processes of the query.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import SparkSession

import kinesis_efo
from benchmarks import latency
from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, spark_session
from benchmarks.spark_processes import SparkProcesses, taken
from kinesis_efo.driver.graceful import stop_after_batch
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import make_world

TRIGGERS: Final = ("0 seconds", "1 second", "10 seconds")
QUIET: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("0 seconds", {}),
    ("0 seconds", {"pollTimeout": "10s"}),
    ("1 second", {}),
)
RUNS: Final = 3
SECONDS: Final = 20.0
QUIET_SECONDS: Final = 50.0
"""As long as `idleCheckpointInterval`, so that one micro-batch without rows is in each run."""
WARM_UP_SECONDS: Final = 30.0


def run() -> list[Figure]:
    """Measure."""
    figures = []
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
        spark_session() as spark,
    ):
        kinesis_efo.low_latency(spark, checkpoint=place)
        for trigger in TRIGGERS:
            figures += _measured(spark, aws, Path(place, trigger), trigger, SECONDS)
        for trigger, options in QUIET:
            case = " ".join([trigger, *(f"{name}={value}" for name, value in options.items())])
            quiet = _measured(spark, aws, Path(place, f"quiet {case}"), trigger, QUIET_SECONDS, sends=False, **options)
            figures += [Figure(f"{case}, no records", figure.what, figure.unit, figure.runs) for figure in quiet]
    return figures


def _measured(
    spark: SparkSession,
    aws: LocalAws,
    place: Path,
    trigger: str,
    seconds: float,
    *,
    sends: bool = True,
    **options: str,
) -> list[Figure]:
    place.mkdir()
    world = make_world(aws, place, {"orders": latency.SHARDS})
    jvm: Any = spark.sparkContext._jvm
    processes = SparkProcesses(jvm.java.lang.ProcessHandle.current().pid())
    seen: list[tuple[float, float]] = []
    shares, ages = [], []
    query = latency.started(spark, aws, world, place, seen, trigger, **options)
    try:
        with latency.sending(aws, world) if sends else contextlib.nullcontext():
            time.sleep(WARM_UP_SECONDS)
            for _ in range(RUNS):
                known, began, before = len(seen), time.monotonic(), processes.cpu()
                time.sleep(seconds)
                used = taken(before, processes.cpu())
                whole = sum(seconds for kind, seconds in used.items() if not kind.startswith(" "))
                shares.append(whole / (time.monotonic() - began) * 100)
                if sends:
                    ages.append(median(now - sent for sent, now in seen[known:]) * 1000)
        stop_after_batch(query)
    finally:
        query.stop()
    if (error := query.exception()) is not None:
        raise error
    share = Figure(trigger, "CPU: all, of a core", "%", tuple(shares))
    return [share, Figure(trigger, "age, p50", "ms", tuple(ages))] if sends else [share]
