"""What a fetcher needs of the run that gives it shards to read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.positions import Position, ShardKey


class Coordinator(Protocol):
    """Decides which shards a fetcher may read. It is called in the fetcher's event loop.

    Attributes:
        failure: The error that ends reading: the run's, or this fetcher's if the run is in another process.
    """

    failure: Failure

    def may_read(self, shard: ShardKey) -> bool:
        """Whether the fetcher may read a shard now. Reads the clock, so the result is right even after the process was suspended."""

    async def may_open(self, shard: ShardKey) -> None:
        """Wait until a subscription to a shard may be opened, because another fetcher or run may have the shard by now."""

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """The error of a read that has waited `seconds` in vain for permission to read its shard."""

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        """A time, epoch seconds by Kinesis' clock, before which no record after `position` arrived; None if unknown."""


class ShardListener(Protocol):
    """Is told in which shards something happens, in the fetcher's event loop."""

    def touch(self, shards: Iterable[ShardKey]) -> None:
        """Note that something has happened in these shards, so that they are looked at next time."""

    def wake(self) -> None:
        """Look at the touched shards now."""
