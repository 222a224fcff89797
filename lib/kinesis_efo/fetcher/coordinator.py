"""The interface of a fetcher to the run that gives it shards to read."""

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
        """Whether the fetcher may read a shard now, by the clock: right even after the process was suspended."""

    async def may_open(self, shard: ShardKey) -> None:
        """Wait until a subscription to a shard may be opened: another fetcher or run may have it by now."""

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """The error of a read that has waited `seconds` in vain for permission to read its shard."""

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        """The time up to which all records that arrived are at or before a position, epoch seconds of Kinesis' clock; None if unknown."""


class ShardListener(Protocol):
    """Is told in which shards something happens, in the fetcher's event loop."""

    def touch(self, shards: Iterable[ShardKey]) -> None:
        """Something has happened in these shards: look at them next time."""

    def wake(self) -> None:
        """Look at the touched shards now."""
