"""One budget of bytes for all shards of a fetcher, with a guaranteed minimum for each of them.

Lives in the fetcher's event loop and is not thread-safe; its counts may be read from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Final

from kinesis_efo.positions import ShardKey

GUARANTEED_BYTES: Final = 2 << 20
"""Bytes that every shard may hold whatever the others do: more than the largest usual event (1 MB, in base64)."""


class Signal:
    """Wakes everyone who waits for a change. Waiters check for themselves what has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        self._event.set()
        self._event = asyncio.Event()

    def wait(self) -> Coroutine[None, None, bool]:
        """Sleep until the next `notify` after this call (not after its first await)."""
        return self._event.wait()


class Budget:
    """Bytes shared by all shards of a fetcher.

    The sum stays within `limit`. Each shard's guarantee is an even share of it, at most the configured minimum, and is
    reserved even while the shard does not use it: a slow or huge shard never starves a quiet one.

    Args:
        limit: Bytes for all shards together.
        guarantee: Bytes that each shard may hold in any case.
        now: Monotonic seconds, to measure how long shards wait.

    >>> budget = Budget(limit=100, guarantee=10)
    >>> busy, quiet = ShardKey("s", "busy"), ShardKey("s", "quiet")
    >>> budget.join(busy); budget.join(quiet)
    >>> budget.fits(busy, 90), budget.fits(busy, 91)
    (True, False)
    """

    def __init__(
        self, limit: int, guarantee: int = GUARANTEED_BYTES, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.room = Signal()
        self._most_guaranteed = guarantee
        self._held: dict[ShardKey, int] = {}
        self._used = 0
        self._now = now
        self._waited: dict[ShardKey, float] = {}
        self._waiting: dict[ShardKey, float] = {}

    @property
    def used(self) -> int:
        """Bytes held by all shards."""
        return self._used

    @property
    def guarantee(self) -> int:
        """Bytes that each shard may hold whatever the others do."""
        return min(self._most_guaranteed, self.limit // max(1, len(self._held)))

    def join(self, key: ShardKey) -> None:
        """Count a shard in."""
        self._held[key] = 0

    def leave(self, key: ShardKey) -> None:
        """Count a shard out and free what it held."""
        self._used -= self._held.pop(key)
        self.room.notify()

    def fits(self, key: ShardKey, size: int) -> bool:
        """Whether the shard may take `size` more bytes without touching what others are guaranteed."""
        guarantee = self.guarantee
        if self._held[key] + size <= guarantee:
            return True
        reserved = sum(max(0, guarantee - held) for other, held in self._held.items() if other != key)
        return self._used + size + reserved <= self.limit

    async def wait(self, key: ShardKey) -> None:
        """Let a shard wait until bytes were freed. The caller checks whether it fits now."""
        began = self._waiting[key] = self._now()
        try:
            await self.room.wait()
        finally:
            self._waited[key] = self._waited.get(key, 0.0) + self._now() - began
            self._waiting.pop(key, None)

    def waited(self, key: ShardKey) -> float:
        """Seconds that a shard has waited for room, in total and up to now."""
        since = self._waiting.get(key)
        return self._waited.get(key, 0.0) + (0.0 if since is None else self._now() - since)

    def take(self, key: ShardKey, size: int) -> None:
        """Charge bytes to a shard, whether they fit or not."""
        self._held[key] += size
        self._used += size

    def give_back(self, key: ShardKey, size: int) -> None:
        """Free bytes of a shard and wake the shards that wait."""
        self._held[key] -= size
        self._used -= size
        self.room.notify()
