"""Checks whether records were trimmed before they were read, and reports losses. The rules are in `decisions.losses`."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import replace

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.decisions.losses import (
    NO_FACTS,
    START_SECONDS,
    Facts,
    Gap,
    gap,
    is_whole,
    low_watermark,
    start_horizon,
    time_of,
)
from kinesis_efo.kinesis.faults import lost_after
from kinesis_efo.kinesis.topology import SKEW_SECONDS, SharedCall, Topology
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind

logger = logging.getLogger(__name__)

_FRESH_SECONDS: Final = 60.0

_CONFIRM_SECONDS: Final = 60.0
"""While a position is older than the minimum retention, the stream's retention is read at this interval, because it may be shortened."""

_MOST_IDLE: Final = 100_000

_AGAIN_SECONDS: Final = 60.0
"""After a warning, losses of the shard are not logged for up to this many seconds: at the trim horizon, a loss may precede each event."""

_TOGETHER_SECONDS: Final = 1.0
"""Maximum seconds for which losses are collected into one log line."""

_SHOWN: Final = 5

_OLDER: Final = ", and those of older shards that are not listed any more,"


class _Loss(NamedTuple):
    shard_id: str
    cause: str
    gap: Gap | None


class _Check(NamedTuple):
    """A check at time `at` that found no loss after the low watermark `since`. It is repeated later: `retention` may have been outdated."""

    since: float
    at: float
    retention: float
    position: Position
    known: Facts


class LossLog:
    """Logs losses of records that do not fail the query. Losses within a second are logged together. `count`: number of losses so far."""

    def __init__(self, stream: str, clock: Clock) -> None:
        self.count = 0
        self._stream = stream
        self._clock = clock
        self._found: defaultdict[str, list[_Loss]] = defaultdict(list)
        self._due = -inf

    def add(self, shard_id: str, cause: str, remark: str, gap: Gap | None = None) -> None:
        """Collect a loss for the next `write` or `write_soon`. Losses with the same `remark` share a log line that ends with it."""
        self.count += 1
        self._found[remark].append(_Loss(shard_id, cause, gap))

    async def write_soon(self) -> None:
        """Wait until the collected losses are logged, which takes up to a second. Call this before delivering the records after a loss."""
        now = self._clock.monotonic()
        if now >= self._due:
            self._due = now + _TOGETHER_SECONDS
        try:
            await self._clock.sleep(self._due - now)
        finally:
            self.write()

    def write(self) -> None:
        """Log the collected losses: the first few in full; of the rest, only the shards and the time span."""
        found, self._found = self._found, defaultdict(list)
        for remark, losses in found.items():
            text = "; ".join(loss.cause for loss in losses[:_SHOWN])
            if more := losses[_SHOWN:]:
                gaps = [loss.gap for loss in more if loss.gap is not None]
                times = (_text(min(gaps).since), _text(max(gap.horizon for gap in gaps))) if gaps else ()
                between = f", of any records between {' and '.join(times)}" if times else ""
                text += f"; and {len(more)} more{between}, in shards {_numbers([loss.shard_id for loss in more])}"
            about = f"{len(losses):,} losses in stream {self._stream!r}: " if len(losses) > 1 else ""
            logger.warning("%s%s%s", about, text, remark)


def _numbers(shard_ids: Collection[str]) -> str:
    """Format the numbers in shard ids, as in "3, 7 to 12, 20"; the whole ids if they do not end in numbers."""
    numbers, found = {shard_id.rpartition("-")[2] for shard_id in shard_ids}, list[list[int]]()
    if not all(map(str.isdecimal, numbers)):
        return ", ".join(sorted(shard_ids))
    for number in sorted(map(int, numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in found)


class Retention:
    """Checks whether records after a position may have been trimmed. Raises or warns, depending on `fail` and the accepted losses.

    It detects every loss that follows from positions, listed shards and the stream's current retention. It may also report a loss in a
    shard that was always idle: Kinesis does not reveal whether there were records. It reads the stream's retention only if a position is
    older than `shortest` seconds, the minimum retention of any stream.

    Losses that do not fail the query are added to `log`, which the caller writes. `shard` returns a shard by its id; None if unlisted.
    """

    def __init__(
        self,
        stream: StreamRef,
        lister: Topology,
        clock: Clock,
        shard: Callable[[str], Awaitable[Shard | None]],
        *,
        fail: bool,
        shortest: float,
    ) -> None:
        self.log: Final = LossLog(stream.name, clock)
        self._stream = stream
        self._clock = clock
        self._shard = shard
        self._fail = fail
        self._shortest = shortest
        self._summary = SharedCall(lambda: lister.summary(stream.stream_arn), clock, _FRESH_SECONDS)
        # By shard and position: `read_until` and `since` from `was_idle`. They prevent a false loss report when reading restarts there.
        self._idle: dict[tuple[str, Position], tuple[float, float | None]] = {}
        # By shard: the span of arrival times whose loss was logged recently, so that it is not logged again.
        self._covered: dict[str, tuple[float, float]] = {}
        self._covers_until = -inf
        # By shard and reader: the last check of a position older than the minimum retention, repeated in case the retention is shortened
        self._checks: dict[tuple[str, str | None], _Check] = {}

    async def check(
        self,
        shard_id: str,
        position: Position,
        known: Facts = NO_FACTS,
        *,
        begins: bool = False,
        least: float = START_SECONDS,
        reader: str | None = None,
    ) -> Gap | None:
        """Return the gap if the trim horizon has passed a position, so that reading can only continue at the horizon; otherwise None.

        Args:
            position: How far the shard has been read.
            known: The low watermark at the position, and which losses are accepted.
            begins: Whether no query has committed a record of the shard yet.
            least: With `begins`, seconds that the trim horizon may move after a query chose it as its start, without counting as a loss.
            reader: The query that reads the shard separately; None if queries share a subscription; empty before reading begins.

        Raises:
            DataLossError: Records may be gone, and the options do not accept the loss.
            ClientError: The stream's retention cannot be read.
        """
        now = self._clock.time()
        until = known.read_until if known.covers_all(position) else None
        last = self._checks.get((shard_id, reader))
        if until is not None and now - until <= self._shortest and last is None:
            return None  # a fast path, since this is called for every event
        shard = None
        since = self.low_watermark(shard_id, shard, position, known)
        if position.sequence_number is None and (since is None or now - since > self._shortest):
            shard = await self._shard(shard_id)
            since = self.low_watermark(shard_id, shard, position, known)
        is_recent = since is None or now - since <= self._shortest
        if last is not None:
            await self._repeat_check((shard_id, reader), last, is_last=is_recent)
        if since is None or is_recent:
            return None
        start = start_horizon(shard or await self._shard(shard_id), known) if begins else None
        found = gap(since, await self.horizon(), start, least)
        if found is not None and not self._covers(shard_id, found):
            # Read the retention again: it may have been increased since it was last read.
            found = gap(since, await self.horizon(self._clock.monotonic()), start, least)
        if is_whole(await self._shard(shard_id), position):
            return None
        if found is None:
            last = self._checks.get((shard_id, reader))
            if reader != "" and (last is None or since < last.since):
                retention = (await self._summary.get()).retention
                self._checks[shard_id, reader] = _Check(since, now, retention, position, known)
            return None
        parents = shard.parents if shard is not None and position.kind is PositionKind.AT_TIMESTAMP else ()
        # If the position is a start time and the parents are no longer listed, report that the parents' records may be lost, too.
        older = bool(parents) and not [each for each in parents if await self._shard(each) is not None]
        if older:
            found = found._replace(since=min(found.since, position.value / 1000))
        self._report(shard_id, position, known, found, older=older)
        return found

    async def _repeat_check(self, by: tuple[str, str | None], last: _Check, *, is_last: bool) -> None:
        """Repeat the check `last` after `_CONFIRM_SECONDS`; now if `is_last`. If the retention was shortened, report the missed loss."""
        age = self._clock.time() - last.at
        if not is_last and age < _CONFIRM_SECONDS:
            return
        retention = (await self._summary.get(self._clock.monotonic() - age)).retention  # as of the check, or later
        if self._checks.get(by) is last:
            del self._checks[by]
        if retention < last.retention and (found := gap(last.since, last.at - retention, None)) is not None:
            self._report(by[0], last.position, last.known, found, older=False)

    def is_recent(self, shard_id: str, position: Position, shard: Shard | None) -> bool:
        """Whether all records after a position are certainly retained: they are younger than `shortest`. `shard` is None if unlisted."""
        since = self.low_watermark(shard_id, shard, position, NO_FACTS)
        return since is not None and self._clock.time() - since <= self._shortest

    def low_watermark(self, shard_id: str, shard: Shard | None, position: Position, known: Facts) -> float | None:
        """Return the low watermark of a position; None if unknown. Considers the times that `was_idle` recorded."""
        latest = self._clock.time() + SKEW_SECONDS
        found = low_watermark(shard_id, shard, position, known, latest)
        if (idle := self._idle.get((shard_id, position))) is None:
            return found
        heard = replace(known, read_until=idle[0], read_since=idle[1])
        times = (found, low_watermark(shard_id, shard, position, heard, latest))
        return max((time for time in times if time is not None), default=None)

    def was_idle(self, shard_id: str, position: Position, read_until: float, since: float | None) -> None:
        """Record that no record after a position arrived from `since` (None: the shard's beginning) to `read_until`, epoch seconds."""
        if len(self._idle) >= _MOST_IDLE:
            self._idle.clear()
        if (before := self._idle.get((shard_id, position))) is not None:
            since = before[1] if since is None or before[0] >= since else since
            read_until = max(before[0], read_until)
        self._idle[shard_id, position] = read_until, since

    def idle(self, shard_id: str, position: Position) -> tuple[float, float | None] | None:
        """Return the times `read_until` and `since` that `was_idle` recorded for a position; None if it recorded none."""
        return self._idle.get((shard_id, position))

    async def is_past(self, shard_id: str, number: int) -> bool:
        """Whether the record with this sequence number is older than the stream's retention."""
        written = time_of(shard_id, Position.after(number), self._clock.time() + SKEW_SECONDS)
        return written is not None and not await self.reaches_back_to(round(written * 1000))

    async def reaches_back_to(self, epoch_ms: int) -> bool:
        """Whether records that arrived at `epoch_ms` are still within the stream's retention."""
        age = self._clock.time() - epoch_ms / 1000
        return age <= self._shortest or age <= (await self._summary.get()).retention

    async def horizon(self, since: float = -inf) -> float:
        """Return the trim horizon in epoch seconds, from a retention that was read at `since` (monotonic seconds) or later."""
        return self._clock.time() - (await self._summary.get(since)).retention

    def report_gone(self, shard_id: str, position: Position | None, known: Facts) -> None:
        """Report the loss of a trimmed shard's records after `position` (None: the loss of all its records)."""
        read = "was not read" if position is None else f"was read up to {position} only"
        # If the shard was never read, records of its parents may be lost, too, but the parents of a trimmed shard are unknown.
        older = _OLDER if position is None else ""
        self._handle(
            shard_id,
            position or TRIM_HORIZON,
            known,
            f"stream {self._stream.name!r}, shard {shard_id} does not exist any more, and {read}: its unread records{older} are gone "
            "(retention)",
        )

    def _report(self, shard_id: str, position: Position, known: Facts, found: Gap, *, older: bool) -> None:
        since, horizon = _text(found.since), _text(found.horizon)
        read = "has not been read yet" if position == TRIM_HORIZON else f"was read up to {position} only"
        lost = (
            f"stream {self._stream.name!r}, shard {shard_id} {read}, and the stream does not keep records for so long: any records "
            f"between {since} and {horizon}{_OLDER if older else ''} are gone"
        )
        if found.tolerated and not known.accepts_loss(position):
            assert known.horizon is not None
            self._warn(
                shard_id,
                found,
                f"{lost}. Reading began at the trim horizon, which moved from {_text(known.horizon)} to {horizon} before the first "
                "records there were committed",
                "",
            )
            return
        self._handle(shard_id, position, known, lost, found)

    def _handle(self, shard_id: str, position: Position, known: Facts, lost: str, found: Gap | None = None) -> None:
        if known.accepts_loss(position):
            self._warn(shard_id, found, lost, "; option acceptDataLoss accepts that")
        elif self._fail:
            raise lost_after(lost, self._stream.name, shard_id, position)
        else:
            self._warn(shard_id, found, lost, "; continuing without it, as set by option failOnDataLoss=false")

    def _warn(self, shard_id: str, found: Gap | None, cause: str, remark: str) -> None:
        if found is None:
            self.log.add(shard_id, cause, remark)
            return
        if self._covers(shard_id, found):
            return
        since, until = self._covered.get(shard_id, (inf, -inf))
        since = min(since, found.since) if until >= found.since else found.since
        if not _AGAIN_SECONDS / 2 <= self._covers_until - found.horizon <= _AGAIN_SECONDS:
            self._covers_until = found.horizon + _AGAIN_SECONDS
        # Let the entries of all shards expire together, so that their next losses are logged in one line.
        self._covered[shard_id] = since, self._covers_until
        further = (
            "While shards are read at the horizon, further records may be lost; the next warning follows in a minute"
        )
        self.log.add(shard_id, cause, f"{remark}. {further}", found)

    def _covers(self, shard_id: str, found: Gap) -> bool:
        since, until = self._covered.get(shard_id, (inf, -inf))
        return since <= found.since and found.horizon <= until


def _text(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds")
