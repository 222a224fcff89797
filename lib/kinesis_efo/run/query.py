"""One query of a run, in the run's event loop: its micro-batches, its progress, and the positions at which it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Final, TypeVar

from msgspec.structs import replace

from kinesis_efo.clock import within
from kinesis_efo.decisions.losses import Facts, low_watermark, time_of
from kinesis_efo.decisions.planning import PollReply, ShardProgress
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.status import QueryStatus
from kinesis_efo.fetcher.work import RowKey
from kinesis_efo.kinesis.topology import SharedCall
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.notes import RunNotes, new_query_warning, restored
from kinesis_efo.leases.row import Lease
from kinesis_efo.options import Bounds
from kinesis_efo.positions import TRIM_HORIZON, LastRecord, Mark, Offset, Position, PositionKind, ShardKey, ShardRange
from kinesis_efo.run.gap import GapWatch
from kinesis_efo.run.losses import Losses
from kinesis_efo.run.query_ends import EndPositions, Ends, seconds_left
from kinesis_efo.run.run import Run
from kinesis_efo.run.standing import shard_status, with_totals

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LIST_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
_TIP_SECONDS: Final = 60.0
"""Maximum seconds to wait until a shared buffer has reached the tip. Events confirm it; even an idle shard sends some in this time."""

_SENT_SECONDS: Final = 2.0
"""Assumed maximum delivery time of an event. A search for tips ignores events received sooner: they may be older than the search."""
_CONFIRM_SECONDS: Final = 15.0
"""Maximum seconds for which a query that starts at LATEST waits for events that confirm that the end of a shared buffer is recent. Even an
idle shard sends such events in that time."""

_TOGETHER_SECONDS: Final = 60.0
"""A query at LATEST may begin up to this many seconds in the past, so that queries that are started together begin at the same record."""


class Query:
    """Plans the micro-batches of one query. Creating it adds the query to the run.

    Args:
        ends: The option `endingPosition`.
        name: The query's name in the requests that its tasks send.
        max_skew: How far a shard may be ahead of the slowest shard, in seconds of arrival time; None for no limit.
        streams: The streams that the query reads; None for all streams of the run.
        accepted: The positions up to which the loss of records is accepted, by shard (option `acceptDataLoss`).
    """

    def __init__(
        self,
        run: Run,
        ends: Bounds | None = None,
        *,
        name: str = "query",
        max_skew: float | None = None,
        streams: Collection[str] | None = None,
        accepted: Mapping[ShardKey, Position] | None = None,
    ) -> None:
        self.progress: Final = Progress()  # The query's planned and finished offsets
        self._run = run
        self._given_streams = streams
        self.rows: Final = run.table.join(name, self.progress, max_skew, self._raise_if_failed)
        self.rows.checked = set()
        self._ends = ends or Bounds()
        self._shards: Collection[ShardKey] | None = None
        self._has_moved_rows = False
        self._unlisted: list[ShardKey] = []
        self._left_out: set[ShardKey] = set()
        self._complete_at: int | None = None
        self._losses = Losses(run.streams, self.facts, self._is_buffered)
        self.accepted: Final[Mapping[ShardKey, Position]] = accepted or {}
        self.resumption: Final = Resumption(run.lease_keys, run.leases.notes, run.continued)
        self._ending: asyncio.Task[EndPositions] | None = None
        self._uncounted: list[ShardProgress] = []
        self._records_done = self._bytes_done = 0
        self._gap = GapWatch()
        self.name: str | None = None  # The query's name in Spark; None until the driver reports it
        self.number: Final = run.join(self)  # The query's number, in the order of joining the run

    def _fail(self, error: KinesisEfoError) -> None:
        """Make the query's next call raise an error. If this is the run's only query, the run fails."""
        if len(self._run.queries) == 1:
            self._run.failure.set(error)
        else:
            self.rows.failure.set(error)

    def _raise_if_failed(self) -> None:
        self._run.failure.raise_if_set()
        self.rows.failure.raise_if_set()

    # -- called by the run

    @property
    def streams(self) -> Collection[str]:
        """The logical names of the streams that the query reads."""
        return self._run.streams.streams if self._given_streams is None else self._given_streams

    def horizon(self, key: ShardKey) -> float | None:
        """Return the trim horizon (epoch seconds) from which the query reads a shard; None if the query starts elsewhere or is past it."""
        offset = self.progress.finished if self.progress.reads(key) else None
        begins = offset is not None and offset.get(key, TRIM_HORIZON) == TRIM_HORIZON
        return offset.horizons.get(key.stream) if offset is not None and begins else None

    def has_planned(self, key: ShardKey) -> bool:
        """Whether a planned but unfinished micro-batch of the query begins at a shard's trim horizon."""
        finished, reach = self.progress.finished or Offset({}), self.progress.reach or Offset({})
        return finished.get(key, TRIM_HORIZON) == TRIM_HORIZON != reach.get(key, TRIM_HORIZON)

    @property
    def catches_up(self) -> bool:
        """Whether the query is catching up with GetRecords in any shard. Thread-safe."""
        return self.rows.has_separate_rows

    def status(self, *, shards: bool = False, stream: str | None = None) -> QueryStatus:
        """Return the query's status for tools, with a list of its shards if `shards`. With `stream`, count only that stream's shards."""
        brought, now = self._run.fetcher.counts[self.rows.name], self._run.clock.monotonic()
        known = QueryStatus(
            self.number,
            sorted(self.streams),
            self.progress.checkpoint,
            records_done=self._records_done,
            bytes_done=self._bytes_done,
            calls=brought.events,
            arrived=brought.bytes,
            name=self.name,
        )
        where = [
            shard_status(self._run.table, self.rows, key, done, now)
            for key, done in (self.progress.finished or {}).items()
            if stream in (None, key.stream)
        ]
        return with_totals(known, where, each=shards)

    def stop(self) -> None:
        """Cancel the search for the positions at which the query ends."""
        if self._ending is not None:
            self._ending.cancel()

    async def leave(self) -> None:
        """Leave the run, which stops fetching for this query. Lease rows may then advance past this query's positions."""
        self.stop()
        self._run.leave(self)
        self.rows.failure.stop()
        self._run.table.leave(self.rows)

    # -- called by `QueryPlanner`

    def plan(self, end: Offset) -> None:
        """Record the end of a planned micro-batch, which Spark may write to its log. Replaces an end with the same mark."""
        before = self.progress.reach
        self.progress.plan(end)
        if len(self._run.queries) > 1:
            self._run.table.update_orders(end.changes_since(before))

    async def start_at_latest(self, offset: Offset) -> Offset:
        """Return the start of a new query at LATEST, such that queries that are started together begin at the same record.

        If other queries have read a shard to its tip, the new query starts at the end of their shared buffer, provided that events received
        within 15 seconds confirm that this end is at most a minute old. The other shards start at the current time, as in `offset`.
        """
        clock = self._run.clock
        give_up_at = clock.monotonic() + _CONFIRM_SECONDS
        # Use the buffers' current ends, so that records that arrive from now on are read. Ignore an end that moves before it is confirmed.
        first = {key: self._run.table.shared[key].index.end for key in self._shared_tips(offset)}
        uncertain, moved = set(first), dict[ShardKey, Position]()
        while True:
            tips = self._shared_tips(offset)
            moved |= {key: first[key] for key in uncertain if tips.get(key) == first[key]}
            uncertain = {key for key in uncertain if key in tips and tips[key] is None}
            if not uncertain or clock.monotonic() >= give_up_at:
                break
            await clock.sleep(1.0)
        if moved:
            offset = Offset({**offset, **moved}, offset.lasts, offset.mark, offset.horizons, offset.created)
        return offset

    def _shared_tips(self, offset: Offset) -> dict[ShardKey, Position | None]:
        """Return the end of each shared buffer whose last event was at the tip; None for an end that may be more than a minute old."""
        tips: dict[ShardKey, Position | None] = {}
        for key, now in offset.items():
            row = self._run.table.shared.get(key)
            if row is None or now.kind is not PositionKind.AT_TIMESTAMP:
                continue
            end, since = row.index.end, now.value / 1000 - _TOGETHER_SECONDS
            # `now` was read before listing the shards. Ignore later ends of buffers: all records that arrived after `now` must be read.
            until = now.value / 1000 + 1
            if end.kind is PositionKind.AT_TIMESTAMP:
                if since <= end.value / 1000 and end.value <= now.value:
                    tips[key] = end  # no events yet: another query has just begun there, at LATEST
            elif row.behind == 0 and end.kind is PositionKind.AFTER and (time_of(key.shard, end, inf) or 0.0) <= until:
                tips[key] = end if row.read_until is not None and row.read_until >= since else None
        return tips

    async def wait_held(self, at_most: float) -> bool:
        """Wait up to `at_most` seconds for this run to acquire the leases on the query's streams. Return whether it owns them.

        Raises AlreadyRunningError if another run owns one of the leases.
        """
        await within(self._run.clock, at_most, self._run.leases.wait_held(self.streams))
        return self._has_rows

    @property
    def _has_rows(self) -> bool:
        """Whether this run owns the leases on the query's streams, and has therefore read the lease rows."""
        return all(map(self._run.leases.is_held, self.streams))

    async def poll(self, offset: Offset, max_data: int, max_records: int, at_most: float) -> PollReply:
        """Return how far the next micro-batch may read from `offset`, within the limits. Waits at most `at_most` seconds for records."""
        self.begin(offset)
        self._follow(offset)
        if not await self._check(self._check_losses(offset)):
            await self._run.clock.sleep(min(1.0, at_most))
            return PollReply([], [], [], undecided=True)
        starting = self._starting(offset)
        shards = await self.rows.planner.poll(offset, max_data, max_records, 0.0 if starting else at_most)
        self._uncounted = shards or self._uncounted
        self._gap.look(self._run.clock.monotonic(), partial(self.status, shards=True) if self.catches_up else None)
        self._run.failure.raise_if_set()
        reached: Mapping[ShardKey, Position] = offset
        if ends := {each.key: each.through for each in shards if each.through.is_end}:
            reached = {**offset, **ends}
            starting = self._run.streams.starting(reached)
        undecided = bool(starting) and not await self._check(self._losses.check_starting(reached))
        if undecided:
            # Keep the ended shards in the offset, so that a later poll starts their children.
            starting = []
        finished = self._run.streams.finished(offset) if offset.has_ends else []
        return PollReply(shards, starting, finished, undecided)

    def owns(self, row: RowKey) -> bool:
        """Whether a buffer is filled only for this query."""
        return row.query == self.rows.name

    def facts(self, key: ShardKey, position: Position) -> Facts:
        """Return the facts that show whether records after a position were lost: from the run, and from this query's start and options."""
        known = self._run.facts_of_all(key, position)
        horizon = self.horizon(key) if position == TRIM_HORIZON else None
        proven = (self.progress.finished or Offset({})).proof(key, position)
        return replace(known, accepted=self.accepted.get(key), horizon=horizon, proven=proven)

    def low_watermark(self, key: ShardKey, position: Position) -> float | None:
        """Return the low watermark of the query's position in a shard, in epoch seconds; None if unknown."""
        shard = self._run.streams.stream(key.stream).shard(key.shard)
        return low_watermark(key.shard, shard, position, self.facts(key, position), inf)

    def _is_buffered(self, key: ShardKey, position: Position) -> bool:
        row = self.rows.row(key, position)
        return row is not None and row.index.ended and row.index.covers(position) is True

    def _is_recent(self, key: ShardKey, position: Position) -> bool:
        return self._run.streams.stream(key.stream).is_recent(key.shard, position)

    async def _check_losses(self, offset: Offset) -> bool:
        rows = self._has_rows
        if (known := await self._losses.check(offset, rows=rows)) and rows and self.rows.checked is not None:
            self.rows.checked = None
            self._run.table.update_orders(self.rows.shards())
        return known

    async def _check(self, checking: Awaitable[T]) -> T:
        try:
            return await checking
        except KinesisEfoError as error:
            self._fail(error)
            raise

    def _starting(self, offset: Offset) -> list[ShardKey]:
        """Return the shards that can be started at `offset`. Caches an empty result until a shard ends or shards are listed again."""
        listings = self._run.streams.listings
        if self._complete_at == listings and not offset.has_ends:
            return []
        starting = self._run.streams.starting(offset)
        self._complete_at = listings if not starting else None
        for key in starting:
            parents = self._run.streams.stream(key.stream).lineage[key.shard].parents
            if key not in self._left_out and not any(ShardKey(key.stream, parent) in offset for parent in parents):
                self._left_out.add(key)
                logger.warning(
                    "stream %s, shard %s: neither the shard nor a parent is in the query's checkpoint; reading from its beginning",
                    *key,
                )
        return starting

    def still_quiet(self, offset: Offset, quiet: Mapping[ShardKey, float]) -> dict[ShardKey, float]:
        """Filter `quiet` (when each shard's tip was reached): keep shards in which the query still appears to be at the tip."""
        now = self._run.clock.monotonic()
        rows = {key: self.rows.row(key, offset[key]) for key in quiet if key in offset}
        return {key: quiet[key] for key, row in rows.items() if row is not None and row.quiet(now)}

    def silent(self, offset: Offset) -> dict[ShardKey, int]:
        """Return the lag in milliseconds of shards from which no event has arrived for so long that the silence counts as lag."""
        now = self._run.clock.monotonic()
        rows = ((key, self.rows.row(key, at)) for key, at in offset.items() if not at.is_end)
        lags = ((key, row.behind_now(now), row.behind) for key, row in rows if row is not None)
        return {key: lag for key, lag, last in lags if lag is not None and lag != last}

    def stop_reading(self, shards: frozenset[ShardKey]) -> None:
        """Stop reading `shards`, which the query has finished. Otherwise, their new events would fill the buffers and never be dropped."""
        planner = self.rows.planner
        if shards != planner.finished_shards:
            changed = shards ^ planner.finished_shards
            planner.finish(shards)
            self._run.table.update_orders(changed)

    def pause(self, *, yes: bool) -> None:
        """Pause or resume fetching for this query. It is paused until its end is known, because it may have reached its end already."""
        if self.rows.pauses != yes:
            self.rows.pauses = yes
            self._run.table.update_orders(self.rows.shards())

    def _follow(self, offset: Offset) -> None:
        """Update which shards have lease rows, if the offset has other shards than before or ListShards has returned a missing shard."""
        changed = self._shards != offset.keys()
        if changed:
            self._complete_at = None
        if changed or any(self._run.streams.lease_info(key, offset[key]).is_known for key in self._unlisted):
            shards = self._run.follow()
            self._unlisted = [key for key in offset if not shards[key].is_known]
        self._shards = offset.keys()

    def begin(self, offset: Offset, end: Offset | None = None) -> None:
        """Record that Spark has processed everything up to `offset`. `end` is the end of the micro-batch that begins there, if known."""
        self._raise_if_failed()
        self.rows.replay = None
        before, checked = self.progress.finished, self.rows.checked
        if checked is not None:
            checked |= {key for key, at in offset.items() if self._is_recent(key, at)}
        if self.progress.begin(offset, end):
            self._processed(offset, before)
        elif offset is not before:
            self._run.table.update_orders(offset.changes_since(before).keys() | ((before or {}).keys() - offset.keys()))

    def finish(self, mark: Mark) -> bool:
        """Finish the micro-batch whose end has this mark. Return False if it is already finished or was not planned."""
        self._raise_if_failed()
        before = self.progress.finished
        if not self.progress.finish(mark) or self.progress.finished is None:
            return False
        self._processed(self.progress.finished, before)
        return True

    def _processed(self, offset: Offset, before: Offset | None) -> None:
        """Called when everything up to `offset` is finished: drop the buffered events before it, and move the lease rows to it."""
        moved = offset.changes_since(before if self._has_moved_rows else None)
        self.resumption.processed(offset)
        self._count(offset)
        self._move_rows(offset, moved, (before or {}).keys() - offset.keys())

    def rewrite_lease_rows(self, offset: Offset) -> None:
        """Move the lease rows to the query's first offset in this run, in case the previous run ended before it moved them."""
        if not self._has_moved_rows:
            self._move_rows(offset, {**offset})

    def _move_rows(self, offset: Offset, moved: dict[ShardKey, Position], left: Collection[ShardKey] = ()) -> None:
        """Update the buffers of the shards that have moved or left the offset, and move the lease rows of the moved shards."""
        if self._shards is None:
            # Usually, the last poll has called `_follow`. However, the single micro-batch of option `catchUp` is planned without a poll.
            self._follow(offset)
        found = self._run.table.update_orders(moved.keys() | left, self.rows.name, finished=moved)
        # In the first call, also use the sequence numbers in the offset, since only an earlier run may have buffered the last micro-batch.
        before = {} if self._has_moved_rows else {key: LastRecord(number) for key, number in offset.lasts.items()}
        self._run.move_lease_rows(offset, moved, before | found)
        self._has_moved_rows = True

    def _count(self, offset: Offset) -> None:
        """Called when everything up to `offset` is processed: add the planned records and bytes before it to the totals."""
        for each in self._uncounted:
            # A shard that is no longer in the offset was read to its end, so its planned records count as processed.
            if each.bytes and (each.key not in offset or offset[each.key].reaches(each.through)):
                self._records_done += each.records
                self._bytes_done += each.bytes
        self._uncounted = []

    def last_records(self, ranges: Sequence[ShardRange]) -> dict[ShardKey, int]:
        """Return the sequence number of each range's last record. Leaves out ranges whose last record is unknown."""
        self._run.failure.raise_if_set()
        found = {wanted.key: self._run.table.last_record(self.rows.name, wanted) for wanted in ranges}
        return {key: last for key, last in found.items() if last is not None}

    async def check_replay(
        self,
        begin: Offset,
        ranges: Sequence[ShardRange],
        end: Offset | None = None,
        *,
        repeated: bool = True,
        if_requested: bool = False,
    ) -> None:
        """Begin the first micro-batch after a start or restart of the query, and check whether records in its `ranges` were lost.

        Set `repeated` if the ranges were planned earlier, maybe long ago. With `if_requested`, check them only once a task requests one:
        if the micro-batch is finished, its records may have been trimmed. Raises StreamReplacedError if a stream has been re-created.
        """
        self._check_created(begin)
        self.begin(begin, end)
        self._run.follow()  # keep the low watermarks of idle shards in the lease rows up to date until the first poll, too
        self.rows.replay = SharedCall(partial(self._check_ranges, ranges, repeated=repeated), self._run.clock, inf)
        if not if_requested:
            await self.rows.replay.get()

    async def _check_ranges(self, ranges: Sequence[ShardRange], *, repeated: bool) -> None:
        old = [each for each in ranges if not self._is_recent(each.key, each.after)]
        # Wait for the leases and, with them, the lease rows: a row may show that an idle shard was read further than `ranges`.
        await self._run.leases.wait_held({each.key.stream for each in old}, self._run.patience)
        while not await self._check(self._losses.check_replay(old, repeated=repeated)):
            # Wait until the check succeeds: reading does not reveal the loss of records that a shared buffer has already skipped.
            await self._run.clock.sleep(_LIST_SECONDS)
            self._raise_if_failed()
        if self.rows.checked is not None:
            self.rows.checked |= {each.key for each in ranges}
            self._run.table.update_orders(self.rows.checked)
        self.rows.replay = None

    async def hash_ranges(self, shards: Collection[ShardKey]) -> dict[ShardKey, tuple[int, int]]:
        """Return the hash key range of each shard in which tasks drop aggregated records that belong to other shards."""
        strict = await self._run.strictness.of(sorted({key.stream for key in shards}))
        return await self._run.streams.hash_ranges([key for key in shards if key.stream in strict])

    def record_logged(self, mark: Mark) -> None:
        """Record that the micro-batch whose end has this mark is in Spark's log. Thread-safe."""
        self._run.leases.notes.record_mark(mark)

    def resume(self, offset: Offset) -> None:
        """Warn if the checkpoint's last `offset` is behind the lease table. Raises StreamReplacedError if a stream was re-created."""
        self._check_created(offset)
        self.resumption.resume(offset)

    def _check_created(self, offset: Offset) -> None:
        for name, created in offset.created.items():
            self._run.streams.stream(name).check_created(created)

    # -- search for the positions at which the query ends

    @asynccontextmanager
    async def _suspend_others(self, shards: Collection[ShardKey]) -> AsyncIterator[dict[ShardKey, Position]]:
        """Yield the tips of shards whose shared buffers reach the tip within a minute. Meanwhile, close the buffers of the other shards.

        The caller can then subscribe to these other shards. Otherwise, two subscriptions to one shard would keep disconnecting each other.
        """
        async with self._run.searches:
            found = await self._tips_of_others(shards)
            async with self._run.suspended(set(shards) - found.keys()):
                yield found

    async def _tips_of_others(self, shards: Collection[ShardKey]) -> dict[ShardKey, Position]:
        run, clock = self._run, self._run.clock
        found: dict[ShardKey, Position] = {}
        since = clock.monotonic() + _SENT_SECONDS
        # This query is paused during the search, so that only other queries cause these buffers to be filled.
        while (
            rows := run.table.shared.keys() & (set(shards) - found.keys())
        ) and clock.monotonic() < since + _TIP_SECONDS:
            await clock.sleep(_LOOK_SECONDS)
            for key in rows & run.table.shared.keys():
                if (row := run.table.shared[key]).has_all_since(since):
                    found[key] = row.index.end
        return found

    async def ends(self, offset: Offset, at_most: float) -> EndPositions | None:
        """Return where a query at `offset` ends: at the tips that the first call finds, or at the positions in `endingPosition`.

        Returns None if the search takes longer than `at_most` seconds: call again. Raises ConfigurationError if the option names a missing
        stream or shard, or a time in the future.
        """
        self._run.failure.raise_if_set()
        if self._ending is None:
            self.begin(offset)
            self._follow(offset)
            self._ending = asyncio.create_task(self._find_ends(offset), name="ends")
        done, _ = await asyncio.wait({self._ending}, timeout=at_most)
        self._run.failure.raise_if_set()
        return self._ending.result() if done else None

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        """Return the end of a single micro-batch that reads everything from `offset` to the query's end, including descendant shards.

        Returns None if the search takes longer than `at_most` seconds: call again. Raises ConfigurationError like `ends`.
        """
        if (found := await self.ends(offset, at_most)) is None:
            return None
        self._ending = None
        return Offset(found.ends, found.lasts)

    async def _find_ends(self, offset: Offset) -> EndPositions:
        # `endingPosition` may be some seconds in the future. Wait for that time, then list the shards: until then, a shard may be split.
        await self._run.clock.sleep(seconds_left(self._ends, self._run.clock))
        await self._run.streams.refresh(self.streams)
        while True:
            # Wait until ListShards returns all shards of the offset: the query would ignore a shard for which no end position was found.
            await self._run.streams.list_shards(offset)
            # Wait for the leases: the check needs the rows, and subscribing without a lease would disconnect the run that owns it.
            await self._run.leases.wait_held(self.streams, self._run.patience)
            known = await self._check_losses(offset)
            ends = Ends(self._ends, self._run.streams, offset, self._run.clock)
            # The query reads the descendants of trimmed shards instead. Check whether the descendants were trimmed, too.
            if not (known and await self._losses.check_starting({**offset, **ends.gone})):
                await self._run.clock.sleep(_LIST_SECONDS)
                await self._run.streams.refresh(self.streams)
                continue
            found = await ends.find(self._suspend_others)
            # If listing reveals new children of ended shards, search again: the children can have records before the query's end.
            ended = {key: end for key, end in found.ends.items() if end.is_end}
            children = await self._run.streams.list_children(ended)
            if children <= ends.listed | offset.keys():
                return found


class Resumption:
    """Warns once if a query's checkpoint is behind the lease table, or if a new query reads streams that earlier queries have read.

    The lease rows of a stream become available when its lease is acquired. All queries of the run share `continued`, the streams for which
    new queries do not warn: another query continues reading the stream, or the warning was already logged.
    """

    def __init__(self, keys: LeaseKeys, notes: RunNotes, continued: set[str]) -> None:
        self._keys = keys
        self._notes = notes
        self._continued = continued
        self._is_new = False
        self._offset: Offset | None = None
        self._rows: dict[str, Mapping[str, Lease]] = {}
        self._compared: set[str] = set()
        self._warned: set[str] = set()

    def resume(self, offset: Offset) -> None:
        """Record that the query continues at `offset`, and compare `offset` with the lease rows."""
        self._offset = offset
        self._continued |= {key.stream for key in offset}
        for stream in self._rows:
            self._compare(stream)

    def mark_new(self, streams: Collection[str], *, from_leases: bool) -> None:
        """Record that the query is new. With `from_leases`, it starts at the positions in the lease table."""
        self._is_new = not from_leases
        if from_leases:
            self._continued |= set(streams)

    def processed(self, offset: Offset) -> None:
        """Warn if the query is new, its streams have lease rows of earlier queries, and no query of the run continues reading the streams.

        Called after the query's first micro-batch: by then, queries that were started at the same time have joined the run.
        """
        if not self._is_new:
            return
        self._is_new = False
        for stream in sorted({key.stream for key in offset} - self._continued):
            self._continued.add(stream)
            if said := new_query_warning(stream, self._keys.by_shard(self._rows.get(stream, {}))):
                logger.warning("%s", said)

    def load_rows(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Store a stream's lease rows, and compare the query's checkpoint with them."""
        self._rows[stream] = rows
        self._compare(stream)

    def _compare(self, stream: str) -> None:
        if self._offset is None or stream in self._compared:
            return
        self._compared.add(stream)
        rows = self._keys.by_shard(self._rows[stream])
        said = restored(self._offset, stream, rows, self._notes.reached(stream))
        # Warn once per checkpoint: if the offset has a mark, only the mark is compared, which has the same result for all streams.
        about = stream if self._offset.mark is None else self._offset.mark.checkpoint
        if said is not None and about not in self._warned:
            self._warned.add(about)
            logger.warning("%s", said)
