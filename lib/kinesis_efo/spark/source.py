"""The data source `kinesis-efo`, which Spark discovers or a program registers.

`schema()` validates the options and the manifest, because Spark calls it at `load()` and shows its errors to the user unchanged. Spark
imports this module in four processes before a query reads its first record, so other modules are imported only where they are needed.

Spark 4.0 plans a batch read for each action on a DataFrame, later versions only once. The end of a read is fixed at `load()`, so that all
actions read the same records.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.manifest import Manifest, resolve_manifest
from kinesis_efo.options import BatchOptions, SourceOptions, are_for_batch
from kinesis_efo.planner.lifecycle import is_sparks_process, log_to_stderr

if TYPE_CHECKING:
    import pyarrow as pa

    from kinesis_efo.batch.ranges import BatchRange
    from kinesis_efo.spark.sink import KinesisWriter
    from kinesis_efo.spark.stream_reader import KinesisStreamReader

NAME = "kinesis-efo"
"""The data source's name, for `spark.readStream.format(...)`."""

SCHEMA = StructType(
    [
        StructField("data", BinaryType()),
        StructField("partitionKey", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("subSequenceNumber", LongType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
        StructField("stream", StringType()),
        StructField("shardId", StringType()),
    ]
)
"""The columns of the source, the same for every stream. `partitionKey` may be null."""


class KinesisEfoSource(DataSource):
    """Reads Kinesis streams, continuously or as a batch, and writes to streams.

    ```python
    df = spark.readStream.format("kinesis-efo").option("manifest", "ssm:///kinesis-efo/dev/lake").load()
    ```
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark creates this object at `load()`. Record the time, because all actions on the DataFrame read up to it.
        self._loaded, self._offset = time.time(), _clock_offset()

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Validate the options and the manifest, and return the columns of the source."""
        batch = are_for_batch(self.options)
        _manifest(BatchOptions.parse(self.options).source if batch else SourceOptions.parse(self.options))
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        _check_columns(schema)
        options = BatchOptions.parse(self.options)
        manifest, told = _manifest(options.source), options.source.loaded
        if options.source.clock:
            return KinesisTimeReader(self)
        if told is None:
            from kinesis_efo.batch.planning import reset_by

            loaded = self._loaded + reset_by(self._offset, _clock_offset())
            return KinesisBatchReader(options, manifest, loaded)
        return KinesisBatchReader(options, manifest, told / 1000, here=False)

    def kinesis_time(self) -> int:
        """Return Kinesis' current time in epoch milliseconds, or a slightly later time."""
        import asyncio

        from kinesis_efo.batch.planning import kinesis_time
        from kinesis_efo.clock import in_thread

        options = BatchOptions.parse(self.options)
        # Use another thread: in a notebook, this thread already runs an event loop.
        return in_thread(asyncio.run, kinesis_time(_manifest(options.source), options)).result()

    def streamReader(self, schema: StructType) -> KinesisStreamReader:
        """Return the reader of a streaming query."""
        _check_columns(schema)
        if is_sparks_process():
            from kinesis_efo.planner.run_process import start_ahead

            start_ahead()
        from kinesis_efo.spark.stream_reader import KinesisStreamReader

        options = SourceOptions.parse(self.options)
        return KinesisStreamReader(options, _manifest(options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        return self.writer(schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> KinesisWriter:
        """Return the writer of a batch DataFrame."""
        from kinesis_efo.spark.sink import KinesisWriter

        return KinesisWriter.of(self.options, schema, overwrite)


@dataclass(frozen=True)
class BatchPartition(InputPartition):
    """The ranges that one task of a batch query reads, each from a different shard."""

    parts: tuple[BatchRange, ...]


class KinesisBatchReader(DataSourceReader):
    """Reads streams as a batch.

    Args:
        manifest: Contains only the streams to read.
        loaded: The time of `load()` in epoch seconds. Without `endingPosition`, the read ends at the tips at this time.
        here: Whether `loaded` was read from this machine's clock, not from Kinesis' clock.
    """

    def __init__(self, options: BatchOptions, manifest: Manifest, loaded: float, *, here: bool = True) -> None:
        self._options = options
        self._manifest = manifest
        self._loaded = loaded
        self._here = here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Workers unpickle the reader just before they receive the task's partition. `install` speeds up receiving it; see latency.py.
        from kinesis_efo.tasks import latency

        latency.install()

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges of the read, and distribute them over tasks."""
        import asyncio

        from kinesis_efo.batch.planning import plan, tip_at

        log_to_stderr()
        planned = asyncio.run(plan(self._manifest, self._options, tip_at(self._loaded), here=self._here))
        # Create at least one task: for an empty list, Spark would create a task whose partition is not a `BatchPartition`.
        cores, shards = self._options.source.cores or os.cpu_count() or 1, len(planned)
        each = min(16, math.ceil(shards / cores)) or 1
        tasks = max(1, math.ceil(shards / each))
        # Distribute the ranges round-robin, so that each task gets some ranges of closed shards, which come first in `planned`.
        return [BatchPartition(tuple(planned[task::tasks])) for task in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BatchPartition)
        if not partition.parts:
            return
        from pyspark import TaskContext

        from kinesis_efo.batch.reading import Reading
        from kinesis_efo.tasks.left_out import LEFT_OUT

        log_to_stderr()
        options = self._options.source
        left_out = partial(LEFT_OUT.add, settings=options.metrics)
        task = TaskContext.get()
        again = task is not None and task.attemptNumber() > 0
        yield from Reading(partition.parts, self._manifest, options, left_out=left_out, again=again).batches()


class KinesisTimeReader(DataSourceReader):
    """Reads one row with Kinesis' time in column `subSequenceNumber`. Spark Connect clients use it, because they cannot call Kinesis."""

    def __init__(self, source: KinesisEfoSource) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._source.kinesis_time())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        yield None, None, None, partition.value, None, None, None


def _clock_offset() -> float:
    """Return this machine's wall-clock time minus its monotonic time, in seconds. It changes when the wall clock is set."""
    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _check_columns(schema: StructType) -> None:
    # Reject any other schema passed to `.schema(...)`. Spark would accept it, and Spark 4.0 would map its columns by position.
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in SCHEMA]:
        raise ConfigurationError(
            f"kinesis-efo has the columns {SCHEMA.simpleString()}; got {schema.simpleString()}. "
            "Leave .schema(...) out and select or cast what you need after load()"
        )


def _manifest(options: SourceOptions) -> Manifest:
    load = partial(resolve_manifest, options, partial(_client, options))
    if options.manifest is None or "://" not in options.manifest:
        return load()  # skip the imports below
    from kinesis_efo.clock import SystemClock
    from kinesis_efo.patience import Patience

    return Patience(options.retry, SystemClock()).load(options.manifest, load)


def _client(options: SourceOptions, service: str) -> Any:
    """Create an AWS client, to read a manifest from SSM or S3. Imports the AWS SDK only here, because other manifests do not need it."""
    from kinesis_efo.aws import SyncClients, patient_config

    return SyncClients(options.aws, config=patient_config(options.retry.timeout)).client(service)
