"""Rates per second, as token buckets on a clock that the caller reads."""

from __future__ import annotations


class Bucket:
    """Allows ``rate`` per second and a burst of one second.

    A single cost above the burst is let through when the bucket is full and leaves a debt: that is how a 10 MiB record
    passes a 1 MiB/s shard.
    """

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = rate
        self._at = now

    def delay(self, cost: float, now: float) -> float:
        """Seconds until ``cost`` may be taken; 0.0 when it may be taken now."""
        self._tokens = min(self.rate, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        missing = min(cost, self.rate) - self._tokens
        # A missing fraction below a nanosecond of refill is float noise, and would make a caller spin.
        return missing / self.rate if missing > self.rate * 1e-9 else 0.0

    def take(self, cost: float) -> None:
        """Take ``cost``. Ask :meth:`delay` first."""
        self._tokens -= cost
