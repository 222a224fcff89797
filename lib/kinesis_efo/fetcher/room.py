"""Room in the budget for the events of one shard, taken before an event is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinesis_efo.fetcher.budget import Account

EVENT_OVERHEAD: Final = 512
"""Bytes charged for an event in addition to its payload, for its objects."""


class ShardRoom:
    """Room for the next event of a shard, in addition to what the shard holds; implements `kinesis.transport.Room`.

    Args:
        account: The shard's part of the budget.
        waits: Called when it has begun to wait in line.
    """

    def __init__(self, account: Account, waits: Callable[[], None]) -> None:
        self._account = account
        self._waits: Callable[[], None] | None = waits
        self._reserved = 0

    @property
    def share(self) -> int:
        """Bytes that may be received without room, because the budget keeps them free for each shard."""
        return self._account.share

    def take(self, size: int) -> bool:
        """Take room for the next event before it is read, if there is enough; returns whether it was taken.

        Args:
            size: Bytes of its payload, at most.
        """
        missing = size + EVENT_OVERHEAD - self._reserved
        if self._account.left or missing <= 0:
            return True
        if self._account.take(missing):
            self._reserved += missing
            return True
        return False

    async def wait(self, size: int) -> None:
        """Wait in line for the room that `take` did not find.

        If all readers of this shard wait for this event, everything before it is dropped, and it gets room whatever its size. If a
        reader is behind, and another one has waited for `STARVING_SECONDS`, the event gets room and earlier ones are kept, for one event
        at a time. A reader that is behind and does not move for `CLAIM_SECONDS` does not count.

        Args:
            size: Bytes of its payload, at most.
        """
        # Hold nothing while waiting: two shards that wait for each other's room would wait for ever.
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
        # Break the reference cycle with the buffer, so that its payloads are freed at once.
        self._waits = None

    async def occupy(self, size: int) -> None:
        """Use the reserved room for the event, and give back the rest. For a small event, this waits for room itself.

        Args:
            size: Bytes of the event, with `EVENT_OVERHEAD`.
        """
        payload = size - EVENT_OVERHEAD
        if size > self._reserved and not self.take(payload):
            await self.wait(payload)
        self._account.give_back(self._reserved - size)
        self._reserved = 0
