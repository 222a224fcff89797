"""The buffers that the queries of a run share, in this process or in other fetchers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.micro_batches import Buffers
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange


class SharedBuffers(Buffers, Protocol):
    """The buffers of all shards of a run."""

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        """The buffer of a shard, as in `Buffers`. If it does not have everything after the position, read the shard again from there on."""

    def found(self, key: ShardKey) -> EventIndex | None:
        """The buffer of a shard, wherever that buffer starts; None if the shard is not read."""

    def begin_at(self, key: ShardKey, position: Position) -> EventIndex | None:
        """Read a shard again from a position on. Returns the new buffer, or None if it is not there yet."""

    @property
    def withholds(self) -> bool:
        """Whether shards that `let_go` closed have not been opened again."""

    def expect(self, positions: Mapping[ShardKey, Position]) -> None:
        """Begin to read shards from these positions on, unless they are read already."""

    def follow(self, positions: Mapping[ShardKey, Position]) -> None:
        """Set which shards are read, each with the position of one of its queries; `SHARD_END` only if all of them have reached that."""

    def commit(self, positions: Mapping[ShardKey, Position]) -> Mapping[ShardKey, LastRecord]:
        """Drop what no query needs any more.

        Args:
            positions: The lowest claim of each shard.

        Returns:
            For shards whose position has changed: the last record before it, if known.
        """

    def last_record(self, wanted: ShardRange) -> int | None:
        """The sequence number of the last record of a range; None if there is none, or if it is unknown."""

    def is_read(self, key: ShardKey) -> bool:
        """Whether a task is reading a range of a shard from the buffer."""

    def wants_room(self, seconds: float) -> bool:
        """Whether a shard has waited for room for this many seconds."""

    def tip(self, key: ShardKey) -> Position | None:
        """The tip that a shard had when reading it began; None if unknown."""

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        """The end of a shard's buffer, if everything that arrived before `since` (monotonic seconds) is before it; else None."""

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """Close the subscriptions of shards until `expect`, `follow` or `buffered` needs them."""
