"""All streams that a query reads, asked by `ShardKey` and offset for what `Stream` answers by shard id."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.errors import (
    AccessRefusedError,
    DataLossError,
    FetcherError,
    StreamError,
    StreamNotFoundError,
    StreamReplacedError,
)
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.row import LeaseInfo
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)


class Streams:
    """Answers for all streams of a query: which shards begin, which have ended, which are lost.

    Args:
        streams: By logical name.

    Attributes:
        streams: The same.
        appeared: Shards that begin although none has ended for them, by the last `check_loss`: they have no parents, and are younger
            than all shards of its offset.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams: Final = streams
        self._checked: frozenset[ShardKey] = frozenset()
        self._checked_offset: Mapping[ShardKey, Position] | None = None
        self._checked_listings = 0
        self.appeared: list[ShardKey] = []

    def stream(self, name: str) -> Stream:
        """A stream by its logical name.

        Raises:
            FetcherError: The checkpoint names the stream, but the query does not read it.
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
        """Whether an announced shard has a parent that is not known."""
        return any(stream.lineage.outdated for stream in self.streams.values())

    async def refresh(self, *, patient: bool = False) -> None:
        """List the shards of every stream.

        Args:
            patient: Whether to wait out what passes.

        Raises:
            StreamError: A stream cannot be listed.
        """
        await all_of(*(stream.refresh(patient=patient) for stream in self.streams.values()))

    async def identify(self) -> None:
        """Find out which streams they are, as far as that can be told."""
        await all_of(*(stream.identify() for stream in self.streams.values()))

    def identity(self, name: str) -> StreamIdentity:
        """Which stream a logical name stands for now."""
        return self.stream(name).identity

    def starting(self, reached: Mapping[ShardKey, Position]) -> list[ShardKey]:
        """Shards that can begin, because all their parents have been read to their end."""
        return [
            ShardKey(name, shard)
            for name, positions in self._with_ends(reached)
            for shard in self.stream(name).lineage.startable(positions)
        ]

    def finished(self, reached: Mapping[ShardKey, Position]) -> list[ShardKey]:
        """Ended shards that can leave the offset: they are not needed any more to tell which ones begin."""
        return [
            ShardKey(name, shard)
            for name, positions in self._with_ends(reached)
            for shard in self.stream(name).lineage.droppable(positions)
        ]

    def ends(self, reached: Mapping[ShardKey, Position]) -> dict[ShardKey, Position | None]:
        """The ends of these shards and their descendants: `SHARD_END` of closed ones, None of those that still grow."""
        return {
            ShardKey(name, shard.shard_id): None if shard.last is None else SHARD_END
            for name, positions in _by_stream(reached).items()
            for shard in self.stream(name).with_descendants(positions)
        }

    def lease_info(self, key: ShardKey, position: Position) -> LeaseInfo:
        """What a shard's row holds when it is created."""
        # The lineage also knows the children that a last event announced, before ListShards does.
        lineage = self.stream(key.stream).lineage
        if key.shard not in lineage:
            return LeaseInfo(position)
        shard = lineage[key.shard]
        return LeaseInfo(position, frozenset(shard.parents), *map(str, shard.hash_range))

    @property
    def _listings(self) -> int:
        return sum(stream.listings for stream in self.streams.values())

    async def check_loss(self, offset: Mapping[ShardKey, Position]) -> None:
        """Look for shards that are lost or have appeared, whenever the offset names other shards than before, and after every listing.

        Raises:
            DataLossError: A shard is lost, and losses fail the query.
            StreamReplacedError: A stream was deleted and created again.
            AccessRefusedError, StreamNotFoundError: It cannot be told, and waiting does not help. Passing errors are logged.
        """
        listings = self._listings
        known = offset is self._checked_offset or offset.keys() == self._checked
        if known and listings == self._checked_listings:
            self._checked_offset = offset
            return
        self._note_appeared(offset)
        for name, positions in _by_stream(offset).items():
            try:
                await self.stream(name).check_loss(positions, resumed=not self._checked)
            except (DataLossError, AccessRefusedError, StreamNotFoundError, StreamReplacedError):
                raise
            except StreamError as error:
                logger.warning("stream %s: cannot tell whether shards were lost, trying again: %s", name, error)
                return
        self._checked, self._checked_offset, self._checked_listings = frozenset(offset), offset, listings

    async def check_replay(self, begin: Mapping[ShardKey, Position], ranges: Iterable[ShardRange]) -> None:
        """Look for what is gone of ranges that may have been planned long ago, in an earlier run.

        Args:
            begin: The offset that they start from.
            ranges: The ranges.

        Raises:
            DataLossError, AccessRefusedError, StreamNotFoundError: As `check_loss`.
        """
        for name, after, through in ((each.key, each.after, each.through) for each in ranges):
            if after != TRIM_HORIZON:
                continue  # checked by the subscription: its position has a time
            positions = {key.shard: position for key, position in begin.items() if key.stream == name.stream}
            try:
                await self.stream(name.stream).check_replay(name.shard, through, positions)
            except (DataLossError, AccessRefusedError, StreamNotFoundError):
                raise
            except StreamError as error:
                logger.warning("shard %s: cannot tell whether records were lost: %s", name, error)

    def _note_appeared(self, offset: Mapping[ShardKey, Position]) -> None:
        appeared = [
            ShardKey(name, shard)
            for name, positions in _by_stream(offset).items()
            for shard in self.stream(name).lineage.appeared(positions)
        ]
        for name, shard in set(appeared).difference(self.appeared):
            logger.warning("stream %s has a new shard, %s, without parents: it is read from its beginning", name, shard)
        self.appeared = appeared

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
