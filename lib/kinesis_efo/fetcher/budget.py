"""Limits a fetcher's memory for buffered events and for events that are being received, with a budget that shards share.

A shard reserves space for one event at a time, before the event is read, and queues if there is not enough space. The budget belongs to
the fetcher's event loop and is not thread-safe; other threads may only read its attributes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from kinesis_efo.positions import ShardKey

EVENT_OVERHEAD: Final = 512
"""Bytes charged for an event in addition to its payload, for the Python objects that represent it."""

SHARE_BYTES: Final = 256 << 10
"""Upper limit of `Budget.share`, the bytes that a shard may use without queueing."""


class Signal:
    """Wakes all waiting coroutines, which then check what has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def wait(self) -> Coroutine[None, None, bool]:
        """Return a coroutine that sleeps until the first `notify` after this call. A `notify` before the `await` counts, too."""
        return self._event.wait()

    async def within(self, seconds: float) -> bool:
        """Sleep until the next `notify`, but for at most `seconds`. Return whether `notify` was called."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            return False


class Budget:
    """A memory budget of `limit` bytes that several shards share. `now` returns the monotonic time in seconds.

    A shard that does not get space joins a queue. It requests space for one event at a time, so a busy shard goes to the end of the queue
    after each event. Up to a quarter of the limit is reserved for quiet shards: a shard that uses at most `share` bytes does not queue.

    The bytes in use may exceed `limit` in two cases, to avoid deadlocks. An event that is larger than all unreserved space is admitted, one
    at a time. If the budget is full and a reader is waiting for a shard's next event, that event is admitted (one for each shard).

    >>> budget = Budget(limit=4000)
    >>> busy, quiet = budget.open_account(ShardKey("s", "busy")), budget.open_account(ShardKey("s", "quiet"))
    >>> budget.share, busy.try_reserve(3001), busy.try_reserve(3000), quiet.try_reserve(500)
    (500, False, True, True)
    """

    def __init__(self, limit: int, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.used = 0
        self.now = now
        self._shards = 0
        self._queue: dict[Account, _Request] = {}
        self._too_large: Account | None = None
        self._small: dict[
            Account, _Request
        ] = {}  # Those of `_queue` that fit their shard's share: they wait only if the limit is exceeded
        self._waited: dict[ShardKey, float] = {}
        self._waiting: dict[ShardKey, float] = {}

    @property
    def share(self) -> int:
        """Bytes that each shard may use without queueing."""
        return min(SHARE_BYTES, self.limit // (4 * max(1, self._shards)))

    def open_account(self, key: ShardKey) -> Account:
        """Open an account for a shard. If the shard is restarted, its earlier account must be closed first."""
        self._shards += 1
        return Account(self, key)

    def seconds_waited(self, key: ShardKey) -> float:
        """Return for how many seconds in total a shard has waited for space."""
        since = self._waiting.get(key)
        return self._waited.get(key, 0.0) + (0.0 if since is None else self.now() - since)

    @property
    def _queue_limit(self) -> int:
        return self.limit - self.share * self._shards

    def _fits(self, size: int) -> bool:
        return self.used + size <= self._queue_limit

    def _serve_queue(self) -> None:
        while self._queue:
            account, request = next(iter(self._queue.items()))
            if request.size > self._queue_limit and self._too_large is None:
                self._too_large = account  # the request would never fit into the unreserved space
            elif not self._fits(request.size):
                break
            self._grant(account)
        while self._small:
            account, request = next(iter(self._small.items()))
            if self.used + request.size > self.limit:
                break
            self._grant(account)

    def _grant(self, account: Account) -> None:
        request = self._queue.pop(account)
        self._small.pop(account, None)
        if not request.granted.done():
            account._charge(request.size)
            request.granted.set_result(None)
        elif account is self._too_large:  # the request was cancelled meanwhile, so the limit is not exceeded
            self._too_large = None


@dataclass(slots=True)
class _Request:
    """A shard's request for `size` bytes. `granted` is done once the bytes are reserved."""

    size: int
    granted: asyncio.Future[None]


class Account:
    """The bytes that one buffer has reserved from a budget."""

    __slots__ = ("_budget", "closed", "held", "key")

    def __init__(self, budget: Budget, key: ShardKey) -> None:
        self.key = key
        self.held = 0  # Bytes charged to this account
        self._budget = budget
        self.closed = False

    @property
    def share(self) -> int:
        """Bytes that the shard may use without queueing."""
        return self._budget.share

    def try_reserve(self, size: int) -> bool:
        """Try to reserve `size` bytes without queueing; return whether this succeeded. While shards are queued, it fails beyond `share`."""
        budget = self._budget
        if not self.closed and (self._is_small(size) or (not budget._queue and budget._fits(size))):
            self._charge(size)
            return True
        return False

    def reserve(self, size: int) -> Coroutine[None, None, None]:
        """Immediately queue a request for `size` bytes, and return a coroutine that waits until they are reserved.

        The coroutine raises `CancelledError`, and nothing is reserved, if its task is cancelled or the account is closed.
        """
        budget = self._budget
        request = _Request(size, asyncio.get_running_loop().create_future())
        if self.closed:
            request.granted.cancel()
        else:
            budget._queue[self] = request
            budget._serve_queue()
            self._check_small()
        return self._granted(request)

    async def _granted(self, request: _Request) -> None:
        budget = self._budget
        since = budget._waiting[self.key] = budget.now()
        try:
            await request.granted
        except asyncio.CancelledError:
            if budget._queue.get(self) is request:
                del budget._queue[self]
                budget._small.pop(self, None)
            elif not request.granted.cancelled():
                self.release(request.size)
            budget._serve_queue()
            raise
        finally:
            budget._waited[self.key] = budget._waited.get(self.key, 0.0) + budget.now() - since
            budget._waiting.pop(self.key, None)

    @property
    def waits(self) -> bool:
        """Whether the shard is queued for space."""
        return self in self._budget._queue

    def exceed(self) -> None:
        """Grant the shard's queued request, if any, even if the budget is full."""
        if self.waits:
            self._budget._grant(self)

    def release(self, size: int) -> None:
        budget = self._budget
        if self.closed:
            return
        self.held -= size
        budget.used -= size
        if budget._too_large is not None and (budget.used <= budget.limit or not budget._too_large.held):
            budget._too_large = None
        self._check_small()
        budget._serve_queue()

    def close(self) -> None:
        """Release all bytes and close the account. Cancels a pending request."""
        budget = self._budget
        if self.closed:
            return
        if (request := budget._queue.pop(self, None)) is not None:
            request.granted.cancel()
            budget._small.pop(self, None)
        self.release(self.held)
        self.closed = True
        budget._shards -= 1
        for account in budget._queue:
            account._check_small()  # the share has grown
        budget._serve_queue()

    def _check_small(self) -> None:
        request = self._budget._queue.get(self)
        if request is not None and self.held + request.size <= self._budget.share:
            self._budget._small[self] = request

    def _is_small(self, size: int) -> bool:
        return self.held + size <= self._budget.share and self._budget.used + size <= self._budget.limit

    def _charge(self, size: int) -> None:
        self.held += size
        self._budget.used += size


class ShardRoom:
    """Reserves space for a shard's next event, in addition to its buffered events; implements `kinesis.transport.Quota`.

    `waits` is called when the shard begins to queue for space.
    """

    def __init__(self, account: Account, waits: Callable[[], None]) -> None:
        self._account = account
        self._waits: Callable[[], None] | None = waits
        self._reserved = 0

    @property
    def share(self) -> int:
        """Bytes that the shard may use without queueing for buffer space."""
        return self._account.share

    def try_reserve(self, size: int) -> bool:
        """Reserve space for the next event's payload before it is read. Return whether there was enough."""
        missing = size + EVENT_OVERHEAD - self._reserved
        if self._account.closed or missing <= 0:
            return True
        if self._account.try_reserve(missing):
            self._reserved += missing
            return True
        return False

    async def reserve(self, size: int) -> None:
        """Called after `try_reserve` has failed: queue for space and reserve it.

        A full budget never blocks a task forever. If all tasks that read the shard are waiting for the event, earlier events are dropped,
        and the event may exceed the budget. If only some of the tasks are waiting, one event at a time may exceed it, after
        `STARVING_SECONDS`. Earlier events are then retained for the other tasks, except for tasks without progress for `CLAIM_SECONDS`.
        """
        # Release reservations before waiting: two shards that wait while they hold reservations could deadlock.
        self.release()
        waiting = self._account.reserve(size + EVENT_OVERHEAD)
        if self._waits is not None:
            self._waits()
        await waiting
        self._reserved = size + EVENT_OVERHEAD

    def release(self) -> None:
        """Release the space reserved for an event that will not arrive."""
        self._account.release(self._reserved)
        self._reserved = 0

    def close(self) -> None:
        """Release all space of the shard, including that of buffered events, and close the account."""
        self._account.close()
        # Break the reference cycle with the buffer, so that the buffer's payloads are freed immediately.
        self._waits = None

    async def occupy(self, size: int) -> None:
        """Use the reservation for an event of `size` bytes, including `EVENT_OVERHEAD`. Waits for missing bytes, releases unused bytes."""
        payload = size - EVENT_OVERHEAD
        if size > self._reserved and not self.try_reserve(payload):
            await self.reserve(payload)
        self._account.release(self._reserved - size)
        self._reserved = 0
