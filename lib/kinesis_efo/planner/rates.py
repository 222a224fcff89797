"""How much each shard brings, in bytes a second. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from kinesis_efo.positions import ShardKey

INTERVAL: Final = 10.0
"""Seconds over which bytes are counted."""

_NEW: Final = 0.3
_FLOOR: Final = 0.1


class Rates:
    """Follows the rates of shards.

    Args:
        now: Monotonic time, seconds.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._bytes: Counter[ShardKey] = Counter()
        self._rates: dict[ShardKey, float] = {}

    def add(self, shard: ShardKey, size: int) -> None:
        """Count bytes that a shard has brought."""
        if size:
            self._bytes[shard] += size

    def tick(self, now: float) -> bool:
        """Take the next measurement, where it is due.

        Args:
            now: Monotonic time, seconds.

        Returns:
            Whether it was.
        """
        seconds = now - self._since
        if seconds < INTERVAL:
            return False
        for shard in self._rates.keys() | self._bytes.keys():
            rate = self._bytes[shard] / seconds
            before = self._rates.get(shard)
            self._rates[shard] = rate if before is None else before + _NEW * (rate - before)
        self._bytes.clear()
        self._since = now
        return True

    def weights(self, shards: Iterable[ShardKey]) -> dict[ShardKey, float]:
        """What each shard costs: its rate, and a part of the mean, because idle ones cost something, too.

        Rates of other shards are forgotten.
        """
        self._rates = {shard: self._rates[shard] for shard in shards if shard in self._rates}
        found = {shard: self._rates.get(shard, 0.0) for shard in shards}
        floor = max(1.0, _FLOOR * sum(found.values()) / max(1, len(found)))
        return {shard: rate + floor for shard, rate in found.items()}
