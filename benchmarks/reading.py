"""The throughput of the whole path: loopback HTTP, fetcher, Arrow Flight, decoding, and Spark's noop sink, on local[2].

Compared with a Python data source that generates the same rows inside `read`, which is the upper bound for any source. Both
share two cores with the servers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import kinesis_efo
from benchmarks.canned import RECORDS_PER_EVENT, canned_kinesis
from benchmarks.figures import Figure, Goal
from benchmarks.machine import AwsProcess, spark_session
from kinesis_efo.kinesis.batches import SCHEMA
from kinesis_efo.local import Settings
from kinesis_efo.spark.source import SCHEMA as COLUMNS
from tests.support.world import make_world, wait_until

RUNS: Final = 3
SHARDS: Final = 4
FIRST_TRIGGERS: Final = 4


class Size(NamedTuple):
    """What is read of records of one size.

    Attributes:
        record_bytes: Bytes of data in a record.
        events: Events of `RECORDS_PER_EVENT` records, per shard: more than 2 GB on the wire in all.
        rows_per_batch: Rows of an Arrow batch of the generated rows: as many as a batch of the source has.
        rows_per_trigger: About as many as the source reads in one trigger with its default budget.
        goal: Least ratio to the generated rows.
    """

    record_bytes: int
    events: int
    rows_per_batch: int
    rows_per_trigger: int
    goal: float


SIZES: Final = (Size(1024, 1024, 2_000, 86_000, 0.8), Size(100, 2800, 10_000, 380_000, 0.6))


def run() -> list[Figure]:
    """Measure. MB count the records' data."""
    figures: list[Figure] = []
    for size in SIZES:
        # A JVM for each: it takes the endpoints from the environment, when it starts.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            figures += process.submit(_measured, size).result()
    return figures


def _measured(size: Size) -> list[Figure]:
    ours, generated = [], []
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        canned_kinesis(size.record_bytes, size.events, SHARDS) as kinesis,
        tempfile.TemporaryDirectory() as place,
    ):
        # Before Spark starts, whose processes inherit the environment.
        os.environ.update(AWS_ENDPOINT_URL=aws.endpoint_url, AWS_ENDPOINT_URL_KINESIS=kinesis.endpoint)
        try:
            with spark_session() as spark:
                spark.dataSource.register(GeneratedSource)
                for turn in range(RUNS + 1):
                    rows = spark.readStream.format("generated").options(
                        recordBytes=str(size.record_bytes),
                        rowsPerBatch=str(size.rows_per_batch),
                        rowsPerTrigger=str(size.rows_per_trigger),
                    )
                    generated.append(_rate(size, rows.load(), Path(place, f"generated{turn}")))
                    # A new lease table for every query, so that none waits for the leases of the previous one.
                    world = make_world(aws, Path(place), {"orders": SHARDS})
                    ours.append(_rate(size, _source(spark, str(world.manifest)), Path(place, f"ours{turn}")))
        finally:
            del os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_ENDPOINT_URL_KINESIS"]
    case = f"{size.record_bytes} B records, {SHARDS} shards"
    # The first turn warms up the JVM.
    baseline = Figure(case, "rows generated in read", "MB/s", tuple(generated[1:]))
    return [baseline, Figure.against(baseline, case, "kinesis-efo", ours[1:], Goal(size.goal, of_ratio=True))]


def _source(spark: SparkSession, manifest: str) -> DataFrame:
    return kinesis_efo.read_stream(spark, manifest=manifest, startingPosition="TRIM_HORIZON")


def _rate(size: Size, df: DataFrame, checkpoint: Path) -> float:
    """MB/s of the later micro-batches: during the first ones, the memory of every process still grows."""
    rows = SHARDS * size.events * RECORDS_PER_EVENT
    query = (
        df.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds")
    )
    running = query.start()
    batches: dict[int, dict[str, Any]] = {}

    def done() -> bool:
        if (error := running.exception()) is not None:
            raise error
        batches.update({progress["batchId"]: progress for progress in running.recentProgress})
        return _rows(batches.values()) >= rows

    try:
        wait_until(done, 120, "the rows")
    finally:
        running.stop()
    read = [progress for _, progress in sorted(batches.items()) if progress["numInputRows"]]
    timed = _rows(read[FIRST_TRIGGERS:])
    return timed * size.record_bytes / 1e6 / (_end(read[-1]) - _end(read[FIRST_TRIGGERS - 1]))


def _rows(progresses: Iterable[dict[str, Any]]) -> int:
    return sum(int(progress["numInputRows"]) for progress in progresses)


def _end(progress: dict[str, Any]) -> float:
    started = datetime.fromisoformat(progress["timestamp"])
    return started.timestamp() + float(progress["durationMs"]["triggerExecution"]) / 1000


class GeneratedSource(DataSource):
    """Generates rows like those of the source in `read`."""

    @classmethod
    def name(cls) -> str:
        return "generated"

    def schema(self) -> Any:
        return COLUMNS

    def streamReader(self, schema: Any) -> GeneratedReader:
        return GeneratedReader(*(int(self.options[name]) for name in ("recordBytes", "rowsPerBatch", "rowsPerTrigger")))


class GeneratedReader(DataSourceStreamReader):
    """Has as many rows in every trigger as the source reads in one."""

    def __init__(self, record_bytes: int, rows_per_batch: int, rows_per_trigger: int) -> None:
        self._record_bytes = record_bytes
        self._rows_per_batch = rows_per_batch
        self._rows_per_trigger = rows_per_trigger

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        self._rows = getattr(self, "_rows", 0) + self._rows_per_trigger
        return {"rows": self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        share = (end["rows"] - start["rows"]) // SHARDS
        return [InputPartition(share) for _ in range(SHARDS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        while left > 0:
            rows = min(left, self._rows_per_batch)
            yield _batch(rows, self._record_bytes)
            left -= rows


def _batch(rows: int, record_bytes: int) -> pa.RecordBatch:
    columns = [
        pa.repeat(pa.scalar(b"d" * record_bytes, pa.binary()), rows),
        pa.repeat("key-123456", rows),
        pa.repeat("4" * 56, rows),
        pa.repeat(pa.scalar(0, pa.int64()), rows),
        pa.repeat(pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC")), rows),
        pa.repeat("orders", rows),
        pa.repeat("shardId-000000000000", rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
