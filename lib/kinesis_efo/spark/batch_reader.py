"""The batch reader: plans the ranges of a read on the driver and reads them in tasks.

Spark 4.0 plans again for each action on a DataFrame, later versions once. The end of the read does not change: it is set at `load()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kinesis_efo.manifest import Manifest
from kinesis_efo.options import BatchOptions
from kinesis_efo.spark import latency
from kinesis_efo.spark.lifecycle import log_to_stderr

if TYPE_CHECKING:
    import pyarrow as pa

    from kinesis_efo.batch.stretches import Stretch


class StretchPartition(InputPartition):
    """The ranges that one task reads.

    Attributes:
        stretches: The ranges, of different shards.
    """

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        super().__init__(None)
        self.stretches = tuple(stretches)

    def __repr__(self) -> str:
        return f"StretchPartition({', '.join(map(str, self.stretches))})"


class KinesisBatchReader(DataSourceReader):
    """Reads a part of the streams of a manifest.

    Args:
        options: The read's options.
        manifest: The application's manifest, reduced to the streams of the read.
        loaded: When `load()` was called, epoch seconds: the read ends at the tips of that time.
        here: Whether `loaded` is by this machine's clock. The clock of a client of Spark Connect may be off by an unknown time.
    """

    def __init__(self, options: BatchOptions, manifest: Manifest, loaded: float, *, here: bool = True) -> None:
        self._options = options
        self._manifest = manifest
        self._loaded = loaded
        self._here = here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A worker unpickles the reader right before Spark sends the task's partition: see latency.py.
        if self._options.source.latency_hooks:
            latency.install()

    def partitions(self) -> list[InputPartition]:
        """The tasks, each with one or several ranges.

        Raises:
            ConfigurationError: The options do not fit the streams.
            StreamError: The shards of a stream cannot be listed.
            DataLossError: The read begins before the stream's retention, and losses are errors.
        """
        import asyncio

        from kinesis_efo.batch.planning import plan, tip_at

        log_to_stderr()
        planned = asyncio.run(plan(self._manifest, self._options, tip_at(self._loaded), here=self._here))
        tasks = math.ceil(len(planned) / self._options.source.batch_shards_per_task)
        # Closed shards come first, and each task gets some of them. Without any task, Spark makes one itself.
        return [StretchPartition(planned[task::tasks]) for task in range(tasks)] or [StretchPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task.

        Raises:
            StreamError: A shard cannot be read.
            DataLossError: Records of a range are lost.
            FrameError: A response of Kinesis cannot be decoded.
        """
        assert isinstance(partition, StretchPartition)
        if not partition.stretches:
            return
        from kinesis_efo.batch.reading import Reading
        from kinesis_efo.spark.left_out import LEFT_OUT

        log_to_stderr()
        options = self._options.source
        left_out = partial(LEFT_OUT.note, settings=options.metrics)
        yield from Reading(partition.stretches, self._manifest, options, left_out=left_out).batches()
