"""Short forms of durations, times, shards and sequence numbers for tables. No I/O.

In wide terminals, files and pipes, ids and times are written in full, so that they can be copied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

ROOMY: Final = 120
"""Minimum width of a terminal, in columns, in which ids and times are shown in full."""

_SHARD: Final = re.compile(r"shardId-0*(\d+)")
_NUMBER: Final = re.compile(r"\d{20,}")


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> [duration(each) for each in (0.04, 2.5, 61, 2900, 11_100, 200_000)]
    ['0.0s', '2.5s', '1m01s', '48m20s', '3h05m', '2d07h']
    """
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, size, lower, small in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // small:02}{lower}"
    raise AssertionError(whole)


@dataclass(frozen=True, slots=True)
class Shape:
    """Shortens texts for narrow terminals. If `roomy`, nothing is shortened.

    >>> narrow = Shape(roomy=False)
    >>> narrow.shard("shardId-000000000042"), narrow.position("AFTER:49590338271490256608559692538361571095921575989136588898")
    ('42', 'AFTER:4959…588898')
    """

    roomy: bool

    @classmethod
    def of(cls, width: int) -> Shape:
        """Return the shape for a terminal with `width` columns."""
        return cls(width >= ROOMY)

    def shard(self, shard_id: str) -> str:
        """Format a shard as its id, or in a narrow terminal, as its number."""
        number = _SHARD.fullmatch(shard_id)
        return shard_id if self.roomy or number is None else number[1]

    def position(self, text: str) -> str:
        """Format a position. In a narrow terminal, shortens the sequence number."""
        if self.roomy:
            return text
        return _NUMBER.sub(lambda found: f"{found[0][:4]}…{found[0][-6:]}", text)

    def ago(self, seconds: float) -> str:
        """Format how long ago something was. In a narrow terminal, formats only the duration."""
        return f"{duration(seconds)} ago" if self.roomy else duration(seconds)

    def time(self, epoch: float, now: float) -> str:
        """Format a time in UTC: in full, or without the parts that it shares with `now`.

        Both times are in epoch seconds.

        >>> Shape(roomy=False).time(1_700_000_000, 1_700_000_100), Shape(roomy=False).time(1_700_000_000, 1_700_100_000)
        ('22:13:20', '11-14 22:13')
        """
        then, present = datetime.fromtimestamp(epoch, UTC), datetime.fromtimestamp(now, UTC)
        if self.roomy:
            return written_out(epoch)
        if then.date() == present.date():
            return f"{then:%H:%M:%S}"
        return f"{then:%m-%d %H:%M}" if then.year == present.year else f"{then:%Y-%m-%d}"


def written_out(epoch: float) -> str:
    """Format a time (epoch seconds) in full, in UTC.

    >>> written_out(1_700_000_000)
    '2023-11-14T22:13:20Z'
    """
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
