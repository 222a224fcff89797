"""All streams of a run: answers by `ShardKey` and offset what `Stream` answers by shard id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.errors import FetcherError, FetcherUnreachableError
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.row import LeaseInfo
from kinesis_efo.positions import SHARD_END, Position, ShardKey


class Streams:
    """The streams of a run.

    Args:
        streams: By logical name.
        may_grow: Whether a missing stream may be added later.

    Attributes:
        streams: The same.
    """

    def __init__(self, streams: dict[str, Stream], *, may_grow: bool = False) -> None:
        self.streams: Final = streams
        self._may_grow = may_grow

    def stream(self, name: str) -> Stream:
        """A stream by its logical name.

        Raises:
            FetcherError: The checkpoint has the stream, but the query does not read it.
            FetcherUnreachableError: It is not listed yet.
        """
        try:
            return self.streams[name]
        except KeyError:
            if self._may_grow:
                raise FetcherUnreachableError(f"stream {name!r} is not listed here yet") from None
            raise FetcherError(
                f"the checkpoint names stream {name!r}, but the query reads {', '.join(map(repr, sorted(self.streams)))}: "
                "streams cannot be taken away from a query; start it with a new checkpoint"
            ) from None

    async def add(self, name: str, stream: Stream) -> None:
        """List the shards of a further stream, and add it.

        Args:
            name: Its logical name.
            stream: The stream.

        Raises:
            StreamError: It cannot be listed.
        """
        await stream.refresh(patient=True)
        self.streams[name] = stream

    @property
    def outdated(self) -> bool:
        """Whether an announced shard has an unknown parent."""
        return any(stream.lineage.outdated for stream in self.streams.values())

    async def refresh(self, *, patient: bool = False) -> None:
        """List the shards of every stream.

        Args:
            patient: Whether to retry passing errors.

        Raises:
            StreamError: A stream cannot be listed.
        """
        await all_of(*(stream.refresh(patient=patient) for stream in self.streams.values()))

    async def identify(self) -> None:
        """Find out the streams' identities, if possible."""
        await all_of(*(stream.identify() for stream in self.streams.values()))

    def identity(self, name: str) -> StreamIdentity:
        """The identity of the stream that has a logical name now."""
        return self.stream(name).identity

    def starting(self, reached: Mapping[ShardKey, Position]) -> list[ShardKey]:
        """The shards that can begin, because all their parents have been read to their end."""
        return [
            ShardKey(name, shard)
            for name, positions in self._with_ends(reached)
            for shard in self.stream(name).lineage.startable(positions)
        ]

    def finished(self, reached: Mapping[ShardKey, Position]) -> list[ShardKey]:
        """The ended shards that can leave the offset, because all their children are in it."""
        return [
            ShardKey(name, shard)
            for name, positions in self._with_ends(reached)
            for shard in self.stream(name).lineage.droppable(positions)
        ]

    def ends(self, reached: Mapping[ShardKey, Position]) -> dict[ShardKey, Position | None]:
        """The ends of these shards and their descendants: `SHARD_END` if closed, None if open."""
        return {
            ShardKey(name, shard.shard_id): None if shard.last is None else SHARD_END
            for name, positions in by_stream(reached).items()
            for shard in self.stream(name).with_descendants(positions)
        }

    def ancestors(self, key: ShardKey) -> list[ShardKey]:
        """All known ancestors of a shard."""
        return [ShardKey(key.stream, shard) for shard in self.stream(key.stream).lineage.ancestors((key.shard,))]

    def lease_info(self, key: ShardKey, position: Position) -> LeaseInfo:
        """The content of a shard's row when it is created."""
        # The lineage has children that a last event has announced before ListShards does.
        lineage = self.stream(key.stream).lineage
        if key.shard not in lineage:
            return LeaseInfo(position)
        shard = lineage[key.shard]
        return LeaseInfo(position, frozenset(shard.parents), *map(str, shard.hash_range))

    @property
    def listings(self) -> int:
        """The number of listings so far."""
        return sum(stream.listings for stream in self.streams.values())

    def _with_ends(self, reached: Mapping[ShardKey, Position]) -> list[tuple[str, dict[str, Position]]]:
        return [
            (name, positions)
            for name, positions in by_stream(reached).items()
            if any(position.is_end for position in positions.values())
        ]


def by_stream(positions: Mapping[ShardKey, Position]) -> dict[str, dict[str, Position]]:
    """Positions by stream, and then by shard id."""
    streams: dict[str, dict[str, Position]] = {}
    for key, position in positions.items():
        streams.setdefault(key.stream, {})[key.shard] = position
    return streams
