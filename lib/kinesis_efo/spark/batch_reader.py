"""The batch reader: plans the stretches of a read on the driver and reads them in tasks.

Spark 4.0 plans anew for each action on a DataFrame, later versions once. The end does not depend on that: it was taken at `load()`.
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
    """What one task reads.

    Attributes:
        stretches: The stretches, of different shards.
    """

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        super().__init__(None)
        self.stretches = tuple(stretches)

    def __repr__(self) -> str:
        return f"StretchPartition({', '.join(map(str, self.stretches))})"


class KinesisBatchReader(DataSourceReader):
    """Reads a stretch of the streams of a manifest.

    Args:
        options: The read's options.
        manifest: The application's, reduced to the streams that the read selects.
        loaded: When `load()` was called, epoch seconds: the tip is that of then.
        here: Whether that was on this machine. The clock of a client of Spark Connect may be off, and nobody here knows by how much.
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
        """The tasks: one for each stretch, or for some.

        Raises:
            ConfigurationError: The read cannot be as it was asked for.
            StreamError: A stream cannot be asked for its shards.
            DataLossError: The read begins before the stream's retention, and losses are errors.
        """
        import asyncio

        from kinesis_efo.batch.planning import plan, tip_at

        log_to_stderr()
        planned = asyncio.run(plan(self._manifest, self._options, tip_at(self._loaded), here=self._here))
        tasks = math.ceil(len(planned) / self._options.source.batch_shards_per_task)
        # Closed shards, which come first, have their records ready; each task gets some of them. Without a task, Spark makes one.
        return [StretchPartition(planned[task::tasks]) for task in range(tasks)] or [StretchPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task.

        Raises:
            StreamError: A shard cannot be read.
            DataLossError: Records are gone that lie in a stretch.
            FrameError: An answer of Kinesis cannot be decoded.
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
