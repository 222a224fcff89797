"""Where a record waits between `PutRecords` and `foreachBatch`, stage by stage; draws the picture of the page on latency.

Kinesis' arrival time ends the first stage. The others end where Spark's progress report of the record's micro-batch says.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from benchmarks import latency
from benchmarks.figures import Figure
from benchmarks.machine import AwsProcess, spark_session
from kinesis_efo_local import LocalAws, Settings
from tests.support.world import make_world

STAGES: Final = (
    "PutRecords: the record is in Kinesis",
    "the previous micro-batch ends",
    "latestOffset: the end is planned",
    "Spark logs the offset",
    "Spark plans the micro-batch",
    "tasks read: foreachBatch has the rows",
)
PICTURE: Final = Path(__file__).parents[1] / "docs" / "images" / "latency.svg"
_REPORTS: Final = 10_000


class Batch(NamedTuple):
    """A micro-batch, in epoch seconds.

    Attributes:
        number: Spark's number.
        entered: When `foreachBatch` was called.
        done: When it had the rows.
        records: When each record was sent, and when it arrived in Kinesis.
    """

    number: int
    entered: float
    done: float
    records: list[tuple[float, float]]


def run() -> list[Figure]:
    """Measure with `low_latency` and `latency.SHARDS` shards."""
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        tempfile.TemporaryDirectory() as place,
        spark_session(
            settings={**latency.AT_START, "spark.sql.streaming.numRecentProgressUpdates": str(_REPORTS)}
        ) as spark,
    ):
        kinesis_efo.low_latency(spark, checkpoint=place)
        batches, reports = _measured(spark, aws, Path(place))
    waits = list(zip(*_waits(batches, reports), strict=True))
    if len(waits[0]) < 0.9 * latency.RECORDS_PER_SECOND * latency.RUN_SECONDS:
        raise RuntimeError(f"only {len(waits[0])} records: this machine is too busy to send them")
    figures = []
    for stage, seconds in [*zip(STAGES, waits, strict=True), ("all stages", tuple(map(sum, zip(*waits, strict=True))))]:
        cuts = quantiles(seconds, n=100)
        figures += [Figure(stage, f"p{cut}", "ms", (1000 * cuts[cut - 1],)) for cut in (50, 99)]
    return figures


def percentiles(figures: Sequence[Figure]) -> list[tuple[str, float, float]]:
    """Each stage with its p50 and p99 in ms, and their sum."""
    return [(p50.case, p50.runs[0], p99.runs[0]) for p50, p99 in zip(figures[::2], figures[1::2], strict=True)]


def _measured(spark: SparkSession, aws: LocalAws, place: Path) -> tuple[list[Batch], dict[int, Any]]:
    """The micro-batches, and Spark's report of each by its number."""
    world = make_world(aws, place, {"orders": latency.SHARDS})
    batches: list[Batch] = []

    def take(frame: DataFrame, number: int) -> None:
        entered = time.time()
        sent = f"cast(substring(data, 1, {latency.TIME_BYTES}) as string) as sent"
        rows = frame.selectExpr(sent, "cast(approximateArrivalTimestamp as double) as arrived").collect()
        batches.append(Batch(number, entered, time.time(), [(float(row.sent), row.arrived) for row in rows]))

    rows = kinesis_efo.read_stream(spark, manifest=str(world.manifest), endpointUrl=aws.endpoint_url)
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        with latency.sending(aws, world):
            time.sleep(latency.WARM_UP_SECONDS)
            first = len(batches)
            time.sleep(latency.RUN_SECONDS)
            last = len(batches)
        reports = {report.batchId: report for report in query.recentProgress}
    finally:
        query.stop()
    return batches[first:last], reports


def _waits(batches: Sequence[Batch], reports: dict[int, Any]) -> Iterator[tuple[float, ...]]:
    """The seconds of each record in each stage."""
    for batch in batches:
        if (report := reports.get(batch.number)) is None:
            continue
        begun = datetime.fromisoformat(report.timestamp).timestamp()
        planned = begun + report.durationMs["latestOffset"] / 1000
        logged = planned + report.durationMs["walCommit"] / 1000
        for sent, arrived in batch.records:
            # A record may arrive during `latestOffset`: it has waited in no stage before.
            at = accumulate((sent, arrived, begun, planned, logged, batch.entered, batch.done), max)
            yield tuple(end - start for start, end in pairwise(at))
