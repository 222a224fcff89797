"""The age of a record when the user's `foreachBatch` function has it, at 1,000 records/s.

A separate process puts ten records every 10 ms, each with its time of sending. Spark runs with the defaults, a 0-second trigger
and a checkpoint on local disk, and again with what `low_latency` sets and asks for, then with more shards, and with a second query that
shares the run. The first half minute of each query does not count: the JVM compiles what runs often.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import kinesis_efo
from benchmarks.figures import Figure, Goal
from benchmarks.machine import CREDENTIALS, AwsProcess, spark_session
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import World, make_world, wait_until

SHARDS: Final = 4
RECORDS_PER_SECOND: Final = 1_000
RECORD_BYTES: Final = 200
TIME_BYTES: Final = 17
"""Bytes at the beginning of a record that say when it was sent."""
MANY_SHARDS: Final = 64
AT_START: Final = {"spark.python.daemon.module": "kinesis_efo.spark.daemon"}
"""What `low_latency` asks to give to `spark-submit`."""
CASES: Final[tuple[tuple[Any, ...], ...]] = (
    ("Spark's defaults", SHARDS, (150, 300)),
    ("low_latency", SHARDS, (60, 150)),
    (f"low_latency, {MANY_SHARDS} shards", MANY_SHARDS, (100, 250)),
    ("low_latency, two queries", SHARDS, (), "the first one's", "the second one's"),
)
"""Name, shards, the goals of p50 and p99, and the names of queries if there are several."""
WARM_UP_SECONDS: Final = 30.0
RUNS: Final = 3
RUN_SECONDS: Final = 10.0


class Pace(NamedTuple):
    """What is put into a stream.

    Attributes:
        records: How many at once.
        seconds: How often.
        size: Bytes of one.
    """

    records: int
    seconds: float
    size: int


PACE: Final = Pace(10, 10 / RECORDS_PER_SECOND, RECORD_BYTES)


def run() -> list[Figure]:
    """Measure."""
    figures = []
    with AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws, tempfile.TemporaryDirectory() as place:
        for case, shards, goals, *queries in CASES:
            tuned, directory = case.startswith("low_latency"), Path(place, case)
            with spark_session(settings=AT_START if tuned else {}) as spark:
                if tuned:
                    kinesis_efo.low_latency(spark, checkpoint=directory)
                figures += _measured(spark, aws, directory, case, shards, goals, queries or ("",))
    return figures


def _measured(
    spark: SparkSession,
    aws: LocalAws,
    place: Path,
    case: str,
    shards: int,
    goals: Sequence[float],
    queries: Sequence[str],
) -> list[Figure]:
    place.mkdir()
    world = make_world(aws, place, {"orders": shards})
    p50, p99 = [Goal(goal, least=False) for goal in goals] or (None, None)
    figures = []
    for name, windows in zip(queries, _windows(spark, aws, world, place, len(queries)), strict=True):
        medians, tails = zip(
            *((cuts[49], cuts[98]) for cuts in (quantiles(ages, n=100) for ages in windows)), strict=True
        )
        figures.append(Figure(case, f"p50 {name}".strip(), "ms", medians, goal=p50))
        figures.append(Figure(case, f"p99 {name}".strip(), "ms", tails, goal=p99))
    return figures


def _windows(spark: SparkSession, aws: LocalAws, world: World, place: Path, queries: int) -> list[list[list[float]]]:
    """The ages of the records, in milliseconds, query by query and run by run."""
    seen: list[list[tuple[float, float]]] = [[] for _ in range(queries)]
    running: list[StreamingQuery] = []
    try:
        for number, ages in enumerate(seen):
            running.append(started(spark, aws, world, place / str(number), ages))
            wait_until(world.leases, 60, "a run, whose host is the first query")
        with sending(aws, world):
            time.sleep(WARM_UP_SECONDS)
            first = time.time()
            time.sleep(RUNS * RUN_SECONDS)
        time.sleep(2)
    finally:
        for query in running:
            query.stop()
    for query in running:
        if (error := query.exception()) is not None:
            raise error
    return [_by_run(ages, first) for ages in seen]


def _by_run(seen: list[tuple[float, float]], first: float) -> list[list[float]]:
    windows: list[list[float]] = [[] for _ in range(RUNS)]
    for sent, now in seen:
        window = int((sent - first) // RUN_SECONDS)
        if 0 <= window < RUNS:
            windows[window].append((now - sent) * 1000)
    if (fewest := min(map(len, windows))) < RECORDS_PER_SECOND * RUN_SECONDS * 0.9:
        raise RuntimeError(f"only {fewest} records in {RUN_SECONDS} s: this machine is too busy to send them")
    return windows


def started(
    spark: SparkSession,
    aws: LocalAws,
    world: World,
    place: Path,
    seen: list[tuple[float, float]],
    trigger: str = "0 seconds",
    **options: Any,
) -> StreamingQuery:
    """A query that keeps when each record was sent, and when `foreachBatch` had it.

    Args:
        spark: A classic session on this machine.
        aws: Where the records come from.
        world: The stream.
        place: A directory for the checkpoint.
        seen: What it keeps.
        trigger: The query's.
        options: Source options beside the defaults.
    """

    rows = kinesis_efo.read_stream(spark, manifest=str(world.manifest), endpointUrl=aws.endpoint_url, **options)
    return collected(rows, place, seen, trigger)


def collected(rows: DataFrame, place: Path, seen: list[tuple[float, float]], trigger: str) -> StreamingQuery:
    """The same with rows of any source, in `data`."""

    def take(batch: DataFrame, _: int) -> None:
        heads = batch.selectExpr(f"cast(substring(data, 1, {TIME_BYTES}) as string) as sent").collect()
        now = time.time()
        seen.extend((float(row.sent), now) for row in heads)

    return (
        rows.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(processingTime=trigger)
        .start()
    )


@contextlib.contextmanager
def sending(aws: LocalAws, world: World, pace: Pace = PACE) -> Iterator[None]:
    """Within this context, a process of its own puts records into the stream."""
    context = multiprocessing.get_context("spawn")
    enough = context.Event()
    sender = context.Process(target=_put, args=(aws.endpoint_url, world.streams["orders"], pace, enough), daemon=True)
    sender.start()
    try:
        yield
    finally:
        enough.set()
        sender.join(10)
        sender.kill()


def _put(endpoint: str, stream: str, pace: Pace, enough: Event) -> None:
    """Put records into a stream, each with its time of sending in front, until it is enough."""
    import boto3

    os.environ.update(CREDENTIALS)
    client = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
    due = time.monotonic()
    number = 0
    while not enough.is_set():
        data = b"%17.6f" % time.time() + bytes(pace.size - TIME_BYTES)
        records = [{"PartitionKey": str(number + turn), "Data": data} for turn in range(pace.records)]
        client.put_records(StreamName=stream, Records=records)
        number += pace.records
        due += pace.seconds
        time.sleep(max(0.0, due - time.monotonic()))
