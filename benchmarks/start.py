"""From `spark-submit` to the first micro-batch in the archive, at a first start and after SIGKILL.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from benchmarks.figures import Figure, Goal
from benchmarks.machine import CREDENTIALS, ROOT, AwsProcess
from demo.output import committed
from kinesis_efo.local import LocalAws, Settings
from tests.support.world import World, make_world

SHARDS: Final = 4
RUNS: Final = 3
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
    first: list[float] = []
    again: list[float] = []
    with AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws, tempfile.TemporaryDirectory() as place:
        for turn in range(RUNS):
            directory = Path(place, str(turn))
            directory.mkdir()
            program = directory / "rate.py"
            program.write_text(_RATE)
            with _submitted(directory / "rate.log", aws, program, directory / "rates", directory / "rates-checkpoint"):
                rate.append(_seconds_until_more(directory / "rates", 0))
            world = make_world(aws, directory, {"orders": SHARDS})
            lake = directory / "lake"
            for found in (first, again):
                _put(world)
                archived = len(list(committed(lake)))
                with _archiving(world, directory, lake):
                    found.append(_seconds_until_more(lake, archived))
                    time.sleep(_READING_SECONDS)
    baseline = Figure("spark-submit, local[2]", "Spark's rate source", "s", tuple(rate))
    at_most = Goal(12, least=False), Goal(15, least=False)
    return [
        baseline,
        Figure.against(baseline, "spark-submit, local[2]", "four shards", first, at_most[0]),
        Figure.against(baseline, "spark-submit, local[2]", "four shards, after SIGKILL", again, at_most[1]),
    ]


def _put(world: World) -> None:
    world.put((f"key-{number}", bytes(200)) for number in range(100 * SHARDS))


def _archiving(world: World, directory: Path, lake: Path) -> contextlib.AbstractContextManager[None]:
    places = ("--manifest", world.manifest, "--output", lake, "--checkpoint", directory / "lake-checkpoint")
    begin = ("--starting-position", "TRIM_HORIZON", "--trigger", "0 seconds")
    return _submitted(directory / "lake.log", world.aws, ROOT / "jobs" / "archive.py", *places, *begin)


@contextlib.contextmanager
def _submitted(log: Path, aws: LocalAws, program: Path, *arguments: str | Path) -> Iterator[None]:
    """Run a program by `spark-submit`, and kill it with all its processes in the end."""
    environment = {**os.environ, **CREDENTIALS, **aws.environment, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
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
        yield
        if process.poll() is not None:
            raise RuntimeError(f"{program.name} ended by itself:\n{log.read_text()[-4000:]}")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            for each in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()


def _seconds_until_more(output: Path, before: int) -> float:
    """Seconds from now until more files are committed than before."""
    began = time.monotonic()
    while len(list(committed(output))) <= before:
        if time.monotonic() - began > _PATIENCE:
            raise RuntimeError(f"nothing was archived within {_PATIENCE:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began
