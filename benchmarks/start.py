"""From `spark-submit` to the first micro-batch in the archive, at a first start and after SIGKILL, and the phases on the way.

Spark's own share is measured beside it: the same from its `rate` source. Four shards, local[2], a checkpoint on local disk, no
archive of Spark's classes; the driver is killed with everything that it has started, and the lease is left behind.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import psutil

from benchmarks.figures import Figure, Goal
from benchmarks.machine import CREDENTIALS, ROOT, AwsProcess
from benchmarks.spark_processes import PLANNER, WORKERS, kinds_below
from demo.output import committed
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import World, make_world

SHARDS: Final = 4
RUNS: Final = 3
ARCHIVED: Final = "first micro-batch"
_PATIENCE: Final = 180.0
_READING_SECONDS: Final = 3.0
"""How long a run reads before it is killed."""
_RATE: Final = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
writer = rows.writeStream.format("parquet").option("path", sys.argv[1]).option("checkpointLocation", sys.argv[2])
writer.start().awaitTermination()
"""


def run() -> list[Figure]:
    """Measure."""
    rate: list[float] = []
    first: list[dict[str, float]] = []
    again: list[dict[str, float]] = []
    with AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws, tempfile.TemporaryDirectory() as place:
        for turn in range(RUNS):
            directory = Path(place, str(turn))
            directory.mkdir()
            program = directory / "rate.py"
            program.write_text(_RATE)
            rates = directory / "rates"
            with _submitted(directory / "rate.log", aws, program, rates, directory / "rates-checkpoint"):
                rate.append(_seconds_until({ARCHIVED: partial(committed, rates)})[ARCHIVED])
            world = make_world(aws, directory, {"orders": SHARDS})
            lake = directory / "lake"
            for found in (first, again):
                _put(world)
                found.append(_phases(aws, world, directory, lake))
    case = "spark-submit, local[2]"
    baseline = Figure(case, "Spark's rate source", "s", tuple(rate))
    figures = [baseline]
    for what, goal, starts in (("four shards", 12, first), ("four shards, after SIGKILL", 15, again)):
        whole = [sum(phases.values()) for phases in starts]
        figures.append(Figure.against(baseline, case, what, whole, Goal(goal, least=False)))
        figures += [Figure(f"{what}, phases", phase, "s", tuple(each[phase] for each in starts)) for phase in starts[0]]
    return figures


def _phases(aws: AwsProcess, world: World, directory: Path, lake: Path) -> dict[str, float]:
    """Seconds of each phase of a start, in their order. A phase that ends before the one in front of it took none."""
    places = directory / f"spark{time.time()}"
    archived, subscribed = len(committed(lake)), aws.subscriptions()
    with _archiving(world, directory, lake, places) as job:
        ends = _seconds_until(
            {
                "Spark": lambda: list(places.glob("**/blockmgr-*")),
                "planner process": lambda: PLANNER in kinds_below(job),
                # The lease is a part of it; what comes after it takes some hundredths.
                "subscribed": lambda: aws.subscriptions() > subscribed,
                "first worker": lambda: WORKERS in kinds_below(job),
                ARCHIVED: lambda: len(committed(lake)) > archived,
            }
        )
        time.sleep(_READING_SECONDS)
    so_far = list(accumulate(ends.values(), max, initial=0.0))
    return {phase: after - before for phase, (before, after) in zip(ends, pairwise(so_far), strict=True)}


def _put(world: World) -> None:
    world.put((f"key-{number}", bytes(200)) for number in range(100 * SHARDS))


def _archiving(
    world: World, directory: Path, lake: Path, spark: Path
) -> contextlib.AbstractContextManager[psutil.Process]:
    places = ("--manifest", world.manifest, "--output", lake, "--checkpoint", directory / "lake-checkpoint")
    begin = ("--starting-position", "TRIM_HORIZON", "--trigger", "0 seconds")
    program = ROOT / "jobs" / "archive.py"
    return _submitted(directory / "lake.log", world.aws, program, *places, *begin, spark=spark)


@contextlib.contextmanager
def _submitted(
    log: Path, aws: LocalAws, program: Path, *arguments: str | Path, spark: Path | None = None
) -> Iterator[psutil.Process]:
    """Run a program by `spark-submit`, and kill it with all its processes in the end; `spark` is where Spark has its files."""
    environment = {**os.environ, **CREDENTIALS, **aws.environment, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if spark is not None:
        environment["SPARK_LOCAL_DIRS"] = str(spark)
    for name in ("SPARK_HOME", "JAVA_TOOL_OPTIONS"):
        environment.pop(name, None)
    submit = Path(sys.executable).parent / "spark-submit"
    command = [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", program, *arguments]
    with log.open("a") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield psutil.Process(process.pid)
        if process.poll() is not None:
            raise RuntimeError(f"{program.name} ended by itself:\n{log.read_text()[-4000:]}")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            for each in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()


def _seconds_until(ends: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds from now until each of some conditions holds."""
    began = time.monotonic()
    found: dict[str, float] = {}
    while len(found) < len(ends):
        for phase, is_over in ends.items():
            if phase not in found and is_over():
                found[phase] = time.monotonic() - began
        if time.monotonic() - began > _PATIENCE:
            raise RuntimeError(f"within {_PATIENCE:.0f} s, this did not come: {', '.join(ends.keys() - found.keys())}")
        time.sleep(0.02)
    return {phase: found[phase] for phase in ends}
