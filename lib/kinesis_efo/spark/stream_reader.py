"""The stream reader: plans micro-batches in the query's Python process on the driver, and reads partitions in tasks.

Spark creates and pickles the reader more than once, so its constructor only stores its arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kinesis_efo.manifest import Manifest
from kinesis_efo.options import SourceOptions
from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.tasks import latency
from kinesis_efo.tasks.client import CALL_SECONDS, FetcherClient
from kinesis_efo.tasks.compat import ReadAllAvailable, StreamReaderBase, read_limit
from kinesis_efo.tasks.left_out import LEFT_OUT
from kinesis_efo.tasks.ranges import RangeReader

if TYPE_CHECKING:
    from kinesis_efo.spark.stream_planner import StreamPlanner

logger = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62


class KinesisStreamReader(StreamReaderBase):
    """Reads the streams of a manifest for one query."""

    def __init__(self, options: SourceOptions, manifest: Manifest) -> None:
        self._options = options
        self._manifest = manifest
        self._available_now = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_manifest": self._manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Only workers unpickle the reader. They import the decoder now, while they wait for the task's partition; see latency.py.
        import kinesis_efo.records.decoder  # noqa: F401

        latency.install()

    # -- called on the driver

    @cached_property
    def _planner(self) -> StreamPlanner:
        # Import these modules only here: tasks also import this module, but never plan.
        with latency.without_collections():
            from kinesis_efo.planner.run_process import run_of_program
            from kinesis_efo.spark.stream_planner import StreamPlanner
        return StreamPlanner(self._options, self._manifest, partial(run_of_program, self._manifest, self._options))

    def _choose_streams(self, offset: dict[str, Any] | None) -> None:
        """Without the option `streams`, select the streams of the checkpoint. A new query fails if the manifest has several streams.

        Called with each offset that Spark passes. Only the first call has an effect.
        """
        if "_planner" in self.__dict__ or self._options.streams is not None or len(self._manifest.streams) == 1:
            return
        known = {**(offset or {}).get("streams", {}), **(offset or {}).get("sources", {})}
        if chosen := [name for name in self._manifest.streams if name in known]:
            logger.warning(
                "kinesis-efo option 'streams' is not given: the query continues with the streams of its checkpoint, %s; name them, or "
                "give * for all of the manifest",
                ", ".join(map(repr, chosen)),
            )
            self._manifest = self._manifest.select(chosen)
        elif not known:
            self._manifest.check_choice()

    def initialOffset(self) -> dict[str, Any]:
        """Return a placeholder for the start of a new query. The actual start is chosen when Spark requests the first end offset."""
        from kinesis_efo.spark.stream_planner import START

        return dict(START)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next micro-batch."""
        self._choose_streams(start)
        self._planner.available_now = self._available_now
        return self._planner.latest(start, once=isinstance(limit, ReadAllAvailable))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[KinesisPartition]:
        """Return the tasks of a micro-batch."""
        self._choose_streams(end)
        return self._planner.tasks(start, end)

    def commit(self, end: dict[str, Any]) -> None:  # noqa: ARG002
        """Record that Spark has planned another micro-batch. Spark passes the end of the previous micro-batch, which is complete."""
        self._planner.commit()

    def stop(self) -> None:
        self._planner.stop()

    def getDefaultReadLimit(self) -> Any:
        """Return the read limit of each trigger, from the options (Spark 4.2+)."""
        return read_limit(self._options.max_bytes_per_trigger or _NO_LIMIT, self._options.max_records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end: at `endingPosition` or, without this option, at the tips at the time of the first `latestOffset` call."""
        self._available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return each shard's lag in milliseconds, and the size of the micro-batch, for the query's progress (Spark 4.2+)."""
        return self._planner.lag.as_data()

    # -- called in tasks

    def read(self, partition: KinesisPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Read the rows of a partition as Arrow batches."""
        from kinesis_efo.records.decoder import Decoder

        left_out = partial(LEFT_OUT.add, settings=self._options.metrics)
        # Do not end a call to a fetcher before the reader gives up: a new call would lose the time that the old call has waited.
        patience, query = self._options.patience, partition.query
        fetcher_at = partial(FetcherClient, call_seconds=max(CALL_SECONDS, patience), query=query)
        reader = RangeReader(partition.secret, partition.planner, patience, query=query, fetcher_at=fetcher_at)
        decoder = Decoder(deaggregate=partition.deaggregate, left_out=left_out)
        for (key, after, through, _), payloads in reader.read(partition.ranges, partition.address):
            yield from decoder.add(payloads, key, after, through, partition.hash_ranges.get(key))
        yield from decoder.finish()
