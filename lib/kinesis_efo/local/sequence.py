"""Sequence numbers: 56 digits that grow with every record of an account, across shards and over time.

Laid out as Kinesis lays them out today (version 2, as the KCL's SequenceNumberValidator and kinesalite read it), in 186 bits from the
highest: 2, the second of the shard's creation (36), 4 unused, a counter (64), a byte, the second of the record (36), the shard's
index (32), 2. The counter is a tick in nanoseconds, made unique. The byte tells a record from the continuation right after it, so
that AT_ and AFTER_SEQUENCE_NUMBER of a continuation mean the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = 2
_CREATED, _COUNTER, _BYTE, _SECOND, _SHARD = 148, 80, 72, 36, 4
_BITS = 186
_PATTERN = re.compile(r"0|[1-9]\d{0,128}")


class Ticks:
    """Hands out ticks, each higher than the one before, near the wall clock in nanoseconds."""

    def __init__(self) -> None:
        self.last = 0

    def next(self, now: float) -> int:
        """The next tick, for a wall clock of ``now`` seconds. A clock that jumps back does not matter."""
        self.last = max(self.last + 1, int(now * 1e9))
        return self.last


@dataclass(frozen=True, slots=True)
class Numbering:
    """Writes the sequence numbers of one shard.

    Args:
        index: The shard's index in the stream, from 0.
        created: The second in which the shard was created, since the epoch.
    """

    index: int
    created: int

    @property
    def base(self) -> int:
        """What all numbers of the shard have in common."""
        head = _VERSION << 184 | self.created << _CREATED
        # The 4 unused bits are the index' lowest on AWS. Left at 0, numbers also grow from a parent to its children where both
        # were created within one second.
        return head | self.index << _SHARD | _VERSION

    def record(self, tick: int) -> str:
        """The number of the record put at ``tick``."""
        return str(self.base + counted(tick))

    def continuation(self, tick: int) -> str:
        """A number right after the record at ``tick``, before any later one."""
        return str(self.base + counted(tick) + (1 << _BYTE))


def counted(tick: int) -> int:
    """What a tick adds to the base of a number."""
    return (tick << _COUNTER) + (tick // 1_000_000_000 << _SECOND)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A sequence number from a request, taken apart."""

    tick: int
    index: int
    created: int
    continuation: bool


def parse(text: str) -> Parsed | None:
    """Take a sequence number apart; None when it is not one of this layout."""
    if not _PATTERN.fullmatch(text):
        return None
    number = int(text)
    if number.bit_length() != _BITS or number & 0xF != _VERSION:
        return None
    return Parsed(
        tick=number >> _COUNTER & (1 << 64) - 1,
        index=number >> _SHARD & (1 << 32) - 1,
        created=number >> _CREATED & (1 << 36) - 1,
        continuation=bool(number >> _BYTE & 0xFF),
    )
