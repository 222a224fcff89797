"""Rate limits as token buckets; the caller passes the time."""

from __future__ import annotations


class Bucket:
    """A token bucket that gains `rate` tokens per second and holds at most `rate` tokens.

    A full bucket accepts a cost above its capacity and goes into debt, so that a 10 MiB record can be written to a 1 MiB/s shard.
    """

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = rate
        self._at = now

    def delay(self, cost: float, now: float) -> float:
        """Seconds until `cost` tokens can be taken; 0.0 if they can be taken now."""
        self._tokens = min(self.rate, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
        missing = min(cost, self.rate) - self._tokens
        # Ignore waits of less than a nanosecond: they are rounding errors, and would make the caller loop without sleeping.
        return missing / self.rate if missing > self.rate * 1e-9 else 0.0

    def take(self, cost: float) -> None:
        """Take `cost` tokens. Call `delay` first."""
        self._tokens -= cost
