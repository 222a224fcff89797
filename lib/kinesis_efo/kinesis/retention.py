"""Detects records that were trimmed before they were read, from the time of a position.

If the trim horizon has passed a position, Kinesis silently begins at the horizon. A sequence number contains the time at which it
was assigned, and that of its shard's creation, in seconds. AWS does not promise that layout, but the KCL reads it, too
(SequenceNumberValidator). A number with another layout counts as recent. Times are compared with Kinesis' clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.faults import report_loss
from kinesis_efo.kinesis.topology import SKEW_SECONDS, ShardLister, SharedCall
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position, PositionKind

_FRESH_SECONDS: Final = 60.0


class Retention:
    """Checks whether records after a position may be gone, and raises or warns once per shard, as `fail` says.

    It reports every loss that sequence numbers and the stream's present retention show. It may also report a loss in a shard that was
    idle all the time, because Kinesis does not say whether there were records. It asks for the stream's retention only if a position is
    older than `shortest` seconds, for which every stream keeps its records.
    """

    def __init__(
        self,
        stream: StreamRef,
        lister: ShardLister,
        clock: Clock,
        *,
        fail: bool,
        shortest: float,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._fail = fail
        self._shortest = shortest
        self._retention = SharedCall(lambda: lister.retention(stream.stream_arn), clock, _FRESH_SECONDS)
        self._warned: set[str] = set()

    async def check(
        self, shard_id: str, position: Position, read_until: float | None = None, grace: float = 0.0
    ) -> bool:
        """Whether the trim horizon has passed a position, so that reading can only continue at the horizon.

        All records that arrived before `read_until`, epoch seconds, were read; None: not known. If it is later than the position's time it
        counts instead, because the position of an idle shard may not move. The horizon may have passed the position by `grace` seconds
        without a loss. Like the other checks, raises `DataLossError` if it has and `fail` is set; `ClientError` if the retention cannot be
        read.
        """
        now = self._clock.time()
        if read_until is not None and now - read_until <= self._shortest:
            return False  # the fast path: this runs for every event
        since = _time_of(shard_id, position, now + SKEW_SECONDS)
        if read_until is not None and (since is None or read_until > since):
            since = read_until
        return since is not None and await self._has_passed(shard_id, since, f"was read up to {position} only", grace)

    async def is_past(self, shard_id: str, number: int) -> bool:
        """Whether the record with sequence number `number` is older than the stream's retention."""
        written = written_at(number, shard_id, self._clock.time() + SKEW_SECONDS)
        return written is not None and not await self.reaches_back_to(round(written * 1000))

    async def reaches_back_to(self, epoch_ms: int) -> bool:
        """Whether records that arrived at a time, in epoch milliseconds, are within retention."""
        age = self._clock.time() - epoch_ms / 1000
        return age <= self._shortest or age <= await self._retention.get()

    async def check_begun(self, shard: Shard) -> None:
        """Report records that were trimmed from the beginning of a shard whose parents were read to their end."""
        # Use the time of the shard's creation, because the shard's first sequence number contains no other time.
        if (born := _born(shard)) is not None:
            await self._has_passed(shard.shard_id, born, "has not been read yet, although its parents have")

    async def check_range(self, shard: Shard, through: Position) -> None:
        """Report records that are gone because the trim horizon has passed the end of a range that begins where the shard begins."""
        until = _time_of(shard.shard_id, through, self._clock.time() + SKEW_SECONDS)
        if until is not None:
            state = f"is to be read again from its beginning up to {through}, as an unfinished micro-batch was planned,"
            began = _born(shard)
            await self._has_passed(shard.shard_id, until, state, began=until if began is None else began)

    async def _has_passed(
        self, shard_id: str, since: float, state: str, grace: float = 0.0, began: float | None = None
    ) -> bool:
        if self._clock.time() - since <= self._shortest + grace:
            return False
        horizon = self._clock.time() - await self._retention.get()
        if since >= horizon - grace:
            return False
        if shard_id not in self._warned:
            report_loss(
                f"stream {self._stream.name!r}, shard {shard_id} {state}, and the stream does not keep records for so long: any "
                f"records between {_text(since if began is None else began)} and {_text(horizon)} are gone",
                fail=self._fail,
                remedy="; a longer retention period of the stream gives more time",
            )
            self._warned.add(shard_id)
        return True


def written_at(number: int, shard_id: str, latest: float) -> float | None:
    """Return the time at which a sequence number of a shard was assigned, in epoch seconds.

    None if the number has another layout, or a time after `latest`, the latest possible one.

    >>> written_at(49590338271490256608559692538361571095921575989136588898, "shardId-000000000006", 2e9)
    1545084650.0
    """
    index = shard_id.rpartition("-")[2]
    if not _is_version_2(number) or not index.isdecimal() or number >> 4 & 0xFFFFFFFF != int(index):
        return None
    second = number >> 36 & _36_BITS
    return float(second) if number >> 148 & _36_BITS <= second <= latest else None


def predates(position: Position, shard: Shard) -> bool:
    """Whether a position is older than its shard, and so belongs to an earlier stream of the same name."""
    number = position.sequence_number
    return number is not None and _is_version_2(number) and _is_version_2(shard.first) and number < shard.first


def _is_version_2(number: int) -> bool:
    """Whether a number consists of, from the highest of its 186 bits: the value 2 (2 bits), the time of the shard's creation (36), the
    shard's index modulo 16 (4), a counter (64), a byte, the time of assignment (36), the shard's index (32), and the value 2 (4)."""
    return number.bit_length() == 186 and number & 0xF == 2


def _born(shard: Shard) -> float | None:
    """Return when a shard was created, epoch seconds, from its first sequence number; None if that number has another layout."""
    return float(shard.first >> 148 & _36_BITS) if _is_version_2(shard.first) else None


_36_BITS: Final = (1 << 36) - 1


def _time_of(shard_id: str, position: Position, latest: float) -> float | None:
    if position.sequence_number is not None:
        return written_at(position.sequence_number, shard_id, latest)
    return position.value / 1000 if position.kind is PositionKind.AT_TIMESTAMP else None


def _text(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds")
