"""Writes the checkpoints of shards into the lease table: after changes, at a bounded rate, and only while the run's lease is held.

Checkpoints are for tools and for new queries; a query continues from Spark's own offsets. Every row has the epoch of the run that wrote
it, and a run does not overwrite the rows of a later run. It does replace checkpoints of another stream, such as one that was deleted and
created again since.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import LeaseError, LeaseLostError, TableUnavailableError
from kinesis_efo.failure import Failure
from kinesis_efo.leases.cleanup import finished_parents, passed_parents
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict, EarlierWrite, LeaseStore, Outcome, Success
from kinesis_efo.positions import SHARD_END, LastRecord, Position, ShardKey

logger = logging.getLogger(__name__)

CLEANUP_INTERVAL: Final = 60.0
"""Seconds between two cleanups of the rows of finished shards (KCL's interval)."""

REFRESH_INTERVAL: Final = 60.0
"""Seconds between two writes of `readUntil` if the position does not change, as that of an idle polled shard."""

_LOOK_INTERVAL: Final = 5.0
_RETRY_PAUSE: Final = 1.0
_LAST_WRITES_IN_FLIGHT: Final = 32


@dataclass(frozen=True, slots=True)
class Pace:
    """How often checkpoints are written.

    Attributes:
        rate: Most writes a second, all shards together.
        interval: Least seconds between two checkpoints of one shard.
    """

    rate: float = 25.0
    interval: float = 5.0


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A position to store with one of the next writes."""

    position: Position
    children: frozenset[str] = frozenset()
    record: LastRecord | None = None

    def is_news_to(self, row: Lease) -> bool:
        """Whether storing it changes a row: positions move only forwards."""
        return row.advances(self.position) or not self.children <= row.children

    def stored_in(self, row: Lease) -> Lease:
        """Return the row with this position."""
        return row.checkpointed(self.position, self.children, self.record)


class Checkpoints:
    """Maintains the rows of the shards that a run reads. One per run, on one asyncio loop.

    Args:
        table: The lease table.
        keys: Keys of the rows.
        epoch: Returns the epoch of the run's lease on a stream; None while it is not held.
        identity: Returns the identity of the stream with a logical name.
        pace: How often rows are written.
        clock: Time.
        read_until: Returns a time such that all records of the shard that arrived before it lie at or before a position, in epoch
            seconds; None if not known.
        failure: Gets the error that ends the run.
        fetcher: Returns the name of a shard's fetcher, for people who look at the rows; None if there is only one.
    """

    def __init__(
        self,
        table: LeaseStore,
        keys: LeaseKeys,
        epoch: Callable[[str], int | None],
        identity: Callable[[str], StreamIdentity],
        pace: Pace,
        clock: Clock,
        *,
        read_until: Callable[[ShardKey, Position], float | None],
        failure: Failure,
        fetcher: Callable[[ShardKey], str | None] = lambda _shard: None,
    ) -> None:
        self._table = table
        self._keys = keys
        self._epoch = epoch
        self._identity = identity
        self._fetcher = fetcher
        self._pace = pace
        self._clock = clock
        self._read_until = read_until
        self._failure = failure
        self._rows: dict[ShardKey, Lease] = {}
        self._strays: dict[ShardKey, Lease] = {}
        self._wanted: dict[ShardKey, LeaseInfo] = {}
        self._finished: dict[ShardKey, LeaseInfo] = {}
        self._noted: dict[ShardKey, PendingCheckpoint] = {}
        self._queue: list[tuple[float, int, ShardKey]] = []
        self._queued: set[ShardKey] = set()
        self._numbers = count()
        self._written_at: dict[ShardKey, float] = {}
        self._wake = asyncio.Event()
        self._cleanup_at: float | None = None
        self._look_at = clock.monotonic() + _LOOK_INTERVAL
        self._troubled = False
        self._task: asyncio.Task[None] | None = None

    # -- called by the reader

    def found(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Note the rows of a stream's shards when its lease was taken."""
        for known in (self._rows, self._strays):
            for shard in [shard for shard in known if shard.stream == stream]:
                del known[shard]
        for shard, row in self._keys.by_shard(rows).items():
            if row.key == self._keys.encode(shard):
                self._keep(shard, row)
        if self._strays:
            stray = next(iter(self._strays.values()))
            logger.warning("checkpoint %s is of another stream, %s: such rows are replaced", stray.key, stray.stream)
            for shard in self._strays:
                self._enqueue(shard)
        if rows:
            self._clean_soon()

    def want(self, shards: Mapping[ShardKey, LeaseInfo]) -> None:
        """Set the shards that the query reads now. Missing rows are created, and incomplete ones completed.

        Args:
            shards: All of them, with the contents of new rows.
        """
        new = {
            shard
            for shard, info in shards.items()
            if (known := self._wanted.get(shard)) is None or info.is_known != known.is_known
        }
        gone = self._wanted.keys() - shards.keys()
        # A shard may be read to its end before its row is created. It still needs one, or it would seem not to have been read.
        self._finished |= {
            shard: self._wanted[shard]
            for shard in gone - self._rows.keys()
            if (noted := self._noted.get(shard)) is not None and noted.position.is_end
        }
        self._wanted = dict(shards)
        for shard in sorted(new):
            self._enqueue(shard)
        if gone:
            self._clean_soon()

    def note(self, shard: ShardKey, position: Position, record: LastRecord | None = None) -> None:
        """Note the position of a shard, to be written later. Positions move only forwards.

        Args:
            shard: The shard.
            position: Everything up to here is done.
            record: The last record up to there; None if not known.
        """
        noted = self._noted.get(shard)
        if noted is None or (position != noted.position and position.reaches(noted.position)):
            self._noted[shard] = PendingCheckpoint(
                position, record=record if record is not None or noted is None else noted.record
            )
            self._enqueue(shard)

    def stored(self, shard: ShardKey) -> Position | None:
        """Return the position of a shard in its row, or the one about to be written there; None if it has none."""
        if (noted := self._noted.get(shard)) is not None:
            return noted.position
        row = self._rows.get(shard)
        return row.position if row is not None else None

    def finish(self, shard: ShardKey, children: Collection[str] = ()) -> None:
        """Note that a shard is done to its end.

        Args:
            shard: The shard.
            children: Shard ids of its children.
        """
        self._noted[shard] = PendingCheckpoint(SHARD_END, frozenset(children))
        self._enqueue(shard, soon=True)
        self._clean_soon()

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        """Return a time such that all records that arrived before it lie at or before a position, from the shard's row; epoch seconds."""
        row = self._rows.get(shard)
        known = row is not None and row.position is not None and position.reaches(row.position)
        return row.read_until if row is not None and known else None

    # -- start and stop

    def start(self) -> None:
        """Start writing."""
        self._task = asyncio.create_task(self._run(), name="checkpoints")

    async def stop(self, at_most: float = 4.0) -> None:
        """Write all pending checkpoints at once, while the run's lease is still held.

        Args:
            at_most: Longest duration, seconds; the rest stays unwritten.
        """
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        slots = asyncio.Semaphore(_LAST_WRITES_IN_FLIGHT)
        left = [
            shard for shard in {*self._queued, *self._wanted, *self._noted} if self._epoch(shard.stream) is not None
        ]

        async def write(shard: ShardKey) -> None:
            async with slots:
                await self._write(shard, last=True)

        writing = [asyncio.create_task(write(shard)) for shard in left]
        if writing:
            await within(self._clock, at_most, asyncio.wait(writing))
        unwritten = sum(not task.done() or task.exception() is not None for task in writing if not task.cancelled())
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
        if unwritten:
            logger.warning("%d of %d last checkpoints were not written to %s", unwritten, len(left), self._table.label)

    # -- writing

    def _enqueue(self, shard: ShardKey, pause: float = 0.0, *, soon: bool = False) -> None:
        if shard in self._queued and not soon:
            return
        now = self._clock.monotonic()
        due = now + pause if soon else max(now + pause, self._written_at.get(shard, now) + self._pace.interval)
        if shard not in self._rows:
            due = now + pause
        self._queued.add(shard)
        heapq.heappush(self._queue, (due, next(self._numbers), shard))
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                now = self._clock.monotonic()
                await self._tidy(now)
                if self._queue and self._queue[0][0] <= now:
                    _, _, shard = heapq.heappop(self._queue)
                    if shard in self._queued:
                        await self._write_paced(shard)
                    continue
                due = [
                    self._look_at,
                    *([self._cleanup_at] if self._cleanup_at else []),
                    *(at for at, *_ in self._queue[:1]),
                ]
                await within(self._clock, min(due) - now, self._wake.wait())
        except LeaseError as error:
            self._failure.set(error)
        except Exception as error:
            logger.error("writing checkpoints failed", exc_info=error)
            self._failure.set(LeaseError(f"{self._table.label}: writing checkpoints failed: {error!r}"))

    async def _write_paced(self, shard: ShardKey) -> None:
        began = self._clock.monotonic()
        self._queued.discard(shard)
        if self._epoch(shard.stream) is None:
            self._enqueue(shard, _RETRY_PAUSE, soon=True)
            return
        try:
            wrote = await self._write(shard)
        except TableUnavailableError as error:
            if not self._troubled:
                logger.warning("checkpoints wait: %s", error)
            self._troubled = True
            self._enqueue(shard, _RETRY_PAUSE, soon=True)
            await self._clock.sleep(_RETRY_PAUSE)
            return
        self._troubled = False
        if wrote:
            await self._clock.sleep(max(0.0, began + 1 / self._pace.rate - self._clock.monotonic()))

    async def _write(self, shard: ShardKey, *, last: bool = False) -> bool:
        """Write a shard's pending changes; returns whether there were any."""
        wrote = False
        while (epoch := self._epoch(shard.stream)) is not None:
            if (stray := self._strays.get(shard)) is not None and stray.epoch <= epoch:
                await self._drop_stray(shard, stray)
                wrote = True
                continue
            row = self._rows.get(shard)
            change = self._created(shard) if row is None else self._changed(shard, row, last=last)
            if change is None or stray is not None or change.epoch > epoch:  # a later run has written the row
                return wrote
            wrote = True
            change = change.written_in(epoch, self._identity(shard.stream), self._fetcher(shard), self._clock.time())
            outcome: Outcome | EarlierWrite
            if row is None:
                outcome = await self._table.create_if_absent(change)
            else:
                outcome = await self._table.apply(row, lambda _, change=change: change)  # type: ignore[misc]
            if isinstance(outcome, Success):
                self._rows[shard] = outcome.lease
                self._written_at[shard] = self._clock.monotonic()
                self._finished.pop(shard, None)
                return True
            current = outcome.lease if isinstance(outcome, EarlierWrite) else outcome.current
            if current is None:
                del self._rows[shard]
            else:
                self._check_owner(current)
                self._keep(shard, current)
        return wrote

    def _keep(self, shard: ShardKey, row: Lease) -> None:
        """Remember a row of the table: among the rows, or among the strays if it is of another stream."""
        stray = row.is_of_another(self._identity(shard.stream))
        known, other = (self._strays, self._rows) if stray else (self._rows, self._strays)
        known[shard] = row
        other.pop(shard, None)

    async def _drop_stray(self, shard: ShardKey, row: Lease) -> None:
        """Delete the row of another stream. If the shard is read, it gets a new row later."""
        outcome = await self._table.delete(row)
        self._strays.pop(shard, None)
        if isinstance(outcome, Conflict) and outcome.current is not None:
            self._keep(shard, outcome.current)

    def _created(self, shard: ShardKey) -> Lease | None:
        """Make the row of a shard that has none; None if nothing is known about it."""
        noted, info = self._noted.get(shard), self._wanted.get(shard) or self._finished.get(shard)
        if info is None:
            return None
        row = Lease.new(self._keys.encode(shard), info)
        # The first position noted for a shard may be the end of its first micro-batch; records lie before it.
        if noted is not None and (
            noted.is_news_to(row) or (noted.record is not None and noted.position == row.position)
        ):
            row = noted.stored_in(row)
        return self._seen(shard, row)

    def _changed(self, shard: ShardKey, row: Lease, *, last: bool) -> Lease | None:
        """Return a shard's row with its pending changes; None if there are none."""
        noted, info = self._noted.get(shard), self._wanted.get(shard)
        complete = row if info is None else row.completed(info)
        if noted is not None and noted.is_news_to(row):
            return self._seen(shard, noted.stored_in(complete))
        if complete != row or self._is_outdated(shard, row, 1.0 if last else REFRESH_INTERVAL):
            return self._seen(shard, complete.renewed())
        return None

    def _is_outdated(self, shard: ShardKey, row: Lease, seconds: float) -> bool:
        """Whether the row's `read_until` is behind by `seconds` or more."""
        until = self._read_until(shard, row.position) if row.position is not None else None
        return until is not None and until - (row.read_until or 0.0) >= seconds

    def _seen(self, shard: ShardKey, row: Lease) -> Lease:
        return row if row.position is None else row.seen(self._read_until(shard, row.position))

    def _check_owner(self, row: Lease) -> None:
        """Raise an error if a shard's row has an owner: a KCL application, which ignores the run's lease."""
        if row.owner is not None:
            raise LeaseLostError(
                f"{readable(row.owner)} took lease {row.key} while this query was reading: a KCL application reads with "
                f"{self._table.label}, too. Nothing was lost; stop it, or give this query an application of its own"
            )

    # -- periodic work

    def _clean_soon(self) -> None:
        self._cleanup_at = self._cleanup_at or self._clock.monotonic() + CLEANUP_INTERVAL

    async def _tidy(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + _LOOK_INTERVAL
            for shard in self._wanted:
                if (row := self._rows.get(shard)) is not None and self._is_outdated(shard, row, REFRESH_INTERVAL):
                    self._enqueue(shard)
        if self._cleanup_at is not None and now >= self._cleanup_at:
            await self._clean(now)

    async def _clean(self, now: float) -> None:
        """Finish and delete the rows of parents that were read to their end, except those of `want`."""
        self._cleanup_at = now + CLEANUP_INTERVAL if self._rows.keys() - self._wanted.keys() else None
        rows = {row.key: row for shard, row in self._rows.items() if row.epoch <= (self._epoch(shard.stream) or -1)}
        wanted = {self._keys.encode(shard) for shard in self._wanted}
        left = rows.keys() - wanted
        for row, children in passed_parents(rows, left, wanted):
            shard = self._keys.decode(row.key)
            assert shard is not None
            if (noted := self._noted.get(shard)) is None or not noted.position.is_end:
                logger.debug("checkpoint %s finished: its shard was read to its end in an earlier run", row.key)
                self.finish(shard, children)
        try:
            for row in finished_parents(rows, left):
                outcome = await self._table.delete(row)
                shard = self._keys.decode(row.key)
                assert shard is not None
                if isinstance(outcome, Conflict) and outcome.current is not None:
                    self._rows[shard] = outcome.current
                else:
                    logger.debug(
                        "checkpoint %s deleted: its shard was read to its end, and its children have begun", row.key
                    )
                    for known in (self._rows, self._noted, self._written_at):
                        known.pop(shard, None)
        except TableUnavailableError as error:
            logger.warning("rows of finished shards stay for now: %s", error)
