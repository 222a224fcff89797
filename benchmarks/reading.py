"""The CPU of the whole path, for a GB of records: loopback HTTP, fetcher, hand-over, decoding, and Spark's noop sink, on local[2].

Compared with a Python data source that generates the same rows inside `read`: what Spark takes, whatever the source. Nothing is
fetched before the measurement begins but the first event of each shard. CPU is counted, not time: the servers share the cores.

Events come as fast as the socket takes them, at most 3 s behind the tip; and as those of a backlog: minutes behind, at the 2 MB/s that
Kinesis sends of a shard. Then the time until the query has caught up counts, too.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import count, starmap
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import kinesis_efo
from benchmarks.canned import RECORDS_PER_EVENT, canned_kinesis
from benchmarks.figures import Figure, Goal
from benchmarks.machine import AwsProcess, Pipe, process_of, spark_session
from benchmarks.spark_processes import JVM, PLANNER, WORKERS, SparkProcesses, taken
from kinesis_efo.records.batches import SCHEMA
from kinesis_efo.spark.source import SCHEMA as COLUMNS
from kinesis_efo_local import Settings
from tests.support.world import make_world, wait_until

RUNS: Final = 3
SHARDS: Final = 4
ALL: Final = "all processes"
CAUGHT_UP: Final = "until caught up"
RATE: Final = 2 << 20
"""Bytes in a second that Kinesis sends of a shard."""
EVENT_MILLIS: Final = 10_000
"""By how much an event of a backlog is older than the next."""
CORE, SWITCH = "kinesis_efo_core", "KINESIS_EFO_CORE"
"""The native core's module, and the environment variable that chooses it."""
GENERATED: Final = "rows generated in read"
WAYS: Final = {"kinesis-efo": "off", "kinesis-efo, native core": "on"}
"""The readers, and what their environment says of the core."""


class Size(NamedTuple):
    """What is read of records of one size.

    Attributes:
        record_bytes: Bytes of data in a record.
        events: Events of `RECORDS_PER_EVENT` records, per shard.
        rows_per_batch: Rows of an Arrow batch of the generated rows: as many as a batch of the source has.
        rows_per_trigger: About as many as the source reads in one trigger with its default budget.
        goal: Most CPU seconds for a GB with the native core; None: there is none.
        shards: The number of shards.
        backlog: Whether events are minutes behind and come at Kinesis' pace.
    """

    record_bytes: int
    events: int
    rows_per_batch: int
    rows_per_trigger: int
    goal: float | None = None
    shards: int = SHARDS
    backlog: bool = False

    @property
    def warm_up(self) -> int:
        """Rows before the measurement begins."""
        return self.shards * RECORDS_PER_EVENT

    @property
    def rows(self) -> int:
        """The rows of all shards."""
        return self.warm_up * self.events

    @property
    def case(self) -> str:
        """What it is in the table."""
        case = f"{self.record_bytes} B records, {self.shards} shards"
        return f"{case}, {self.events * EVENT_MILLIS // 60_000} minutes behind" if self.backlog else case


SIZES: Final = (Size(1024, 1024, 2_000, 86_000, 3.8), Size(100, 2800, 10_000, 380_000, 12.5))
BACKLOGS: Final = (
    Size(1024, 96, 2_000, 86_000, shards=4, backlog=True),
    Size(1024, 32, 2_000, 86_000, shards=64, backlog=True),
)


def run() -> list[Figure]:
    """Measure. A GB counts the records' data."""
    figures: list[Figure] = []
    for size in starmap(Size, (*SIZES, *BACKLOGS)):  # `against` has them as lists
        figures += _measured(size)
    return figures


def _measured(size: Size) -> list[Figure]:
    ways = {name: says for name, says in WAYS.items() if says == "off" or find_spec(CORE) is not None}
    used: dict[str, list[dict[str, float]]] = {GENERATED: [], **{name: [] for name in ways}}
    with (
        AwsProcess(settings=Settings(consumer_creating_seconds=0.0)) as aws,
        canned_kinesis(
            size.record_bytes,
            size.events,
            size.shards,
            millis=EVENT_MILLIS if size.backlog else 1,
            pause=size.record_bytes * RECORDS_PER_EVENT / RATE if size.backlog else 0.0,
        ) as kinesis,
        tempfile.TemporaryDirectory() as place,
        ExitStack() as stack,
    ):
        # A session for each way, side by side: the environment of its processes is the JVM's, and pairs want turns.
        sessions: dict[str, Pipe] = {}
        for name, says in ways.items():
            environment = {
                "AWS_ENDPOINT_URL": aws.endpoint_url,
                "AWS_ENDPOINT_URL_KINESIS": kinesis.endpoint,
                SWITCH: says,
            }
            sessions[name] = stack.enter_context(process_of(_session, environment, size))
        numbers = count()

        def turn(name: str, manifest: str | None) -> dict[str, float]:
            session = next(iter(sessions.values())) if manifest is None else sessions[name]
            session.send((manifest, str(Path(place, f"checkpoint{next(numbers)}"))))
            session.recv()
            kinesis.release()
            found: dict[str, float] = session.recv()
            return found

        for _ in range(RUNS + 1):
            used[GENERATED].append(turn(GENERATED, None))
            for name in ways:
                kinesis.hold()
                # A new lease table for every query, so that none waits for the leases of the previous one.
                world = make_world(aws, Path(place), {"orders": size.shards})
                used[name].append(turn(name, str(world.manifest)))
    return _figures(size, used)


def _figures(size: Size, used: Mapping[str, Sequence[dict[str, float]]]) -> list[Figure]:
    case = size.case
    figures = []
    # The first turn warms up the JVM.
    runs = {name: turns[1:] for name, turns in used.items()}
    baseline = Figure(case, GENERATED, "CPU s for a GB", tuple(each[ALL] for each in runs[GENERATED]))
    figures.append(baseline)
    for name, says in WAYS.items():
        if name not in runs:
            continue
        goal = Goal(size.goal, least=False) if says == "on" and size.goal is not None else None
        figures.append(Figure.against(baseline, case, f"{name}: all", [each[ALL] for each in runs[name]], goal))
        figures += [
            Figure(case, f"{name}: {kind}", baseline.unit, tuple(each[kind] for each in runs[name]))
            for kind in (JVM, PLANNER, WORKERS)
        ]
        if size.backlog:
            figures.append(Figure(case, f"{name}: {CAUGHT_UP}", "s", tuple(each[CAUGHT_UP] for each in runs[name])))
    return figures


def _session(orders: Connection, environment: Mapping[str, str], size: Size) -> None:
    """A Spark session that runs a query for each order, and answers when it is warm, and what it took when it is done."""
    # Before Spark starts, whose processes inherit the environment.
    os.environ.update(environment)
    with spark_session() as spark, contextlib.suppress(EOFError):
        spark.dataSource.register(GeneratedSource)
        while True:
            manifest, checkpoint = orders.recv()
            rows = _generated(spark, size) if manifest is None else _source(spark, manifest)
            orders.send(_cpu_for_a_gb(spark, size, rows, checkpoint, warm=lambda: orders.send(None)))


def _source(spark: SparkSession, manifest: str) -> DataFrame:
    return kinesis_efo.read_stream(spark, manifest=manifest, startingPosition="TRIM_HORIZON")


def _generated(spark: SparkSession, size: Size) -> DataFrame:
    options = {
        "recordBytes": str(size.record_bytes),
        "rowsPerBatch": str(size.rows_per_batch),
        "rowsPerTrigger": str(size.rows_per_trigger),
    }
    return spark.readStream.format("generated").options(**options).load()


def _cpu_for_a_gb(
    spark: SparkSession, size: Size, rows: DataFrame, checkpoint: str, warm: Callable[[], None]
) -> dict[str, float]:
    """CPU seconds for a GB by kind of process, and of all, after the first rows; and the seconds that this took."""
    jvm: Any = spark.sparkContext._jvm
    processes = SparkProcesses(jvm.java.lang.ProcessHandle.current().pid())
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds")
    running = query.start()
    batches: dict[int, int] = {}

    def read() -> int:
        if (error := running.exception()) is not None:
            raise error
        batches.update({progress["batchId"]: progress["numInputRows"] for progress in running.recentProgress})
        return sum(batches.values())

    try:
        wait_until(lambda: read() >= size.warm_up, 120, "the first rows")
        known, before = read(), processes.cpu()
        warm()
        began = time.monotonic()
        wait_until(lambda: read() >= size.rows, 240, "the rows")
        seconds = time.monotonic() - began
        spent = taken(before, processes.cpu())
        gigabytes = (read() - known) * size.record_bytes / 1e9
    finally:
        running.stop()
    by_kind = {kind: seconds / gigabytes for kind, seconds in spent.items() if not kind.startswith(" ")}
    return {**dict.fromkeys((JVM, PLANNER, WORKERS), 0.0), **by_kind, ALL: sum(by_kind.values()), CAUGHT_UP: seconds}


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
