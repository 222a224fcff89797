"""All streams of an application, as positions of a query go through their shards.

What one stream answers by shard id is asked here by `ShardKey`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from kinesis_efo.errors import AccessRefusedError, DataLossError, FetcherError, StreamError, StreamNotFoundError
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.row import LeaseInfo
from kinesis_efo.positions import SHARD_END, Position, ShardKey

logger = logging.getLogger(__name__)


class Streams:
    """Where a query can go from where it is.

    Args:
        streams: By logical name.

    Attributes:
        streams: The same.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams: Final = streams
        self._checked: frozenset[ShardKey] = frozenset()

    def stream(self, name: str) -> Stream:
        """A stream by its logical name.

        Raises:
            FetcherError: The query does not read it; its checkpoint does.
        """
        try:
            return self.streams[name]
        except KeyError:
            raise FetcherError(
                f"the checkpoint names stream {name!r}, but the query reads {', '.join(map(repr, sorted(self.streams)))}: "
                "streams cannot be taken away from a query; start it with a new checkpoint"
            ) from None

    @property
    def outdated(self) -> bool:
        """Whether some shard that was told of has a parent that is not known."""
        return any(stream.lineage.outdated for stream in self.streams.values())

    async def refresh(self) -> None:
        """List the shards of every stream.

        Raises:
            StreamError: A stream cannot be listed.
        """
        await asyncio.gather(*(stream.refresh() for stream in self.streams.values()))

    def starting(self, reached: Mapping[ShardKey, Position]) -> list[tuple[str, str]]:
        """Shards that begin where all their parents have been read to the end."""
        return [
            (name, shard)
            for name, positions in self._with_ends(reached)
            for shard in self.stream(name).lineage.startable(positions)
        ]

    def finished(self, reached: Mapping[ShardKey, Position]) -> list[tuple[str, str]]:
        """Shards that were read to their end and are not needed any more to tell which ones begin."""
        return [
            (name, shard)
            for name, positions in self._with_ends(reached)
            for shard in self.stream(name).lineage.droppable(positions)
        ]

    def ends(self, reached: Mapping[ShardKey, Position]) -> dict[ShardKey, Position | None]:
        """All shards from some positions on: `SHARD_END` of those that are closed, None of those that still grow."""
        return {
            ShardKey(name, shard.shard_id): None if shard.last is None else SHARD_END
            for name, positions in _by_stream(reached).items()
            for shard in self.stream(name).with_descendants(positions)
        }

    def lease_info(self, key: ShardKey, position: Position) -> LeaseInfo:
        """What a shard's lease begins with, if nobody has written it yet."""
        shard = self.stream(key.stream).shard(key.shard)
        return LeaseInfo(
            start=position,
            parents=frozenset(shard.parents) if shard else frozenset(),
            starting_hash_key=str(shard.hash_range[0]) if shard else None,
            ending_hash_key=str(shard.hash_range[1]) if shard else None,
        )

    async def check_loss(self, offset: Mapping[ShardKey, Position]) -> None:
        """Look for shards that are lost, each time the query has come to other shards.

        Raises:
            DataLossError: There are some, and losses fail the query.
            AccessRefusedError, StreamNotFoundError: It cannot be told, and never will be. What passes is logged.
        """
        if offset.keys() == self._checked:
            return
        for name, positions in _by_stream(offset).items():
            try:
                await self.stream(name).check_loss(positions, resumed=not self._checked)
            except (DataLossError, AccessRefusedError, StreamNotFoundError):
                raise
            except StreamError as error:
                logger.warning("stream %s: whether shards are lost is looked at again: %s", name, error)
                return
        self._checked = frozenset(offset)

    def _with_ends(self, reached: Mapping[ShardKey, Position]) -> list[tuple[str, dict[str, Position]]]:
        return [
            (name, positions)
            for name, positions in _by_stream(reached).items()
            if any(position.is_end for position in positions.values())
        ]


def _by_stream(positions: Mapping[ShardKey, Position]) -> dict[str, dict[str, Position]]:
    streams: dict[str, dict[str, Position]] = {}
    for key, position in positions.items():
        streams.setdefault(key.stream, {})[key.shard] = position
    return streams
