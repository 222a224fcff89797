"""Plans the micro-batches of one query by executing the calls defined in `access`, in the run's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import within
from kinesis_efo.decisions.ending import Ending
from kinesis_efo.decisions.losses import START_SECONDS, gap, time_of
from kinesis_efo.decisions.planning import NO_LIMIT, PollReply, may_wait
from kinesis_efo.errors import StreamError
from kinesis_efo.options import Deaggregation, SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Mark, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.access import BatchPlan, Begin, Call, Logged, Next, Plan, Reading, Step
from kinesis_efo.run.query import Query

if TYPE_CHECKING:
    from kinesis_efo.run.whole_run import WholeRun

_UNKNOWN: Final = -1
_ENDING_SECONDS: Final = 0.2
"""Maximum seconds that a poll waits for records once the query's end positions are known. The planner then checks whether the query has
reached them: events without records can advance a shard to its end position, but do not wake the poll."""
_PROVEN_PART: Final = 1 / 48
"""Fraction of the minimum retention by which an idle shard's low watermark must advance before it is stored in the offset again."""
_SILENT_SECONDS: Final = 2.0
"""Minimum seconds between two searches for silent shards, whose lag grows without a new event."""
_WAIT_SECONDS: Final = 0.2
"""Seconds between two checks whether a micro-batch that waits for more records has become large enough."""


class Advance:
    """Computes the end offsets of a query's micro-batches from the replies to polls.

    Args:
        idle_interval: Seconds after which a micro-batch is planned even if it only stores new positions of idle shards.
        last_records: Returns the sequence number of the last record of each range, if known.
        now: Returns monotonic seconds.
    """

    def __init__(
        self,
        ending: Ending,
        idle_interval: float,
        last_records: Callable[[Sequence[ShardRange]], Mapping[ShardKey, int]],
        now: Callable[[], float],
    ) -> None:
        self.sizes: Mapping[ShardKey, int] = {}  # The buffered bytes of the planned micro-batch, by shard
        self.data = 0  # The estimated bytes of data in the planned micro-batch
        self.quiet: Final[dict[ShardKey, float]] = {}  # When each tip was apparently reached, in monotonic seconds
        self._ending = ending
        self._idle_interval = idle_interval
        self._last_records = last_records
        self._now = now
        self._stored_idle_at = now()
        self._idle: dict[ShardKey, Position] = {}
        self._empty: dict[ShardKey, ShardRange] = {}

    def to(self, position: Offset, reply: PollReply, mark: Mark | None) -> Offset | None:
        """Return the end of the micro-batch that begins at `position`; None if `reply` has nothing that must be planned now.

        `mark` is used if `position` lacks a mark.
        """
        starting = [key for key in reply.starting if self._ending.includes(key)]
        justified = bool(starting)
        moved: dict[ShardKey, Position] = {}
        empty: dict[ShardKey, Position] = {}
        lasts: dict[ShardKey, int] = {}
        cut: list[ShardRange] = []
        sizes = {}
        data = 0
        for progress in reply.shards:
            key, whole = progress.key, progress.through
            if progress.quiet:
                self.quiet[key] = self._now() - progress.quiet
            else:
                self.quiet.pop(key, None)
            through = self._ending.limit_to_target(key, position[key], whole)
            if through == position[key]:
                continue
            if progress.records or through.is_end:
                moved[key], sizes[key] = through, progress.bytes
                data += progress.data
                if not progress.records:
                    empty[key] = through
                elif (last := progress.last if through == whole else self._ending.last(key, through)) is not None:
                    lasts[key] = last
                elif through != whole:
                    cut.append(ShardRange(key, position[key], through))
                self._idle.pop(key, None)
                justified = True
            else:
                self._idle[key] = through
        # Store the positions of idle shards regularly, so that the stored positions do not become older than the stream's retention.
        due = self._now() - self._stored_idle_at >= self._idle_interval
        if not justified and not (self._idle and (due or self._ending.reached(position | self._idle))):
            return None
        # Include the positions of idle shards from earlier replies, since a poll returns each such position only once.
        idle = {
            key: at
            for key, at in self._idle.items()
            if key in position and at != position[key] and at.reaches(position[key])
        }
        self._idle.clear()
        self._stored_idle_at = self._now()
        self.sizes, self.data = sizes, data
        self._empty = {key: ShardRange(key, position[key], at) for key, at in (idle | empty).items()}
        after = position | idle | moved | dict.fromkeys(starting, TRIM_HORIZON)
        for finished in reply.finished:
            del after[finished]
        if cut:
            lasts |= self._last_records(cut)
        return position.moved_to(after, lasts, mark)

    def ranges(self, position: Offset, end: Offset) -> list[ShardRange]:
        """Return the ranges of the micro-batch that have records, in any order. Their `last` is not set."""
        return [ShardRange(key, position[key], end[key]) for key in self.sizes if key not in self._empty]

    def has_records(self, wanted: ShardRange) -> bool:
        """Whether a range may have records; False only if this run has planned it as a range without records."""
        return self._empty.get(wanted.key) != wanted


class QueryPlanner:
    """Plans one query's micro-batches by executing the calls that its source sends. `streams` has the logical names of its streams."""

    def __init__(
        self, run: WholeRun, query: Query, name: str, options: SourceOptions, streams: Collection[str]
    ) -> None:
        self.query: Final = query
        self._run = run
        self._name = name
        self._options = options
        self._streams: Final = frozenset(streams)
        self._ending = Ending(catch_up=options.catch_up, ends=options.ends, patience=options.retry.timeout)
        now = run.clock.monotonic
        self._advance = Advance(self._ending, options.idle_checkpoint_interval, query.last_records, now)
        self._mark: Mark | None = None
        self._moved = asyncio.Event()
        self._added: Offset | None = None
        self._left_at: Offset | None = None
        self._behind: dict[ShardKey, int | None] = {}
        self._knows_all = self._may_read = self._is_proven = False
        self._rows_are_good = self._alone = False
        self._planned_at = self._silent_due = -inf
        self._prove_interval = run.limits.shortest_retention * _PROVEN_PART
        self._proven_at = now() - self._prove_interval + START_SECONDS / 2

    async def answer(self, call: Call[Any]) -> Any:
        """Execute a call and return its result. Raises KinesisEfoError if the run or the query has failed."""
        match call:
            case Next():
                return await self._next(call)
            case Plan():
                return await self._plan(call)
            case Begin():
                return await self._begin(call)
            case Logged():
                return await self._logged(call)
            case Reading():
                self._run.run.failure.raise_if_set()
                return self._run.run.reading
        raise TypeError(call)

    async def finished(self, marks: Collection[Mark], name: str | None, *, alone: bool = False) -> None:
        """Process the driver's report that the micro-batches with these `marks` are finished. Marks of other queries are ignored.

        `name` is the query's name in Spark. `alone` is set if the query has a single source.
        """
        for mark in marks:
            if self.query.finish(mark):
                self.query.name, self._alone = name, alone
                self._moved.set()

    async def _logged(self, call: Logged) -> bool:
        # Record the mark even if the micro-batch is not finished, because the sink may already have stored its rows.
        self.query.record_logged(call.mark)
        give_up_at = self._run.clock.monotonic() + call.wait
        while not self.query.progress.has_finished(call.mark):
            self._moved.clear()
            if (left := give_up_at - self._run.clock.monotonic()) <= 0:
                return False
            await within(self._run.clock, left, self._moved.wait())
        return True

    async def _begin(self, call: Begin) -> Offset | None:
        query, start = self.query, self._options.start
        self._mark = call.mark
        if call.planned is not None:
            query.record_logged(call.planned)
        if call.ending is not None:
            self._ending.restore(call.ending, self._run.clock.monotonic())
        if call.resumed is not None:
            query.resume(call.resumed)
        # If the query has already begun, a call from another thread was faster: `kept` is outdated, so ignore it.
        if call.kept is not None and query.progress.finished is None:
            # Tasks may still read the micro-batch that begins at `kept`. Begin there now: the `Next` call only comes after these tasks.
            ranges = [] if call.end is None else call.kept.ranges_to(call.end)
            await query.check_replay(call.kept, ranges, call.end, if_requested=True)
        if not call.new:
            return None
        if start.from_leases and not self._rows_are_good:
            await self._run.initial(start, self._streams, query)
            self._rows_are_good = True
        # Read the lease rows again once this run has the leases: until then, an earlier run that is ending may move the rows.
        if start.from_leases and not await self._has_leases(call.wait):
            return None
        initial = await self._run.initial(start, self._streams, query)
        return Offset(initial, {}, self._mark, initial.horizons, initial.created)

    async def _next(self, call: Next) -> Step:
        position, ending = call.position, self._ending
        if call.available_now:
            ending.available_now()
        if call.once:
            ending.once()
        # Do not subscribe until the query's end positions are known: the query may have reached them already.
        self.query.pause(yes=ending.wanted)
        # Everything up to `position` is finished: Spark writes a micro-batch to its commit log before it requests the next one.
        self.query.begin(position)
        if ending.over:
            return self._step()
        # Wait for the leases even without records: if another run owns them, the query must fail before Spark commits other sources' rows.
        if not await self._has_leases(call.wait):
            return self._step(again=True)
        self.query.rewrite_lease_rows(position)
        added = await self._added_streams(position)
        if added and not (ending.wanted and ending.in_one_batch):
            # Plan an empty micro-batch, so that Spark's log contains where the added streams start.
            return self._step(position.moved_to({**position, **added}, {}, self._mark, added))
        if ending.wanted and ending.in_one_batch:
            if (tips := await self.query.tips(position, call.wait)) is None:
                return self._step(again=True)
            ending.set_targets(tips, self._run.clock.monotonic())
            # Include the start of added streams. This micro-batch does not read them yet; the query reads them when it is started again.
            end = await self._proven(position, {**ending.single_batch_end(position), **added}, tips.lasts, added)
            self.query.pause(yes=end is position)
            return self._step(end, size=None)
        if ending.wanted:
            if (found := await self.query.ends(position, call.wait)) is None:
                return self._step(again=True)
            ending.set_targets(found.ends, self._run.clock.monotonic(), lasts=found.lasts)
        return await self._poll(call)

    async def _poll(self, call: Next) -> Step:
        position, ending, options = call.position, self._ending, self._options
        at_most = 0.0 if call.hurry and ending.targets is None else call.wait
        if ending.targets is not None:
            at_most = min(at_most, _ENDING_SECONDS)
        most = options.max_bytes_per_trigger or NO_LIMIT, options.max_records_per_trigger or NO_LIMIT
        if ending.targets is not None and position is not self._left_at:
            self._left_at = position
            self.query.stop_reading(ending.finished_shards(position))
            self.query.pause(yes=False)
        give_up_at = self._run.clock.monotonic() + call.wait
        reply = await self.query.poll(position, *most, at_most)
        waits = await self._wait_for_more(call, reply, give_up_at)
        behind = [
            (each.key, lag)
            for each in reply.shards
            for lag in [each.millis_behind if each.left is None else max(each.left, each.millis_behind or 0)]
            if self._behind.get(each.key, _UNKNOWN) != lag
        ]
        self._behind.update(behind)
        if len(self._behind) > 2 * len(position):
            self._behind = {key: millis for key, millis in self._behind.items() if key in position}
        if waits:
            # While waiting for more records, process the positions of idle shards: a poll returns each such position only once.
            idle = [each for each in reply.shards if not (each.records or each.through.is_end)]
            reply = PollReply(idle, undecided=reply.undecided)
        end = self._advance.to(position, reply, self._mark)
        now, after = self._run.clock.monotonic(), end or position
        if end is not None and now >= self._silent_due:
            self._silent_due = now + _SILENT_SECONDS
            behind += (silent := self.query.silent(end)).items()
            self._behind.update(silent)
        # Store low watermarks regularly, but only once after the query has reached its end: each time may plan an empty micro-batch.
        is_last = ending.reached(after)
        if not self._is_proven if is_last else now - self._proven_at >= self._prove_interval:
            self._proven_at, self._is_proven = now, is_last
            proven = await self._proven(position, after, after.lasts, None)
            if end is None and proven is not position:
                return self._step(proven, behind=behind)
            end = end and proven
        if end is not None:
            # A micro-batch that only stores positions of idle shards does not restart the wait for more records.
            self._planned_at = self._run.clock.monotonic() if self._advance.sizes else self._planned_at
            size = sum(self._advance.sizes.values()), self._advance.data
            if end is position:
                return self._step(size=size, behind=behind)
            plan = await self._served(self._advance.ranges(position, end), 0.0)
            return self._step(end, size=size, behind=behind, plan=plan if plan.all_served else None)
        if not waits:  # otherwise, some shards have unplanned records, so they are not read to their tips
            # Check the shards again: if there were no recent events, the query may no longer be at a shard's tip.
            quiet = {} if ending.targets is None else self.query.still_quiet(position, self._advance.quiet)
            if ending.end_quiet(position, quiet, self._run.clock.monotonic()):
                self._left_at = None  # call `stop_reading` for these shards, too: their later records would use up the trigger's limits
        unfinished = ending.targets is not None and (reply.undecided or not ending.reached(position))
        return self._step(again=unfinished or (waits and self._alone), behind=behind)

    async def _wait_for_more(self, call: Next, reply: PollReply, give_up_at: float) -> bool:
        """Return whether to plan the next micro-batch later, with more records. If so, first wait a moment for them.

        Waiting delays the query's other sources, since Spark polls them one after another. So by default, only a query with a single source
        waits. With `minBytesPerTrigger`, every query waits and reports no records meanwhile, like Spark's Kafka source.
        """
        options, least = self._options, self._options.min_bytes_per_trigger
        now = self._run.clock.monotonic()
        due_at = self._planned_at + options.max_trigger_delay
        if due_at <= now or call.hurry or reply.starting or not (self._alone or least is not None):
            return False
        if not may_wait((each for each in reply.shards if not self._ending.ends_at(each.key, each.through)), least):
            return False
        left = max(0.0, min(due_at, give_up_at, now + _WAIT_SECONDS) - now)
        await (self.query.rows.planner.until_tip(left) if least is None else self._run.clock.sleep(left))
        return True

    async def _plan(self, call: Plan) -> BatchPlan:
        query = self.query
        if call.end.mark is not None:
            query.record_logged(call.end.mark)
        # After a run has died, its `Begin` call has added the end that an earlier run planned.
        repeated = call.first and (call.end not in query.progress.planned or query.rows.replay is not None)
        query.plan(call.end)
        ranges = list(filter(self._advance.has_records, call.begin.ranges_to(call.end)))
        if call.first:
            await query.check_replay(call.begin, ranges, call.end, repeated=repeated)
        return await self._served(ranges, call.wait)

    async def _served(self, ranges: Sequence[ShardRange], at_most: float) -> BatchPlan:
        placed = await self._run.placed(ranges, at_most, self._name)
        numbers: dict[FetcherAddress | None, int] = {}
        sizes = self._advance.sizes
        shards = [
            (wanted.key, numbers.setdefault(fetcher, len(numbers)), sizes.get(wanted.key))
            for wanted, fetcher in zip(ranges, placed, strict=True)
        ]
        hash_ranges: Mapping[ShardKey, tuple[int, int]] = {}
        if self._options.deaggregate is Deaggregation.STRICT and ranges:
            hash_ranges = await self.query.hash_ranges([wanted.key for wanted in ranges])
        return BatchPlan(list(numbers), shards, list(hash_ranges.items()))

    def _step(
        self,
        end: Offset | None = None,
        *,
        again: bool = False,
        size: tuple[int, int] | None = (0, 0),
        behind: Sequence[tuple[ShardKey, int | None]] = (),
        plan: BatchPlan | None = None,
    ) -> Step:
        if end is not None:
            self.query.plan(end)
        ending = self._ending.state() if self._ending.changed else None
        total, data = size or (None, None)
        return Step(end, again, total, data, list(behind), plan, ending)

    async def _proven(
        self, position: Offset, after: Mapping[ShardKey, Position], lasts: Mapping[ShardKey, int], added: Offset | None
    ) -> Offset:
        """Return the end offset of a micro-batch. For idle shards, it includes the low watermark, unless that was stored recently.

        Otherwise, a query whose position in an idle shard never moves would report a loss once the position is older than the retention.
        """
        until, horizons, now = {}, dict[str, float | None](), self._run.clock.time()
        last = {key: max(position.until.get(key, 0.0), time_of(key.shard, at, inf) or 0.0) for key, at in after.items()}
        old = [key for key, at in after.items() if not at.is_end and now - last[key] >= self._prove_interval]
        with suppress(StreamError):  # if the retention is unknown, store no low watermarks; the next call tries again
            for name in {key.stream for key in old}:
                horizons[name] = await within(self._run.clock, 1.0, self._run.run.streams.stream(name).horizon())
        for key in old:
            at, horizon = after[key], horizons.get(key.stream)
            known = self.query.low_watermark(key, at) or 0.0
            # If unread records may have been trimmed, do not store a low watermark, which would hide this loss.
            whole = horizon is not None and not gap(known, horizon, self.query.horizon(key), START_SECONDS)
            time = self._run.run.read_until(key, at, known) if whole else None
            if time is not None and time - last[key] >= self._prove_interval:
                until[key] = time
        return position.moved_to(after, lasts, self._mark, added, until)

    async def _has_leases(self, at_most: float) -> bool:
        """Wait at most `at_most` seconds for the query's leases. Once they were acquired, every later call returns True immediately."""
        self._may_read = self._may_read or await self.query.wait_held(at_most)
        return self._may_read

    async def _added_streams(self, position: Offset) -> Offset:
        """Return the start positions of the query's streams that are not in `position` yet; empty if there are none. Caches the result."""
        if self._knows_all or not (names := self._streams - {key.stream for key in position}):
            # Later offsets contain the same streams, so this check is not needed again.
            self._knows_all = True
            return Offset({})
        if self._added is None:
            self._added = await self._run.added(self._options.new_stream_start, sorted(names))
        return self._added
