"""What a fetcher asks and tells those who give it shards to read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.positions import Position, ShardKey


class Coordinator(Protocol):
    """Decides which shards a fetcher may read. It is called in the fetcher's event loop.

    Attributes:
        failure: What ends reading: of the run, or of this fetcher if its planner is elsewhere.
    """

    failure: Failure

    def may_read(self, shard: ShardKey) -> bool:
        """Whether the fetcher may read a shard at this moment: asks the clock, so it is right even after the process was paused."""

    async def may_open(self, shard: ShardKey) -> None:
        """Wait until a subscription to a shard may be opened: somebody else may read it by now."""

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """The error for a read that has waited `seconds` in vain until its shard may be read."""

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        """The time up to which every record that arrived lies at or before a position, in epoch seconds of Kinesis' clock."""


class ShardListener(Protocol):
    """Learns in which shards something happens. It is called in the fetcher's event loop."""

    def touch(self, shards: Iterable[ShardKey]) -> None:
        """Look at shards the next time: something has happened there."""

    def wake(self) -> None:
        """Look now: it is worth it."""
