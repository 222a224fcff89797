"""Sequence numbers of 56 digits. They increase within a shard and from parent to child shards. Otherwise, they have no defined order.

The layout is the one that Kinesis uses today (version 2, as parsed by the KCL's SequenceNumberValidator and kinesalite). Its 186 bits are,
highest first: version (2 bits), shard creation time in seconds (36), low bits of the shard's index (4), counter (64), marker (8), record
time in seconds (36), shard index (32), version (4). The counter is a unique tick in nanoseconds. The marker is 0 for a record, and 1 for
the continuation right after a record, for which AT_SEQUENCE_NUMBER and AFTER_SEQUENCE_NUMBER mean the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = 2
_CREATED, _LOW_INDEX, _COUNTER, _BYTE, _SECOND, _SHARD = 148, 144, 80, 72, 36, 4
_BITS = 186
_PATTERN = re.compile(r"0|[1-9]\d{0,128}")


class Ticks:
    """Issues ticks: unique, increasing numbers that are close to the wall clock in nanoseconds."""

    def __init__(self) -> None:
        self.last = 0

    def next(self, now: float) -> int:
        """Return the next tick at wall-clock time `now` (epoch seconds). Ticks increase even if the clock jumps back."""
        self.last = max(self.last + 1, int(now * 1e9))
        return self.last


@dataclass(frozen=True, slots=True)
class Numbering:
    """Creates the sequence numbers of one shard.

    `index` is the shard's index in the stream, from 0. `created` is its creation time in whole epoch seconds, later than its parents'.
    """

    index: int
    created: int

    @property
    def base(self) -> int:
        """The bits that all numbers of the shard share."""
        head = _VERSION << 184 | self.created << _CREATED | (self.index & 0xF) << _LOW_INDEX
        return head | self.index << _SHARD | _VERSION

    def record(self, tick: int) -> str:
        """The sequence number of the record put at `tick`."""
        return str(self.base + counted(tick))

    def continuation(self, tick: int) -> str:
        """The continuation right after the record at `tick`: a number higher than this record's and lower than any later record's."""
        return str(self.base + counted(tick) + (1 << _BYTE))


def counted(tick: int) -> int:
    """The bits of a sequence number that depend on the tick, to be added to `Numbering.base`."""
    return (tick << _COUNTER) + (tick // 1_000_000_000 << _SECOND)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The parts of a sequence number in a request."""

    tick: int
    index: int
    created: int
    continuation: bool


def parse(text: str) -> Parsed | None:
    """Parse a sequence number; None if it does not have this layout."""
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
