"""One budget of bytes for all shards of a fetcher: the buffered events, and those being received.

A shard takes room before its bytes are read, one event at a time, and waits its turn if there is no room. The budget lives in the
fetcher's event loop and is not thread-safe; its counts may be read from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from kinesis_efo.positions import ShardKey

EVENT_OVERHEAD: Final = 512
"""Bytes charged for an event in addition to its payload, for its objects."""

SHARE_BYTES: Final = 256 << 10
"""The maximum of `Budget.share`: the bytes that a shard may hold without waiting in line."""


class Signal:
    """Wakes all waiters when something changes. The waiters check what has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        self._event.set()
        self._event = asyncio.Event()

    def wait(self) -> Coroutine[None, None, bool]:
        """Sleep until the next `notify` after this call (not after its first await)."""
        return self._event.wait()

    async def within(self, seconds: float) -> bool:
        """Sleep until the next `notify`, but for at most `seconds`; returns whether `notify` was called."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            return False


class Budget:
    """Bytes, at most `limit`, shared by all shards of a fetcher. `now` returns the monotonic time, seconds.

    A shard that finds no room waits in line. Each shard asks for one event at a time, so a busy shard goes behind all waiting ones. Up to
    a quarter of the limit is reserved for shards that hold little (`share`): they do not wait in line behind busy ones.

    The bytes in use stay within `limit`, with two exceptions that keep a query from blocking for ever: one event at a time that is larger
    than all the room for the line, and one event for each shard whose reader waits for that event while the budget is full.

    >>> budget = Budget(limit=4000)
    >>> busy, quiet = budget.join(ShardKey("s", "busy")), budget.join(ShardKey("s", "quiet"))
    >>> budget.share, busy.take(3001), busy.take(3000), quiet.take(500)
    (500, False, True, True)
    """

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.used = 0
        self.now = now
        self._shards = 0
        self._line: dict[Account, _Request] = {}
        self._too_large: Account | None = None
        self._waited: dict[ShardKey, float] = {}
        self._waiting: dict[ShardKey, float] = {}

    @property
    def share(self) -> int:
        """Bytes that each shard may hold without waiting in line."""
        return min(SHARE_BYTES, self.limit // (4 * max(1, self._shards)))

    def join(self, key: ShardKey) -> Account:
        """Add a shard, and return its account. The earlier account of a shard that is started again must leave first."""
        self._shards += 1
        return Account(self, key)

    def waited(self, key: ShardKey) -> float:
        """Total seconds for which a shard has waited for room."""
        since = self._waiting.get(key)
        return self._waited.get(key, 0.0) + (0.0 if since is None else self.now() - since)

    @property
    def _for_the_line(self) -> int:
        return self.limit - self.share * self._shards

    def _fits(self, size: int) -> bool:
        return self.used + size <= self._for_the_line

    def _serve(self) -> None:
        while self._line:
            account, request = next(iter(self._line.items()))
            if request.size > self._for_the_line and self._too_large is None:
                self._too_large = account  # the request would otherwise wait for ever
            elif not self._fits(request.size):
                break
            self._grant(account)

    def _grant(self, account: Account) -> None:
        request = self._line.pop(account)
        if not request.granted.done():
            account._charge(request.size)
            request.granted.set_result(None)
        elif account is self._too_large:  # the task of the request was cancelled just now
            self._too_large = None


@dataclass(slots=True)
class _Request:
    """A shard's wait for `size` bytes. `granted` is done when the shard has got them."""

    size: int
    granted: asyncio.Future[None]


class Account:
    """One shard's part of a budget, for one buffer of the shard. It holds `held` bytes until it has `left` the budget."""

    __slots__ = ("_budget", "held", "key", "left")

    def __init__(self, budget: Budget, key: ShardKey) -> None:
        self.key = key
        self.held = 0
        self._budget = budget
        self.left = False

    @property
    def share(self) -> int:
        """Bytes that the shard may hold without waiting in line."""
        return self._budget.share

    def take(self, size: int) -> bool:
        """Take bytes, if there is room and no other shard waits for room; returns whether they were taken."""
        budget = self._budget
        if not self.left and (self._is_small(size) or (not budget._line and budget._fits(size))):
            self._charge(size)
            return True
        return False

    def wait(self, size: int) -> Coroutine[None, None, None]:
        """Take bytes once there is room. The place in the line is that of this call, not of its first await.

        Raises `CancelledError`, and takes nothing, if the task was cancelled or the shard has left the budget.
        """
        budget = self._budget
        request = _Request(size, asyncio.get_running_loop().create_future())
        if self.left:
            request.granted.cancel()
        else:
            budget._line[self] = request
            budget._serve()
        return self._granted(request)

    async def _granted(self, request: _Request) -> None:
        budget = self._budget
        since = budget._waiting[self.key] = budget.now()
        try:
            await request.granted
        except asyncio.CancelledError:
            if budget._line.get(self) is request:
                del budget._line[self]
            elif not request.granted.cancelled():
                self.give_back(request.size)
            budget._serve()
            raise
        finally:
            budget._waited[self.key] = budget._waited.get(self.key, 0.0) + budget.now() - since
            budget._waiting.pop(self.key, None)

    @property
    def waits(self) -> bool:
        """Whether the shard waits for room."""
        return self in self._budget._line

    def exceed(self) -> None:
        """Take the room that the shard waits for, even if the budget is full, because a task waits for the event."""
        if self.waits:
            self._budget._grant(self)

    def give_back(self, size: int) -> None:
        """Free `size` bytes."""
        budget = self._budget
        if self.left:
            return
        self.held -= size
        budget.used -= size
        if budget._too_large is not None and (budget.used <= budget.limit or not budget._too_large.held):
            budget._too_large = None
        request = budget._line.get(self)
        if request is not None and self._is_small(request.size):
            budget._grant(self)
        budget._serve()

    def leave(self) -> None:
        """Free all bytes and leave the budget for good. Cancels a wait for room."""
        budget = self._budget
        if self.left:
            return
        if (request := budget._line.pop(self, None)) is not None:
            request.granted.cancel()
        self.give_back(self.held)
        self.left = True
        budget._shards -= 1
        budget._serve()

    def _is_small(self, size: int) -> bool:
        return self.held + size <= self._budget.share and self._budget.used + size <= self._budget.limit

    def _charge(self, size: int) -> None:
        self.held += size
        self._budget.used += size


class ShardRoom:
    """Room for the next event of a shard, in addition to what the shard holds; implements `kinesis.transport.Room`.

    `waits` is called when the shard has begun to wait in line.
    """

    def __init__(self, account: Account, waits: Callable[[], None]) -> None:
        self._account = account
        self._waits: Callable[[], None] | None = waits
        self._reserved = 0

    @property
    def share(self) -> int:
        """Bytes that may be received without waiting, because the budget keeps them free for each shard."""
        return self._account.share

    def take(self, size: int) -> bool:
        """Take room for the payload of the next event before it is read, if there is enough; returns whether it was taken."""
        missing = size + EVENT_OVERHEAD - self._reserved
        if self._account.left or missing <= 0:
            return True
        if self._account.take(missing):
            self._reserved += missing
            return True
        return False

    async def wait(self, size: int) -> None:
        """Wait in line for the room that `take` did not find.

        If all readers of this shard wait for this event, all events before are dropped, and the event gets room whatever its size. If one
        reader is behind and another one has waited for `STARVING_SECONDS`, the event gets room and earlier events are kept, one event at a
        time. A reader that is behind and does not move for `CLAIM_SECONDS` does not count.
        """
        # Hold nothing while waiting, because two shards that wait for each other's room would wait for ever.
        self.release()
        waiting = self._account.wait(size + EVENT_OVERHEAD)
        if self._waits is not None:
            self._waits()
        await waiting
        self._reserved = size + EVENT_OVERHEAD

    def release(self) -> None:
        """Give back the room of an event that will not come."""
        self._account.give_back(self._reserved)
        self._reserved = 0

    def close(self) -> None:
        """Give back everything, for good."""
        self._account.leave()
        # Break the reference cycle with the buffer, so that the buffer's payloads are freed immediately.
        self._waits = None

    async def occupy(self, size: int) -> None:
        """Use the room for an event of `size` bytes, including `EVENT_OVERHEAD`, and give back the rest. Waits if there is no room yet."""
        payload = size - EVENT_OVERHEAD
        if size > self._reserved and not self.take(payload):
            await self.wait(payload)
        self._account.give_back(self._reserved - size)
        self._reserved = 0
