"""Where a micro-batch's time goes: wall clock and CPU of each stretch, and the memory of each process, beside Spark's own source.

The query is that of the benchmark `latency`: 4 shards, 1,000 records/s, collected in `foreachBatch`. Spark's `rate-micro-batch` has as
many rows in each micro-batch and never waits for them; `rate` has none until a second is over. The two take turns, after
`low_latency` with its daemon.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kinesis_efo
from benchmarks import latency, profiled
from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, spark_session
from benchmarks.spark_processes import SparkProcesses, taken
from kinesis_efo.driver.graceful import stop_after_batch
from kinesis_efo.driver.listener import listen
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import make_world, wait_until

TURNS: Final = 3
WARM_UP_SECONDS: Final = 8.0
SECONDS: Final = 8.0
LOOK_SECONDS: Final = 0.5
MOST_SECONDS: Final = 60.0
"""For how much longer a measurement waits for micro-batches."""
ROWS: Final = 100
"""Rows of a micro-batch of Spark's source: what arrives in 100 ms."""
ROWS_EACH_SECOND: Final = latency.RECORDS_PER_SECOND
RATE, OURS = "Spark's rate-micro-batch", "kinesis-efo"
EACH_SECOND: Final = "1 second"
Measures = dict[tuple[str, str], float]
"""What was measured in one turn: the values by what they are of, and their unit."""


def run() -> list[Figure]:
    """Measure. Times are means of a micro-batch, MB are 2^20 bytes of proportional memory (PSS)."""
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
        spark_session(settings=latency.AT_START) as spark,
    ):
        kinesis_efo.low_latency(spark, checkpoint=place)
        often, each_second = Path(place, "often"), Path(place, "each second")
        often.mkdir()
        each_second.mkdir()
        figures = profile(spark, aws, often)
        slow = profile(spark, aws, each_second, trigger=EACH_SECOND, rows=ROWS_EACH_SECOND)
        return figures + [
            replace(figure, case=f"{figure.case}, each second")
            for figure in slow
            if figure.what == "CPU: all, of a core"
        ]


def profile(
    spark: SparkSession,
    aws: LocalAws,
    place: Path,
    turns: int = TURNS,
    warm_up: float = WARM_UP_SECONDS,
    seconds: float = SECONDS,
    trigger: str = "0 seconds",
    rows: int = ROWS,
) -> list[Figure]:
    """The figures of both sources; ours with their ratio to Spark's.

    Args:
        spark: A classic session on this machine.
        aws: Where the records are put.
        place: A directory for manifests, checkpoints and notes.
        turns: How often each source is measured.
        warm_up: Seconds before a measurement, once rows arrive.
        seconds: Seconds of a measurement.
        trigger: The queries' trigger.
        rows: Rows of a micro-batch of Spark's source.
    """
    spark.dataSource.register(profiled.ProfiledSource)
    found: dict[str, list[Measures]] = {RATE: [], OURS: []}
    for turn in range(turns):
        for name, source in ((RATE, _rate), (OURS, _ours)):
            here = place / f"{name}{turn}"
            here.mkdir()
            with source(spark, aws, here, rows) as frame, _query(frame, here, trigger) as query:
                watch = _Watch(spark, query)
                wait_until(watch.look, 120, "the first rows")
                time.sleep(warm_up)
                found[name].append(watch.measured(here / "notes", seconds))
    baselines = {figure.what: figure for figure in _figures(RATE, found[RATE])}
    figures = list(baselines.values())
    for figure in _figures(OURS, found[OURS]):
        base = baselines.get(figure.what)
        comparable = base is not None and all(base.runs)
        figures.append(Figure.against(base, OURS, figure.what, list(figure.runs)) if base and comparable else figure)
    return figures


def _figures(case: str, turns: list[Measures]) -> list[Figure]:
    """A figure of each thing that was measured, in any turn."""
    keys = dict.fromkeys(key for turn in turns for key in turn)
    return [Figure(case, what, unit, tuple(turn.get((what, unit), 0.0) for turn in turns)) for what, unit in keys]


@contextlib.contextmanager
def _rate(spark: SparkSession, _aws: LocalAws, place: Path, rows_each: int) -> Iterator[DataFrame]:
    (place / "notes").mkdir()
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=str(rows_each), numPartitions="1").load()
    rest = latency.RECORD_BYTES - latency.TIME_BYTES
    yield rows.selectExpr(
        f"cast(concat(lpad(cast(value as string), {latency.TIME_BYTES}, '0'), repeat('x', {rest})) as binary) as data"
    )


@contextlib.contextmanager
def _ours(spark: SparkSession, aws: LocalAws, place: Path, _: int) -> Iterator[DataFrame]:
    world = make_world(aws, place, {"orders": latency.SHARDS})
    notes = place / "notes"
    notes.mkdir()
    listen(spark)  # as `kinesis_efo.read_stream` does
    reader = spark.readStream.format(profiled.NAME).options(**world.options, **{profiled.DIRECTORY: str(notes)})
    with latency.sending(aws, world):
        yield reader.load()


@contextlib.contextmanager
def _query(rows: DataFrame, place: Path, trigger: str) -> Iterator[StreamingQuery]:
    def take(batch: DataFrame, _: int) -> None:
        batch.selectExpr(f"cast(substring(data, 1, {latency.TIME_BYTES}) as string) as sent").collect()

    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(processingTime=trigger).start()
    try:
        yield query
        # In the middle of `foreachBatch`, Spark would look for a reason in the error, and print its own stack overflow.
        stop_after_batch(query)
    finally:
        query.stop()


class _Watch:
    """Watches a query and its processes.

    Args:
        spark: Its session.
        query: The query.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._processes = SparkProcesses(jvm.java.lang.ProcessHandle.current().pid())
        self._query = query
        self._batches: dict[int, dict[str, Any]] = {}

    def look(self) -> bool:
        """Take note of micro-batches with rows, of which Spark keeps the last hundred; whether there are any."""
        if (error := self._query.exception()) is not None:
            raise error
        for progress in self._query.recentProgress:
            if progress["numInputRows"]:
                self._batches[progress["batchId"]] = progress
        return bool(self._batches)

    def measured(self, notes: Path, seconds: float) -> Measures:
        """The means of the micro-batches of some seconds."""
        self.look()
        known = set(self._batches)
        began, before = time.time(), self._processes.cpu()
        # Of the first that ends, a worker may have noted its part before.
        while time.time() < began + seconds or len(self._batches) < len(known) + 2:
            if time.time() > began + seconds + MOST_SECONDS:
                raise RuntimeError(
                    f"not two micro-batches with rows ended in {seconds + MOST_SECONDS} s; run it on an idle machine"
                )
            time.sleep(LOOK_SECONDS)
            self.look()
        ended, after = time.time(), self._processes.cpu()
        batches = [progress for number, progress in self._batches.items() if number not in known]
        cpu = taken(before, after)
        all_cpu = sum(used for kind, used in cpu.items() if not kind.startswith(" "))
        spent = (
            _spark_phases(batches) | _noted(notes, began, ended) | {f"CPU: {kind}": used for kind, used in cpu.items()}
        )
        rows = sum(progress["numInputRows"] for progress in batches)
        return {
            ("micro-batches", "1/s"): len(batches) / (ended - began),
            ("rows in each", ""): rows / len(batches),
            **{(what, "ms"): used / len(batches) * 1000 for what, used in spent.items()},
            ("CPU: all", "ms"): all_cpu / len(batches) * 1000,
            ("CPU: all, of a core", "%"): all_cpu / (ended - began) * 100,
            **{(f"memory: {kind}", "MB"): size / 2**20 for kind, size in self._processes.memory().items()},
        }


def _spark_phases(batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of what Spark times by itself, in all micro-batches."""
    sums: defaultdict[str, float] = defaultdict(float)
    for progress in batches:
        for phase, took in progress["durationMs"].items():
            sums[f"Spark: {phase}"] += took / 1000
    # The sum of all comes last.
    return dict(sorted(sums.items(), key=lambda pair: pair[0] == "Spark: triggerExecution"))


def _noted(notes: Path, began: float, ended: float) -> dict[str, float]:
    """Seconds of what the source's processes noted between two times."""
    sums: defaultdict[str, float] = defaultdict(float)
    for note in profiled.notes(notes):
        if began <= note.at < ended:
            sums[note.stretch] += note.wall
            if note.cpu is not None:
                sums[f"{note.stretch}, CPU"] += note.cpu
    return dict(sorted(sums.items()))
