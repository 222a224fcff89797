"""What a planner and one fetcher have said to each other, so that nothing is said twice and nothing is missed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.positions import Position, ShardKey


class Contact:
    """The planner's side of it.

    Args:
        budget: The fetcher's `bufferBytes`.

    Attributes:
        budget: The same.
        changed: Notified when there is something new for the fetcher.
        number: Number of the last answer to it; 0 before the first.
        reading: Whether a task reads from it, by what it said last.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.changed = Signal()
        self.number = 0
        self.reading = False
        self._told: dict[ShardKey, Position] = {}
        self._reports = 0

    def heard(self, number: int) -> None:
        """Take note of the last answer that the fetcher has. If it is not the last one, all has to be said again."""
        if number != self.number:
            self._told.clear()

    def untold(self, shards: Iterable[ShardKey], done: Mapping[ShardKey, Position]) -> dict[ShardKey, Position]:
        """How far shards are done that the fetcher was not told so.

        Args:
            shards: The fetcher's.
            done: How far every shard is.
        """
        return {
            key: position
            for key in shards
            if (position := done.get(key)) is not None and self._told.get(key) != position
        }

    def tell(self, done: dict[ShardKey, Position]) -> dict[ShardKey, Position]:
        """Take note that the next answer says this."""
        self._told |= done
        self.number += 1
        return done

    def follows(self, number: int) -> bool:
        """Whether a report is the next one, or the first of a fetcher that begins anew; takes note of it if so."""
        if number not in (1, self._reports + 1):
            return False
        self._reports = number
        return True
