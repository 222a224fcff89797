"""Sequence numbers: 56 digits that grow with every record of an account, across shards and over time.

A number is ``49``, a tick of 19 digits (nanoseconds, made unique), the stream's salt, the shard's index and four low digits. The
low digits tell a record from the continuation right after it, so that AT_ and AFTER_SEQUENCE_NUMBER of a continuation mean the same.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_HEAD = 49 * 10**54
_TICK = 10**35
_SALT_DIGITS = 23
_RECORD = "0002"
_CONTINUATION = "0003"
_PATTERN = re.compile(r"0|[1-9]\d{0,128}")


class Ticks:
    """Hands out ticks, each higher than the one before, near the wall clock in nanoseconds."""

    def __init__(self) -> None:
        self.last = 0

    def next(self, now: float) -> int:
        """The next tick, for a wall clock of ``now`` seconds. A clock that jumps back does not matter."""
        self.last = max(self.last + 1, int(now * 1e9))
        return self.last


def salt(identity: str) -> str:
    """Digits that mark the numbers of one incarnation of a stream."""
    number = int.from_bytes(hashlib.md5(identity.encode(), usedforsecurity=False).digest())
    return f"{number % 10**_SALT_DIGITS:0{_SALT_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class Numbering:
    """Writes and reads the sequence numbers of one shard.

    Args:
        salt: Digits of the stream.
        index: The shard's index in the stream, from 0.
    """

    salt: str
    index: int

    @property
    def record_suffix(self) -> str:
        """What follows the tick in a record's number."""
        return f"{self.salt}{self.index:08d}{_RECORD}"

    def record(self, tick: int) -> str:
        """The number of the record put at ``tick``."""
        return f"49{tick:019d}{self.record_suffix}"

    def continuation(self, tick: int) -> str:
        """A number right after the record at ``tick``, before any later one."""
        return f"49{tick:019d}{self.salt}{self.index:08d}{_CONTINUATION}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A sequence number from a request, taken apart. ``rest`` orders numbers of one tick."""

    tick: int
    rest: int

    def shard_index(self, stream_salt: str) -> int | None:
        """The shard that the number encodes, or None when it was not made for this stream."""
        digits = f"{self.rest:035d}"
        return int(digits[_SALT_DIGITS:-4]) if digits.startswith(stream_salt) else None


def parse(text: str) -> Parsed | None:
    """Take a sequence number apart; None when it is not one at all."""
    if not _PATTERN.fullmatch(text):
        return None
    tick, rest = divmod(int(text) - _HEAD, _TICK)
    return Parsed(tick, rest)
