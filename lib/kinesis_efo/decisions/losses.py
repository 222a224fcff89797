"""Decides from positions, times and the list of shards whether records were trimmed before they were read.

If the trim horizon has passed a position, Kinesis silently continues at the horizon. A sequence number contains the second in which it was
assigned and the second in which its shard was created. AWS does not promise this layout, but the KCL relies on it too
(SequenceNumberValidator). Sequence numbers with an unknown layout have an unknown time. All times are epoch seconds by Kinesis' clock.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

import msgspec

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind

TOLERATED_SECONDS: Final = 600.0
"""A query that starts at the trim horizon only warns of a loss if the horizon moves at most this many seconds before its first commit."""

START_SECONDS: Final = 60.0
"""Assumed maximum seconds from choosing the trim horizon as the start to the first read. In this time, the horizon moves on."""

_ANSWERS: Final = 3
_SECONDS: Final = 2.0
_SKEW_SECONDS: Final = 60  # Clock difference: different hosts may set the times of a shard and of its first records

_36_BITS: Final = (1 << 36) - 1


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What is known about a position, besides the position itself, to decide whether records after it were lost."""

    # A low watermark: every record that arrived earlier lies at or before the position; None if unknown
    read_until: float | None = None
    # The trim horizon when a query chose `TRIM_HORIZON` as its start in this stream; None if no query starts there
    horizon: float | None = None
    # Option `acceptDataLoss`: lost records are accepted if the gap begins at or before this position; None if no loss is accepted
    accepted: Position | None = None
    # At `TRIM_HORIZON`: records that arrived before this time may be lost although `read_until` is later; None if all records were read
    read_since: float | None = None
    # At `TRIM_HORIZON`: whether a planned micro-batch begins there. Each attempt to read it must return the same records
    planned: bool = False
    # The low watermark of the position that the query's offset contains; None if the offset does not contain it
    proven: float | None = None

    def accepts_loss(self, position: Position) -> bool:
        """Whether the loss of records after a position is accepted."""
        accepted = self.accepted
        if accepted is None or accepted.sequence_number is None or position.sequence_number is not None:
            return accepted is not None and accepted.reaches(position)
        # Compare the time in the accepted sequence number: `reaches` treats any sequence number as later than any time.
        time = position.value / 1000 if position.kind is PositionKind.AT_TIMESTAMP else self.horizon
        return time is None or (_is_version_2(accepted.value) and accepted.value >> 36 & _36_BITS >= time)

    def covers_all(self, position: Position) -> bool:
        """Whether all records that arrived before `read_until` are at or before `position`, regardless of when the shard was created."""
        return position != TRIM_HORIZON or self.read_since is None or (self.horizon or 0.0) >= self.read_since


NO_FACTS: Final = Facts()


class Gap(NamedTuple):
    """A span of arrival times in which unread records may have been trimmed."""

    since: float  # The low watermark of the position
    horizon: float  # The trim horizon when the shard is read
    # Whether to warn instead of failing: the query starts at the trim horizon, which moved on before the first records were read
    tolerated: bool


class ReadUntil:
    """Infers a low watermark from responses: the lowest value of three or more, received over at least 2 s. A single value may be wrong."""

    def __init__(self, known: float | None) -> None:
        self.proven = known
        self._least = inf
        self._answers = 0
        self._since = 0.0

    def observe(self, claim: float, now: float) -> None:
        """Process a response that was received at `now` (monotonic seconds) and implies the low watermark `claim`."""
        if not self._answers:
            self._since, self._least = now, inf
        self._answers += 1
        self._least = min(self._least, claim)
        if self._answers >= _ANSWERS and now - self._since >= _SECONDS:
            self.proven = max(self._least, -inf if self.proven is None else self.proven)
            self._answers = 0


def low_watermark(shard_id: str, shard: Shard | None, position: Position, known: Facts, latest: float) -> float | None:
    """Return the low watermark of a shard's position; None if unknown.

    Args:
        shard: The shard as ListShards returns it; None if unlisted.
        position: How far the shard has been read.
        known: Low watermarks and trim horizons recorded for the position by lease rows and queries.
        latest: The latest plausible time, epoch seconds. A sequence number with a later time has an unknown layout.
    """
    if position.is_end:
        return inf
    times = [time_of(shard_id, position, latest), known.proven]
    if position.sequence_number is None and shard is not None:
        times.append(created_at(shard))
        if position == TRIM_HORIZON:
            # Use the horizon at the query's start only for listed shards. An unlisted shard may be newer: a loss would be reported wrongly.
            times.append(known.horizon)
    own = max((time for time in times if time is not None), default=None)
    covered = known.covers_all(position) or (own is not None and own >= (known.read_since or 0.0))
    if known.read_until is None or not covered:
        return own
    return known.read_until if own is None else max(own, known.read_until)


def is_whole(shard: Shard | None, position: Position) -> bool:
    """Whether a closed shard was read up to its last record."""
    return shard is not None and shard.last is not None and not position.precedes(shard.last)


def gap(since: float | None, horizon: float, start: float | None, least: float = 0.0) -> Gap | None:
    """Return the gap between a low watermark and the trim horizon; None if no unread record can have been trimmed.

    Args:
        since: The low watermark of the position, from `low_watermark`.
        horizon: The trim horizon now.
        start: The trim horizon when a query chose to start there, if it has not committed any record of this shard; otherwise None.
        least: Seconds that the horizon may move after `start` without a gap.
    """
    if since is None or since >= horizon:
        return None
    if start is not None and since <= start and horizon - start <= least:
        return None
    return Gap(since, horizon, tolerated=start is not None and horizon - start <= TOLERATED_SECONDS)


def at_horizon(known: Facts) -> Facts:
    """Return `known` for a read from the trim horizon. Records that arrived before the horizon may be missed: set `read_since` to it.

    Returns `known` unchanged if the horizon is unknown, or if `read_until` shows that all of these records were read."""
    if known.horizon is None or (known.read_until is not None and known.read_until >= known.horizon):
        return known
    return msgspec.structs.replace(known, read_since=known.horizon)


def start_horizon(shard: Shard | None, known: Facts) -> float | None:
    """Return the trim horizon at which a query started; None if no query started there, or if the shard was created later."""
    created = None if shard is None else created_at(shard)
    return known.horizon if known.horizon is not None and (created is None or created <= known.horizon) else None


def written_at(number: int, shard_id: str, latest: float) -> float | None:
    """Return when a sequence number was assigned, in epoch seconds; None if it has an unknown layout, or a time after `latest`.

    >>> written_at(49590338271490256608559692538361571095921575989136588898, "shardId-000000000006", 2e9)
    1545084650.0
    """
    index = shard_id.rpartition("-")[2]
    if not _is_version_2(number) or not index.isdecimal() or _index(number) != int(index):
        return None
    second = number >> 36 & _36_BITS
    return float(second) if (number >> 148 & _36_BITS) - _SKEW_SECONDS <= second <= latest else None


def created_at(shard: Shard) -> float | None:
    """Return when a shard was created, from its first sequence number; None if the number has an unknown layout."""
    return float(shard.first >> 148 & _36_BITS) if _is_version_2(shard.first) else None


def time_of(shard_id: str, position: Position, latest: float) -> float | None:
    """Return the time that a position contains; None if it does not contain a time that can be decoded."""
    if position.sequence_number is not None:
        return written_at(position.sequence_number, shard_id, latest)
    return position.value / 1000 if position.kind is PositionKind.AT_TIMESTAMP else None


def predates(position: Position, shard: Shard) -> bool:
    """Whether a position is older than its shard, and so belongs to an earlier stream of the same name."""
    number = position.sequence_number
    return number is not None and _is_version_2(number) and _is_version_2(shard.first) and number < shard.first


def names_another(position: Position, shard: Shard) -> bool:
    """Whether the position's sequence number belongs to a record of another shard."""
    number, index = position.sequence_number, shard.shard_id.rpartition("-")[2]
    if number is None or not (_is_version_2(number) and _is_version_2(shard.first)):
        return False
    own = _index(shard.first)
    # Compare indexes only if the shard's first sequence number contains its index: servers other than Kinesis may not encode it.
    return index.isdecimal() and own == int(index) and _index(number) != own


def _index(number: int) -> int:
    return number >> 4 & 0xFFFFFFFF


def _is_version_2(number: int) -> bool:
    """Whether a sequence number has layout version 2. Its 186 bits, from the highest, are the value 2 (2 bits), the shard's creation time
    (36), the shard's index modulo 16 (4), a counter (64), a byte, the time of assignment (36), the shard's index (32), the value 2 (4)."""
    return number.bit_length() == 186 and number & 0xF == 2
