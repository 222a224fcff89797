"""The stream reader: plans micro-batches on the driver and reads their partitions in tasks.

Spark builds and pickles it more than once, so the constructor starts nothing; the run is joined with the first call that needs it, in
the process that Spark keeps for the query. The order of Spark's calls differs between versions: 4.0 asks for the latest offset before
the initial one, and after a crash it first passes the *end* of the uncommitted micro-batch, as `partitions(end, end)`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from kinesis_efo.errors import ConfigurationError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.fetcher.client import CALL_SECONDS, FetcherClient
from kinesis_efo.fetcher.ranges import RangeReader
from kinesis_efo.kinesis.records import Decoder
from kinesis_efo.manifest import Manifest
from kinesis_efo.marks import Mark
from kinesis_efo.options import Bounds, Deaggregation, SourceOptions
from kinesis_efo.planner.access import BatchPlan, Begin, Commit, Next, Plan, Reading, Step
from kinesis_efo.planner.stream_set import StreamSet
from kinesis_efo.positions import Offset, ShardKey, ShardRange
from kinesis_efo.private_directory import notes_directory
from kinesis_efo.spark import latency
from kinesis_efo.spark.compat import SPARK_VERSION, ReadAllAvailable, StreamReaderBase, read_limit
from kinesis_efo.spark.lag import LagNotes, Report
from kinesis_efo.spark.left_out import LEFT_OUT
from kinesis_efo.spark.lifecycle import end_with_spark
from kinesis_efo.spark.partitions import KinesisPartition, by_fetcher, coalesce, streams_with_generations

if TYPE_CHECKING:
    from kinesis_efo.calls.address import FetcherAddress
    from kinesis_efo.planner.shared_run import SharedRun

logger = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62
_WORD_SECONDS = 2.0
"""How long a stopping reader waits for the driver's report of its last micro-batch. It takes milliseconds, or half a second for the first
micro-batch of a session."""


class KinesisStreamReader(StreamReaderBase):
    """Reads the streams of a manifest for one query.

    Args:
        options: The query's options.
        manifest: The application's manifest, reduced to the streams of the query.
    """

    def __init__(self, options: SourceOptions, manifest: Manifest) -> None:
        self._options = options
        self._manifest = manifest
        self._reset()

    def _reset(self) -> None:
        self._runtime: SharedRun | None = None
        self._streams = StreamSet(self._manifest, drop=self._options.drop_removed_streams)
        self._asked_to_end = threading.Event()
        # For a checkpoint without a mark. It never changes, because Spark compares offsets as text.
        self._mark = Mark(secrets.token_hex(4))
        self._initial: Offset | None = None
        self._planned: Offset | None = None
        self._running: Offset | None = None
        self._asked = 0
        self._begun = False
        self._done: Offset | None = None
        self._committed: Offset | None = None
        self._step: tuple[Offset, Offset, BatchPlan] | None = None
        self._available_now = False
        self._ends_known = False
        self._behind: dict[ShardKey, int | None] = {}
        self._size: tuple[int | None, int | None] = (None, None)
        self._had_nothing = False
        self._others_run = False
        self._offsets: deque[tuple[dict[str, Any], Offset]] = deque(maxlen=4)
        self._lag_notes = LagNotes(notes_directory)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_manifest": self._manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
        # A worker unpickles the reader right before Spark sends the task's partition: see latency.py.
        if self._options.latency_hooks:
            latency.install()

    # -- on the driver

    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query. Chosen once: Spark asks twice, or after the latest offset."""
        return self._data(self._initial_offset())

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of the next micro-batch; `start` itself if there is nothing to read.

        Spark calls this only after it has written the commit log of the micro-batch before, so that is done.

        Args:
            start: The offset that the query has reached; Spark 4.0 passes none.
            limit: Spark's limit for this trigger; 4.0 passes none, and the limits of the options apply.
        """
        self._asked += 1
        once = isinstance(limit, ReadAllAvailable)
        self._check_end(once=once)
        position = self._offset(start) if start else self._planned or self._initial_offset()
        if position == self._running:
            self._done = position
        self._size = (0, 0)
        # If another source of the query has rows, waiting here would delay them in every trigger.
        hurry = self._others_run
        self._others_run = self._had_nothing = False
        self._begin(position)
        # Short calls, to check in between whether this process has to end.
        while not self._asked_to_end.is_set():
            step = self._started().ask(
                Next(position, self._options.poll_timeout, self._news(), hurry, once, self._available_now)
            )
            self._committed = self._done
            self._take_note(position, step)
            if step.end is not None:
                return self._data(step.end, position if position is self._initial else None)
            if not step.again:
                break
        self._had_nothing = True
        return self._data(position)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[KinesisPartition]:
        """The tasks of a micro-batch. A call with `start == end` only gives the query's position."""
        self._planned = self._offset(end)
        if start == end:
            return []
        first, self._running = self._running is None, self._planned
        self._begin(self._planned)
        if SPARK_VERSION < (4, 2):
            self._lag_notes.write(self._planned, self._report())
        begin, runtime = self._offset(start), self._started()
        logged = self._streams.read_begin(end) if first else None
        if logged is not None and dict(logged) != dict(begin):
            # Spark does not log where micro-batch 0 begins. To repeat it, it asks for the initial offset again, which is another one now.
            begin = logged
            runtime.ask(Begin(mark=self._mark, resumed=self._planned))
        known, self._step = self._step, None
        if not first and known is not None and known[0] is begin and known[1] is self._planned:
            plan = known[2]
            if self._planned.mark is not None:
                runtime.planned(self._planned.mark)
        else:
            plan = runtime.ask(Plan(begin, self._planned, self._options.poll_timeout, first))
        # Tasks that start before all shards have a fetcher could take the cores that fetchers need.
        while not plan.all_served and not self._asked_to_end.is_set():
            plan = runtime.ask(Plan(begin, self._planned, self._options.poll_timeout))
        served = plan.served(begin.ranges_to(self._planned))
        ranges = [each.wanted for each in served]
        sizes = {each.wanted.key: each.bytes for each in served if each.bytes is not None}
        together = streams_with_generations(begin, ranges)
        tasks: list[tuple[FetcherAddress | None, list[ShardRange]]] = [
            (fetcher, group)
            for fetcher, theirs in by_fetcher(ranges, [each.fetcher for each in served], together=together)
            for group in coalesce(theirs, sizes, together=together)
        ]
        if not tasks and self._options.latency_hooks:
            # Spark ends Python workers after a minute without a task; an empty task keeps them for the next record.
            tasks = [(None, [])]
        return [
            KinesisPartition(
                fetcher,
                runtime.secret,
                group,
                deaggregate=self._options.deaggregate is not Deaggregation.OFF,
                strict=frozenset(plan.strict),
                planner=runtime.planner_address,
                query=runtime.query_name,
            )
            for fetcher, group in tasks
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Everything up to `end` is processed.

        Spark calls this when it has planned the next micro-batch: much later, or never if no more records arrive. So `latestOffset` does
        the same.
        """
        # If this source had nothing, the planned micro-batch has rows of other sources only.
        self._others_run = self._had_nothing
        self._done = self._offset(end)

    def stop(self) -> None:
        """Leave the run. The last query ends it and releases the leases."""
        self._lag_notes.clear()
        self._learn_last(_WORD_SECONDS)
        if self._runtime is not None:
            self._runtime.stop()
            self._runtime = None

    def getDefaultReadLimit(self) -> Any:
        """The limits of a trigger from the options (Spark 4.2+)."""
        return read_limit(self._options.max_bytes_per_trigger or _NO_LIMIT, self._options.max_records_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end at the streams' present tips, or at `endingPosition`. The first `latestOffset` asks for them."""
        self._available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The lag of each shard in milliseconds, and the micro-batch's bytes and data, for the query's progress (Spark 4.2+)."""
        if not self._behind:
            return None
        report: dict[str, Any] = msgspec.to_builtins(self._report())
        return report

    # -- in tasks

    def read(self, partition: KinesisPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Read the rows of a partition as Arrow batches."""
        left_out = partial(LEFT_OUT.note, settings=self._options.metrics)
        # A call must not end before a range is given up: the next call would begin to wait again.
        patience, query = self._options.patience, partition.query
        fetcher_at = partial(FetcherClient, call_seconds=max(CALL_SECONDS, patience), query=query)
        reader = RangeReader(partition.secret, partition.planner, patience, query=query, fetcher_at=fetcher_at)
        decoder = Decoder(deaggregate=partition.deaggregate, left_out=left_out)
        for (key, after, through, _), hash_range, payloads in reader.read(partition.ranges, partition.address):
            yield from decoder.add(
                payloads, key, after, through, hash_range if key.stream in partition.strict else None
            )
        yield from decoder.finish()

    # -- inside

    def _news(self) -> Offset | None:
        """The end of what is processed, if the run does not know it yet."""
        return self._done if self._done != self._committed else None

    def _report(self) -> Report:
        return Report.of(self._behind, self._size)

    def _check_end(self, *, once: bool) -> None:
        if self._options.ends != Bounds() and not (once or self._available_now or self._options.catch_up):
            raise ConfigurationError(
                "kinesis-efo option 'endingPosition' needs a query that ends: .trigger(availableNow=True) on Spark 4.2 or newer; before, "
                "option 'catchUp' with that trigger; or spark.read. Leave it out for a query that goes on"
            )

    def _begin(self, planned: Offset) -> None:
        """Tell the run, once, the last planned offset in Spark's log when this query started, unless it is new."""
        if not self._begun:
            self._started().ask(Begin(mark=self._mark, resumed=planned))
        self._begun = True

    def _take_note(self, position: Offset, step: Step) -> None:
        """Note the parts of a step other than its end."""
        self._size = step.bytes, step.data
        self._step = (position, step.end, step.plan) if step.end is not None and step.plan is not None else None
        self._behind.update(step.behind)
        if step.ending is not None:
            self._ends_known = step.ending.complete
        if position.has_ends and step.end is not None:
            self._behind = {key: millis for key, millis in self._behind.items() if key in step.end}

    def _learn_last(self, at_most: float) -> None:
        """Commit the last micro-batch, if the driver reports it as done. Errors of the run are ignored."""
        last = self._running
        finished, mark = False, None if last is None else last.mark
        waits = self._options.listens and last is not None and last != self._committed
        if self._runtime is not None and (waits or self._news() is not None):
            with contextlib.suppress(KinesisEfoError):
                finished = self._runtime.ask(Commit(mark, self._news(), at_most if waits else 0.0))
                self._committed = last if finished else self._done
        self._warn_of_rest(finished=waits and finished, known=last is None or self._options.listens)

    def _warn_of_rest(self, *, finished: bool, known: bool) -> None:
        """Warn if Spark ended the query after one trigger that need not have read everything, as `Trigger.Once` does.

        Args:
            finished: Whether the last micro-batch is known to be done.
            known: Whether that can be known.
        """
        asked, self._asked = self._asked, 2  # this may be called twice
        if self._ends_known or asked > 1:
            return
        if asked == 0 and finished:
            logger.warning(
                "the query ended after one micro-batch, which the run before had begun, and has not looked for more records. With "
                "trigger(once=True), run it again: it goes on where it ended"
            )
        behind = self._behind.values()
        limited = self._options.max_bytes_per_trigger or self._options.max_records_per_trigger
        at_tips = behind and not limited and all(millis == 0 for millis in behind)
        if asked == 1 and SPARK_VERSION < (4, 2) and not at_tips and (finished or self._had_nothing or not known):
            logger.warning(
                "the query ended after one trigger, which need not have read all records that were there; the next run goes on where it "
                "ended. With trigger(once=True) or trigger(availableNow=True), set kinesis-efo option 'catchUp' to true: before Spark "
                "4.2, only then does the one micro-batch read up to the tips"
            )

    def _started(self) -> SharedRun:
        if self._runtime is None:
            # Imported here, because tasks import this module, too, and do not need these.
            with latency.without_collections():
                from kinesis_efo.spark.run_process import end_ahead, run_of_program

            try:
                # Handle signals before `start`, which may wait for AWS.
                self._runtime = run_of_program(self._manifest, self._options)
                self._asked_to_end = end_with_spark(self._stop_when_quiet)
                self._runtime.start()
            except BaseException:
                self._runtime = None
                raise
            finally:
                end_ahead()
        return self._runtime

    def _stop_when_quiet(self) -> None:
        """Leave the run when no task has read for `leaseTimeout`.

        If Spark closes the connection, as it does when a query stops, the reader is stopped at once; but Spark does not always close it.
        If all processes got the signal, the driver may still finish its micro-batch, and tasks may read again after a pause, as with a
        second action in `foreachBatch`.
        """
        read_at = time.monotonic()
        while time.monotonic() - read_at < self._options.lease_timeout and (runtime := self._runtime) is not None:
            time.sleep(0.1)
            if _reads(runtime):
                read_at = time.monotonic()
        if (runtime := self._runtime) is not None:
            self._learn_last(_WORD_SECONDS)
            runtime.stop()

    def _offset(self, data: dict[str, Any]) -> Offset:
        """The offset from Spark's data. The last few are kept: Spark passes them repeatedly, and parsing thousands of shards takes time."""
        for known, offset in self._offsets:
            if known == data:
                return offset
        offset = self._streams.read(data)
        self._offsets.appendleft((data, offset))
        return offset

    def _data(self, offset: Offset, begin: Offset | None = None) -> dict[str, Any]:
        """An offset as data for Spark. That of the query's first micro-batch says where the micro-batch begins."""
        for data, known in self._offsets:
            if known is offset:
                return data
        data = self._streams.to_dict(offset, offset if offset is self._initial else begin)
        self._offsets.appendleft((data, offset))
        return data

    def _initial_offset(self) -> Offset:
        while self._initial is None:
            self._initial = self._started().ask(Begin(new=True, mark=self._mark, wait=self._options.poll_timeout))
            if self._initial is None and self._asked_to_end.is_set():
                raise stopped()
        self._begun = True
        return self._initial


def _reads(runtime: SharedRun) -> bool:
    # No task reads from a run that has ended.
    with contextlib.suppress(KinesisEfoError):
        return runtime.ask(Reading())
    return False
