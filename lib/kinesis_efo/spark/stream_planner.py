"""Plans the micro-batches of a query, in the query's Python process on the driver.

The order of calls depends on the Spark version. Spark 4.0 requests the latest offset before the initial offset. After a crash, Spark 4.0
first calls `tasks(end, end)` with the end of the uncommitted micro-batch.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.losses import Facts, time_of
from kinesis_efo.errors import ConfigurationError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import stopped
from kinesis_efo.manifest import Manifest
from kinesis_efo.options import Bounds, Deaggregation, SourceOptions
from kinesis_efo.planner.lifecycle import end_with_spark
from kinesis_efo.planner.run_process import end_ahead
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.planner.stream_set import StreamSet
from kinesis_efo.positions import Mark, Offset, PositionKind, ShardRange
from kinesis_efo.processes import notes_directory
from kinesis_efo.run.access import BatchPlan, Begin, Logged, Next, Plan, Reading, Step
from kinesis_efo.spark.lag import Lag
from kinesis_efo.spark.partitions import KinesisPartition, by_fetcher, coalesce, streams_with_generations
from kinesis_efo.tasks.compat import SPARK_VERSION

logger = logging.getLogger(__name__)

START: Final[dict[str, Any]] = {"streams": {}, "version": 1}
"""Placeholder for the start of a new query. The actual start is chosen when Spark requests the end of micro-batch 0. This end offset then
also contains the start, because Spark does not log the placeholder and passes it again when it repeats micro-batch 0."""

_REPORT_SECONDS = 2.0
"""Maximum seconds for which a stopping query waits for the driver to report its last micro-batch as finished. The report usually arrives
within milliseconds; for the first micro-batch of a session, within half a second."""

_STOP_SECONDS: Final = 3.0
_STALL_SECONDS: Final = 60.0


def _check_first(begin: Offset, end: Offset) -> None:
    """Raise ConfigurationError if micro-batch 0 would begin after its end: old releases only logged the end, so the begin is new."""
    for key, at in begin.items():
        through = end.get(key)
        written = None if through is None else time_of(key.shard, through, inf)
        if at.kind is PositionKind.AT_TIMESTAMP and written is not None and written + 1 < at.value / 1000:
            raise ConfigurationError(
                f"shard {key}: an earlier version has planned micro-batch 0 up to {through} without finishing it, and the checkpoint does "
                f"not contain its begin; it would begin now, at {at}, after its end. Set kinesis-efo option 'startingPosition' to the time "
                "at which the query was first started, or delete the checkpoint"
            )


class StreamPlanner:
    """Plans the micro-batches of one query, which reads all streams of `manifest`.

    `join` returns the query's `SharedRun`, which is created and started when it is first needed.
    """

    def __init__(self, options: SourceOptions, manifest: Manifest, join: Callable[[], SharedRun]) -> None:
        self.lag = Lag(notes_directory)
        # Whether the trigger is AvailableNow: the query ends at `endingPosition`, or at the tips at the time of the first call of `latest`
        self.available_now = False
        self._options = options
        self._offsets = StreamSet(manifest, drop=options.drop_removed_streams)
        self._run = QueryRun(options, join, self.warn_of_unread)
        self._asked = 0  # Number of calls of `latest`, which Spark makes once per trigger
        self._had_nothing = False  # Whether the last trigger found nothing to read in this source
        self._others_have_rows = False  # Whether the last micro-batch only had rows of the query's other sources
        self._ends_known = False  # Whether the query's end positions have been found
        self._last: dict[str, Any] | None = None
        self._has_planned = False
        self._step: tuple[Offset, Offset, BatchPlan] | None = None
        if options.max_bytes_per_trigger is not None:
            # For one minor version, warn that the meaning of this option has changed; see docs/versioning.md.
            logger.warning(
                "kinesis-efo option 'maxBytesPerTrigger' counts the data of records since 0.3, no longer their JSON with base64: with the "
                "same limit, micro-batches are 1.4 (10 KB records) to 11 times (20-byte records) as large; divide the limit by this "
                "factor to keep their size"
            )

    def latest(self, start: dict[str, Any] | None, *, once: bool) -> dict[str, Any]:
        """Return the end offset of the next micro-batch; `start` if there is nothing to read. With Spark 4.0, `start` is None.

        Spark only calls this after it has written the previous micro-batch to its commit log, so that micro-batch is finished.
        """
        self._check_end(once=once)
        self._asked += 1
        # Do not wait for records if the last micro-batch only had rows of the query's other sources.
        hurry, self._others_have_rows, self._had_nothing = self._others_have_rows, False, False
        position = self._begin(start or self._last or START)
        self._run.begin(position)
        begin = position if position.mark is not None and not position.mark.moved else None
        # Each call to the run lasts at most `poll_timeout`, so that the loop ends soon after `ending` is set.
        while not self._run.ending.is_set():
            step = self._run.shared.ask(Next(position, self._options.poll_timeout, hurry, once, self.available_now))
            self._record(position, step)
            if step.end is not None:
                return self._offsets.to_dict(step.end, begin)
            if not step.again:
                break
        else:
            self._run.check_stopping(ends=once or self.available_now or self._options.catch_up)
        self._had_nothing = True
        return self._offsets.to_dict(position, begin)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[KinesisPartition]:
        """Return the tasks of a micro-batch; empty if `start == end`, which Spark 4.0 passes to report the query's position."""
        self._last = end
        if start == end:
            return []
        planned = self._offsets.read(end, finished=False)
        # The end offset of micro-batch 0 also contains its begin, because Spark only logs the ends of micro-batches.
        begin = self._offsets.read_begin(end)
        if begin is None:
            begin = self._begin(start)
            if start == START:
                _check_first(begin, planned)
        if begin == planned:
            return []
        first, self._has_planned = not self._has_planned, True
        self._run.begin(planned)
        if SPARK_VERSION < (4, 2):
            self.lag.write(planned)
        run, plan = self._run.shared, None
        # Spark calls this method for each scan of the micro-batch. Reuse the plan that the run returned together with `end`, if available.
        if not first and self._step is not None and self._step[:2] == (begin, planned):
            plan = self._step[2]
            if planned.mark is not None:
                run.record_logged(planned.mark)
        plan = plan or run.ask(Plan(begin, planned, self._options.poll_timeout, first))
        # Wait until a fetcher serves each shard: tasks that start earlier could occupy the cores that fetchers need.
        while not plan.all_served and not self._run.ending.is_set():
            plan = run.ask(Plan(begin, planned, self._options.poll_timeout))
        served = plan.served(begin.ranges_to(planned))
        losses = self._options.accepted_losses
        ranges = [self._as_accepted(each.wanted, begin) if losses else each.wanted for each in served]
        sizes = {each.wanted.key: each.bytes for each in served if each.bytes is not None}
        hash_ranges = dict(plan.hash_ranges)
        together = streams_with_generations(begin, ranges)
        tasks: list[tuple[FetcherAddress | None, list[ShardRange]]] = [
            (fetcher, group)
            for fetcher, theirs in by_fetcher(ranges, [each.fetcher for each in served], together=together)
            for group in coalesce(theirs, sizes, together=together)
        ]
        if not tasks:
            # Plan an empty task to keep a Python worker alive: Spark ends workers after an idle minute, and starting one takes time.
            tasks = [(None, [])]
        return [
            KinesisPartition(
                fetcher,
                run.secret,
                tuple(group),
                deaggregate=self._options.deaggregate is not Deaggregation.OFF,
                hash_ranges={each.key: hash_ranges[each.key] for each in group if each.key in hash_ranges},
                planner=run.planner_address,
                query=run.query_name,
            )
            for fetcher, group in tasks
        ]

    def _as_accepted(self, wanted: ShardRange, begin: Offset) -> ShardRange:
        """Return `wanted`. Drop its `last` if the query accepts data loss there, because the range's last record may be lost, too."""
        accepted, horizon = self._options.accepted_losses.get(wanted.key), begin.horizons.get(wanted.key.stream)
        facts = Facts(accepted=accepted, horizon=horizon)
        return ShardRange(wanted.key, wanted.after, wanted.through) if facts.accepts_loss(wanted.after) else wanted

    def commit(self) -> None:
        """Called after Spark has planned a micro-batch. If only other sources have rows in it, the next `latest` call does not wait."""
        self._others_have_rows = self._had_nothing

    def stop(self) -> None:
        """Leave the run. If this was its last query, the run releases its leases and ends."""
        self.lag.clear()
        self._run.leave()

    def _begin(self, start: Mapping[str, Any]) -> Offset:
        return self._run.initial() if start == START else self._offsets.read(start)

    def _check_end(self, *, once: bool) -> None:
        if self._options.ends != Bounds() and not (once or self.available_now or self._options.catch_up):
            raise ConfigurationError(
                "kinesis-efo option 'endingPosition' needs a query that ends: .trigger(availableNow=True) on Spark 4.2 or newer; before, "
                "option 'catchUp' with that trigger; or spark.read. Leave it out for a query that does not end"
            )

    def _record(self, position: Offset, step: Step) -> None:
        """Store the run's reply about a micro-batch: its plan and sizes, the lags, and whether the query's end positions are known."""
        self._step = (position, step.end, step.plan) if step.end is not None and step.plan is not None else None
        self.lag.size = step.bytes, step.data
        self.lag.update(step.behind, step.end if position.has_ends else None)
        if step.ending is not None:
            self._ends_known = not step.ending.wanted

    def warn_of_unread(self, at_most: float = _REPORT_SECONDS) -> None:
        """Warn if Spark ended the query after one trigger, as with `Trigger.Once`, and may have left records unread.

        Waits up to `at_most` seconds for the driver to report the last micro-batch as finished.
        """
        options, finished = self._options, self._run.finishes_last(at_most)
        asked, self._asked = self._asked, 2  # warn only once
        if self._ends_known or asked > 1:
            return
        if asked == 0 and finished:
            logger.warning(
                "the query ended after one micro-batch, which an earlier run had begun, without looking for more records. With "
                "trigger(once=True), run it again: it continues where it ended"
            )
        unknown = self._has_planned and not options.listens
        at_tips = self.lag.at_tips and not (options.max_bytes_per_trigger or options.max_records_per_trigger)
        if asked == 1 and SPARK_VERSION < (4, 2) and not at_tips and (finished or self._had_nothing or unknown):
            logger.warning(
                "the query ended after one trigger, which may not have read all available records; the next run continues where it ended. "
                "With trigger(once=True) or trigger(availableNow=True), set kinesis-efo option 'catchUp' to true: before Spark "
                "4.2, only then does the one micro-batch read up to the tips"
            )


class QueryRun:
    """A query's access to its run: joins the run on first use, and leaves it at the end of the query."""

    def __init__(
        self, options: SourceOptions, join: Callable[[], SharedRun], before_leaving: Callable[[], None]
    ) -> None:
        self.ending = threading.Event()  # Set when this process receives a signal to end, so that waiting calls return
        self._start: Offset | None = None  # The start of a new query; None until the run has chosen it
        self._options = options
        self._join = join
        self._before_leaving = before_leaving
        # The mark to use if the checkpoint has none. It must not change between calls, because Spark compares offsets as text.
        self._mark = Mark(secrets.token_hex(4))
        self._begun = False
        self._signaled_at = inf
        self._shared: SharedRun | None = None

    @property
    def shared(self) -> SharedRun:
        """The query's run. The first access joins the run."""
        if self._shared is None:
            try:
                # Install the signal handlers before calling `start`, which may wait for AWS for a long time.
                self._shared = self._join()
                end_with_spark(self.ending, self.leave_when_quiet)
                self._shared.start()
            except BaseException:
                self._shared = None
                raise
            finally:
                end_ahead()
        return self._shared

    def initial(self) -> Offset:
        """Return the start offset of a new query. The first call makes the run choose it."""
        while self._start is None:
            self._start = self.shared.ask(Begin(new=True, mark=self._mark, wait=self._options.poll_timeout))
            if self._start is None and self.ending.is_set():
                raise stopped()
        self._begun = True
        return self._start

    def begin(self, planned: Offset) -> None:
        """Report the last offset in Spark's log (`planned`) to the run, for a query that continues. No effect once the query has begun."""
        if not self._begun:
            self.shared.ask(Begin(mark=self._mark, resumed=planned))
        self._begun = True

    def finishes_last(self, at_most: float) -> bool:
        """Wait up to `at_most` seconds for the driver's report that the last micro-batch is finished. Return whether it has arrived."""
        if self._options.listens and (shared := self._shared) is not None and (mark := shared.unfinished) is not None:
            with contextlib.suppress(KinesisEfoError):
                return shared.ask(Logged(mark, at_most))
        return False

    def leave(self) -> None:
        """Call `before_leaving`, then leave the run."""
        self._before_leaving()
        if self._shared is not None:
            self._shared.stop()
            self._shared = None

    def leave_when_quiet(self) -> None:
        """After a signal, leave the run once no task has read for `leaseTimeout`.

        Leaving at once could fail tasks: if all processes received the signal, the driver may still finish its micro-batch, and tasks may
        read again after a pause, for example in a second action of `foreachBatch`. Usually, Spark stops the reader earlier.
        """
        self._signaled_at = read_at = time.monotonic()
        while time.monotonic() - read_at < self._options.lease_timeout and (run := self._shared) is not None:
            time.sleep(0.1)
            with contextlib.suppress(KinesisEfoError):  # if the run has ended, no task reads from it
                if run.ask(Reading()):
                    read_at = time.monotonic()
        if (run := self._shared) is not None:
            self._before_leaving()
            run.stop()

    def check_stopping(self, *, ends: bool, wait: float = _STOP_SECONDS, stall: float = _STALL_SECONDS) -> None:
        """Called after a signal. Raise `FetcherUnreachableError` if Spark continues the query, which no longer receives records.

        A query that `ends` fails after `wait` seconds: otherwise, it would seem complete. Other queries fail after `stall` seconds.
        """
        if ends:
            time.sleep(wait)  # usually, Spark stops the query, and with it this process, during this time
        if ends or time.monotonic() - self._signaled_at > stall:
            raise FetcherUnreachableError(
                "the Python process that Spark started for this query received SIGTERM, but Spark did not stop the query; start it again"
            )
