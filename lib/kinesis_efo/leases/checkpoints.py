"""Writes shard checkpoints to the lease table after they change, at a limited rate, and only while the run has the lease.

These checkpoints are for tools and for new queries; a restarted query continues from Spark's offsets. A run does not overwrite the
rows of a later run (rows contain their run's epoch). It replaces rows of other streams, such as a deleted stream of the same name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import LeaseError, LeaseLostError, LeaseTableError, TableUnavailableError
from kinesis_efo.failure import Failure
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.shard_rows import PendingCheckpoint, ShardRow, finished_parents, passed_parents
from kinesis_efo.leases.store import Conflict, LeaseStore
from kinesis_efo.positions import SHARD_END, LastRecord, Position, ShardKey

logger = logging.getLogger(__name__)

CLEANUP_INTERVAL: Final = 60.0
"""Seconds between two cleanups of the lease rows of finished shards (KCL's interval)."""

REFRESH_INTERVAL: Final = 60.0
"""Seconds after which `readUntil` is written again for an idle shard, whose position does not change."""

_SHARD_INTERVAL: Final = 5.0
"""Minimum seconds between two checkpoints of one shard. The checkpoint at a shard's end is written without this delay."""

_LOOK_INTERVAL: Final = 5.0
_STEP_SECONDS: Final = 1.0
"""Maximum seconds between two checks for rows that are due."""
_LAST_WRITES_IN_FLIGHT: Final = 32


class Checkpoints:
    """Maintains the lease rows of the shards that a run reads. A run has one instance, in its event loop."""

    def __init__(
        self,
        table: LeaseStore,
        keys: LeaseKeys,
        epoch: Callable[[str], int | None],  # Returns the epoch of the run's lease on a stream; None without a lease
        identity: Callable[[str], StreamIdentity],  # Returns the identity of a stream by logical name
        rate: float,  # Maximum writes per second, for all shards together
        clock: Clock,
        *,
        read_until: Callable[[ShardKey, Position], float | None],  # Returns the low watermark of a position, if known
        failure: Failure,  # Stores the error that ends the run
        fetcher: Callable[[ShardKey], str | None] = lambda _shard: None,  # Returns the name of a shard's fetcher
        # Returns the trim horizon at which the first query began to read a shard; None if no query began there
        horizon: Callable[[ShardKey], float | None] = lambda _shard: None,
    ) -> None:
        self._table = table
        self._keys = keys
        self._epoch = epoch
        self._identity = identity
        self._fetcher = fetcher
        self._horizon = horizon
        self._rate = rate
        self._clock = clock
        self._read_until = read_until
        self._failure = failure
        self._shards: dict[ShardKey, ShardRow] = {}
        self._identities: dict[str, StreamIdentity] = {}  # The streams to which the rows in `_shards` belong
        # Streams that queries have begun to read. Rows left by an earlier stream of the same name are deleted only for these streams
        self._begun: set[str] = set()
        self._due: dict[ShardKey, float] = {}  # When to write each shard's row, in monotonic seconds
        self._wake = asyncio.Event()
        self._look_at = clock.monotonic() + _LOOK_INTERVAL
        self._cleanup_at = inf
        self._troubled = False
        self._task: asyncio.Task[None] | None = None

    # -- called by the run

    def load(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Set the current rows of a stream's shards, after the run has acquired the stream's lease."""
        self._identities[stream] = self._identity(stream)
        for shard, each in self._shards.items():
            if shard.stream == stream:
                each.row = each.stray = None
        for shard, row in self._keys.by_shard(rows).items():
            if row.key == self._keys.encode(shard):
                self._of(shard).load(row, self._identity(shard.stream))
        strays = [(shard, each.stray) for shard, each in self._shards.items() if each.stray is not None]
        for number, (shard, row) in enumerate(strays):
            self._enqueue(shard)
            if number == 0:
                logger.warning("checkpoint %s is from another stream, %s: it is replaced", row.key, row.stream)
        if rows:
            self._clean_soon()

    def reload(self, stream: str) -> bool:
        """Replace the rows and pending positions of a stream that was re-created. Returns whether it was. No query may read it now."""
        if stream not in self._identities or not self._identities[stream].differs(self._identity(stream)):
            return False
        shards = [each for shard, each in self._shards.items() if shard.stream == stream]
        for each in shards:
            each.pending = None
        self._begun.discard(stream)
        self.load(stream, {each.key: each.row for each in shards if each.row is not None})
        return True

    def request(self, shards: Mapping[ShardKey, LeaseInfo]) -> None:
        """Set the shards that queries read. Creates missing rows from `LeaseInfo`, and corrects parents and hash keys in existing rows."""
        gone = [each for shard, each in self._shards.items() if each.wanted and shard not in shards]
        for each in gone:
            each.leave()
        if gone:
            self._clean_soon()
        self._begun |= {shard.stream for shard in shards}
        strays = {shard for shard, each in self._shards.items() if each.stray and shard.stream in self._begun}
        for shard in sorted(strays | {shard for shard, info in shards.items() if self._of(shard).request(info)}):
            self._enqueue(shard)

    def update(self, shard: ShardKey, position: Position, record: LastRecord | None = None) -> None:
        """Record that a shard is processed up to `position`. `record`: the last record. The row is written later, and never moves back."""
        if self._of(shard).update(position, record) and shard not in self._due:
            self._enqueue(shard)

    def stored(self, shard: ShardKey) -> Position | None:
        """Return the newest position of a shard, which may not be written to its row yet; None if no position is known."""
        each = self._shards.get(shard)
        return each.position if each is not None else None

    def finish(self, shard: ShardKey, children: Collection[str] = ()) -> None:
        """Record that a shard is processed up to its end. `children` are the shard ids of its children."""
        self._of(shard).pending = PendingCheckpoint(SHARD_END, frozenset(children))
        self._enqueue(shard, 0.0)
        self._clean_soon()

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        """Return the low watermark of a position (epoch seconds) from the shard's row; None if the row does not contain it."""
        row = each.row if (each := self._shards.get(shard)) is not None else None
        return None if row is None else row.read_until_at(position)

    def read_since(self, shard: ShardKey) -> float | None:
        """Return the arrival time of the oldest record that `read_until` at `TRIM_HORIZON` covers, epoch seconds; None if it covers all."""
        row = each.row if (each := self._shards.get(shard)) is not None else None
        return None if row is None else row.read_since

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="checkpoints")

    async def stop(self, at_most: float = 4.0) -> None:
        """Write all pending checkpoints, for at most `at_most` seconds. Must be called before the run releases its leases."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        slots = asyncio.Semaphore(_LAST_WRITES_IN_FLIGHT)

        async def write(shard: ShardKey) -> None:
            async with slots:
                await self._write(shard, last=True)

        writing = [asyncio.create_task(write(shard)) for shard in self._shards]
        if writing:
            await within(self._clock, at_most, asyncio.wait(writing))
        for task in writing:
            task.cancel()
        unwritten = [each for each in await asyncio.gather(*writing, return_exceptions=True) if each is not None]
        if unwritten:
            label = self._table.label
            logger.warning("%d of %d last checkpoints were not written to %s", len(unwritten), len(writing), label)

    # -- writing rows

    def _of(self, shard: ShardKey) -> ShardRow:
        if (each := self._shards.get(shard)) is None:
            each = self._shards[shard] = ShardRow(self._keys.encode(shard))
        return each

    def _enqueue(self, shard: ShardKey, after: float | None = None) -> None:
        """Schedule the write of a shard's row in `after` seconds or, if `after` is None, as soon as `_SHARD_INTERVAL` allows."""
        now, each = self._clock.monotonic(), self._of(shard)
        if after is None:
            last = now if each.written_at is None else each.written_at
            after = 0.0 if each.row is None else last + _SHARD_INTERVAL - now
        self._due[shard] = min(self._due.get(shard, inf), now + after)
        if after <= 0:
            self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                now = self._clock.monotonic()
                if now >= self._look_at:
                    self._look_at = now + _LOOK_INTERVAL
                    self._refresh()
                if now >= self._cleanup_at:
                    await self._clean(now)
                wrote = await self._write_due(now)
                await self._clock.sleep(max(0.0, now + wrote / self._rate - self._clock.monotonic()))
                if wrote < self._rate:  # if not, the rate was reached, and more rows may be due
                    await within(self._clock, _STEP_SECONDS, self._wake.wait())
        except LeaseError as error:
            self._failure.set(error)
        except Exception as error:
            logger.error("writing checkpoints failed", exc_info=error)
            self._failure.set(LeaseError(f"{self._table.label}: writing checkpoints failed: {error!r}"))

    async def _write_due(self, now: float) -> int:
        """Write rows that are due, longest overdue first, but no more than allowed per second. Returns the number of written rows."""
        wrote = 0
        for shard in sorted((each for each, at in self._due.items() if at <= now), key=self._due.__getitem__):
            if self._epoch(shard.stream) is None:
                continue
            del self._due[shard]
            self._of(shard).written_at = now  # a change during the write then waits for `_SHARD_INTERVAL`
            try:
                wrote += await self._write(shard)
            except TableUnavailableError as error:
                if not self._troubled:
                    logger.warning("checkpoints wait: %s", error)
                self._troubled = True
                self._enqueue(shard, _STEP_SECONDS)
                await self._clock.sleep(_STEP_SECONDS)
                break
            self._troubled = False
            if wrote >= self._rate:
                break
        return wrote

    async def _write(self, shard: ShardKey, *, last: bool = False) -> bool:
        """Write a shard's pending changes. Returns whether anything was written."""
        each, wrote = self._of(shard), False
        while (epoch := self._epoch(shard.stream)) is not None:
            if each.stray is not None and each.stray.epoch <= epoch and shard.stream in self._begun:
                await self._table.delete(each.stray)
                each.stray, wrote = None, True
                continue
            row = each.row
            outdated_by = 1.0 if last else REFRESH_INTERVAL
            change = each.change(partial(self._read_until, shard), outdated_by, self._horizon(shard))
            if change is None or each.stray is not None or change.epoch > epoch:  # do not overwrite a later run's row
                return wrote
            wrote = True
            stream, fetcher, now = self._identity(shard.stream), self._fetcher(shard), self._clock.time()
            change = replace(change, epoch=epoch, stream=stream, fetcher=fetcher, written=now)
            outcome = await (self._table.create(change) if row is None else self._table.update(row, change))
            if isinstance(outcome, Lease):
                each.wrote(outcome, self._clock.monotonic())
                return True
            self._check_owner(outcome.current)
            if row is None and outcome.current is None:
                # The write conflicts with a row that is not a lease, so retrying would never succeed.
                raise LeaseTableError(f"{self._table.label}: row {each.key} exists and is not a lease; delete it")
            each.load(outcome.current, stream)
        return wrote

    def _check_owner(self, row: Lease | None) -> None:
        """Raise an error if a shard's row has an owner: only KCL applications set owners there, and they ignore this run's lease."""
        if row is not None and row.owner is not None:
            raise LeaseLostError(
                f"{readable(row.owner)} took lease {row.key} while this query was reading: a KCL application uses {self._table.label}, "
                "too. Nothing was lost; stop it, or use a separate application for this query"
            )

    def _refresh(self) -> None:
        """Schedule writes of rows whose `readUntil` is outdated because their shards are idle."""
        for shard, each in self._shards.items():
            if each.wanted and each.is_outdated(partial(self._read_until, shard), REFRESH_INTERVAL):
                self._enqueue(shard)

    def _clean_soon(self) -> None:
        self._cleanup_at = min(self._cleanup_at, self._clock.monotonic() + CLEANUP_INTERVAL)

    async def _clean(self, now: float) -> None:
        """Write `SHARD_END` to the rows of shards that earlier runs read to their end, and delete rows that are not needed anymore."""
        by_key = {each.key: shard for shard, each in self._shards.items()}
        rows = {
            key: row
            for key, shard in by_key.items()
            if (row := self._shards[shard].row) is not None and row.epoch <= (self._epoch(shard.stream) or -1)
        }
        wanted = {each.key for each in self._shards.values() if each.wanted}
        left = rows.keys() - wanted
        self._cleanup_at = now + CLEANUP_INTERVAL if by_key.keys() - wanted else inf
        for row, children in passed_parents(rows, left, wanted):
            pending = self._shards[by_key[row.key]].pending
            if pending is None or not pending.position.is_end:
                logger.debug("checkpoint %s finished: its shard was read to its end in an earlier run", row.key)
                self.finish(by_key[row.key], children)
        try:
            for row in finished_parents(rows, left):
                outcome = await self._table.delete(row)
                shard = by_key[row.key]
                each = self._shards[shard]
                if isinstance(outcome, Conflict) and outcome.current is not None:
                    each.load(outcome.current, self._identity(shard.stream))
                    continue
                logger.debug(
                    "checkpoint %s deleted: its shard was read to its end, and its children have begun", row.key
                )
                each.row = each.pending = None
                if not each.wanted:
                    del self._shards[shard]
        except TableUnavailableError as error:
            logger.warning("rows of finished shards are not deleted yet: %s", error)
