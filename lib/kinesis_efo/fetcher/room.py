"""The door to the budget for the events of one shard: whoever reads them asks here, and nowhere else, for room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinesis_efo.fetcher.budget import Account

EVENT_OVERHEAD: Final = 512
"""Bytes charged for an event besides its payload: the objects that hold it."""


class ShardRoom:
    """Room for the next event of a shard, on top of what the shard holds; implements `kinesis.transport.Room`.

    Args:
        account: The shard's part in the budget.
        waits: Called when it has begun to wait in line.
    """

    def __init__(self, account: Account, waits: Callable[[], None]) -> None:
        self._account = account
        self._waits: Callable[[], None] | None = waits
        self._reserved = 0

    @property
    def share(self) -> int:
        """Bytes that may be in hand without room: the budget keeps so much free for each shard."""
        return self._account.share

    def take(self, size: int) -> bool:
        """Take room for the next event before it is read, if there is some.

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

        If all readers of this shard wait for this very event, everything before it is dropped, and it gets its room whatever its
        size. If some are behind, and others wait for it for `STARVING_SECONDS`, it gets its room beside what those have not read:
        one such event at a time. Readers that are behind and do not move for `CLAIM_SECONDS` do not count any more.

        Args:
            size: Bytes of its payload, at most.
        """
        # Who waits holds nothing: two that wait for each other's part would wait for ever.
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
        # It leads to the buffer, which leads here: the payloads would stay until the garbage collector comes.
        self._waits = None

    async def occupy(self, size: int) -> None:
        """Let the event have its room. What was reserved besides is given back; a small event reserves its room here.

        Args:
            size: Bytes that it occupies, with `EVENT_OVERHEAD`.
        """
        payload = size - EVENT_OVERHEAD
        if size > self._reserved and not self.take(payload):
            await self.wait(payload)
        self._account.give_back(self._reserved - size)
        self._reserved = 0
