"""The CPU of a micro-batch without records and of one with 100 records of 1 KB, a trigger each half second, and the memory of each process.

The query is that of the benchmark `latency`, after `low_latency`. CPU is that of all processes of the query.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import kinesis_efo
from benchmarks import latency
from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, spark_session
from benchmarks.spark_processes import JVM, PLANNER, WORKERS, SparkProcesses, taken
from kinesis_efo_local import Settings
from tests.support.world import make_world

TRIGGER_SECONDS: Final = 0.5
PACES: Final = {"no records": None, "100 records of 1 KB": latency.Pace(100, TRIGGER_SECONDS, 1024)}
WARM_UP_SECONDS: Final = 15.0
RUNS: Final = 3
SECONDS: Final = 15.0


def run() -> list[Figure]:
    """Measure. MB are 2^20 bytes of proportional memory (PSS), with records."""
    figures = []
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
        spark_session() as spark,
    ):
        kinesis_efo.low_latency(spark, checkpoint=place)
        jvm: Any = spark.sparkContext._jvm
        processes = SparkProcesses(jvm.java.lang.ProcessHandle.current().pid())
        sizes = []
        for case, pace in PACES.items():
            directory = Path(place, case)
            directory.mkdir()
            world = make_world(aws, directory, {"orders": latency.SHARDS})
            query = latency.started(spark, aws, world, directory, [], f"{TRIGGER_SECONDS} seconds")
            runs = []
            try:
                with latency.sending(aws, world, pace) if pace else contextlib.nullcontext():
                    time.sleep(WARM_UP_SECONDS)
                    for _ in range(RUNS):
                        before, began = processes.cpu(), time.monotonic()
                        time.sleep(SECONDS)
                        used, triggers = taken(before, processes.cpu()), (time.monotonic() - began) / TRIGGER_SECONDS
                        runs.append({kind: used.get(kind, 0.0) / triggers * 1000 for kind in (JVM, PLANNER, WORKERS)})
                        sizes.append(processes.memory())
                    progress = query.lastProgress
            finally:
                query.stop()
            if (error := query.exception()) is not None:
                raise error
            if pace and (progress is None or progress["numInputRows"] != pace.records):
                raise RuntimeError(
                    f"a micro-batch has not {pace.records} records; run it on an idle machine: {progress}"
                )
            figures.append(Figure(case, "CPU: all", "ms", tuple(sum(each.values()) for each in runs)))
            figures += [Figure(case, f"CPU: {kind}", "ms", tuple(each[kind] for each in runs)) for kind in runs[0]]
    return figures + [
        Figure(case, f"memory: {kind}", "MB", tuple(each.get(kind, 0.0) / 2**20 for each in sizes[-RUNS:]))
        for kind in sizes[-1]
    ]
