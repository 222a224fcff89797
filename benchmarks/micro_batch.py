"""The CPU of a micro-batch beside one of Spark's own sources, a trigger each half second, and the memory of each process.

The query is that of the benchmark `latency`, after `low_latency` with its daemon. Spark's sources are `rate-micro-batch` with as many
rows, and, where nothing comes, files in an empty directory. CPU is that of all processes of the query.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kinesis_efo
from benchmarks import latency
from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, spark_session
from benchmarks.spark_processes import JVM, PLANNER, PROGRAM, WORKERS, SparkProcesses, taken
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import make_world

TRIGGER_SECONDS: Final = 0.5
TRIGGER: Final = f"{TRIGGER_SECONDS} seconds"
PACES: Final = {
    "no records": None,
    "100 records of 1 KB": latency.Pace(100, TRIGGER_SECONDS, 1024),
    "500 records of 2 KB": latency.Pace(500, TRIGGER_SECONDS, 2048),
}
WARM_UP_SECONDS: Final = 30.0
RUNS: Final = 3
SECONDS: Final = 10.0
KINDS: Final = (JVM, PLANNER, WORKERS, PROGRAM)


def run() -> list[Figure]:
    """Measure. MB are 2^20 bytes of proportional memory (PSS), with records."""
    figures = []
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
        spark_session(settings=latency.AT_START) as spark,
    ):
        kinesis_efo.low_latency(spark, checkpoint=place)
        jvm: Any = spark.sparkContext._jvm
        processes = SparkProcesses(jvm.java.lang.ProcessHandle.current().pid())
        sizes: list[dict[str, float]] = []
        for case, pace in PACES.items():
            directory = Path(place, case)
            directory.mkdir()
            with _sparks(spark, directory, pace) as query:
                base = _measured(query, processes, pace, [])
            with _ours(spark, aws, directory, pace) as query:
                ours = _measured(query, processes, pace, sizes)
            for what, runs in base.items():
                baseline = Figure(f"{case}, Spark's source", what, "ms", tuple(runs))
                ratio = all(runs)
                figures.append(baseline)
                figures.append(
                    Figure.against(baseline, case, what, ours[what])
                    if ratio
                    else Figure(case, what, "ms", tuple(ours[what]))
                )
    return figures + [
        Figure(case, f"memory: {kind}", "MB", tuple(each.get(kind, 0.0) / 2**20 for each in sizes[-RUNS:]))
        for kind in sizes[-1]
    ]


def _measured(
    query: StreamingQuery, processes: SparkProcesses, pace: latency.Pace | None, sizes: list[dict[str, float]]
) -> dict[str, list[float]]:
    """The CPU of a micro-batch by kind of process, ms, run by run."""
    time.sleep(WARM_UP_SECONDS)
    runs: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(RUNS):
        before, began = processes.cpu(), time.monotonic()
        time.sleep(SECONDS)
        used, triggers = taken(before, processes.cpu()), (time.monotonic() - began) / TRIGGER_SECONDS
        each = {kind: used.get(kind, 0.0) / triggers * 1000 for kind in KINDS}
        each["JVM, of this compilers"] = used.get("  compilers", 0.0) / triggers * 1000
        runs["CPU: all"].append(sum(each[kind] for kind in KINDS))
        for kind, spent in each.items():
            runs[f"CPU: {kind}"].append(spent)
        sizes.append(processes.memory())
    if (error := query.exception()) is not None:
        raise error
    progress = query.lastProgress
    if pace and (progress is None or progress["numInputRows"] != pace.records):
        raise RuntimeError(f"a micro-batch has not {pace.records} records; run it on an idle machine: {progress}")
    return runs


@contextlib.contextmanager
def _sparks(spark: SparkSession, place: Path, pace: latency.Pace | None) -> Iterator[StreamingQuery]:
    if pace is None:
        (place / "files").mkdir()
        rows = spark.readStream.format("text").load(str(place / "files")).selectExpr("cast(value as binary) as data")
    else:
        numbers = spark.readStream.format("rate-micro-batch")
        numbers = numbers.options(rowsPerBatch=str(pace.records), numPartitions=str(latency.SHARDS))
        head, rest = f"lpad(cast(value as string), {latency.TIME_BYTES}, '0')", pace.size - latency.TIME_BYTES
        rows = numbers.load().selectExpr(f"cast(concat({head}, repeat('x', {rest})) as binary) as data")
    query = latency.collected(rows, place / "of-spark", [], TRIGGER)
    try:
        yield query
    finally:
        query.stop()


@contextlib.contextmanager
def _ours(spark: SparkSession, aws: LocalAws, place: Path, pace: latency.Pace | None) -> Iterator[StreamingQuery]:
    world = make_world(aws, place, {"orders": latency.SHARDS})
    query = latency.started(spark, aws, world, place, [], TRIGGER)
    try:
        with latency.sending(aws, world, pace) if pace else contextlib.nullcontext():
            yield query
    finally:
        query.stop()
