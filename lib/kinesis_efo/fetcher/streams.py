"""Combines the streams of a run: offers methods of `Stream` for shards of several streams at once, and lists the shards periodically."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.clock import Clock, within
from kinesis_efo.decisions.lineage import Lineage
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.row import LeaseInfo
from kinesis_efo.positions import SHARD_END, Position, ShardKey
from kinesis_efo.records.events import ChildShard

logger = logging.getLogger(__name__)

LIST_SHARDS_SECONDS: Final = 60.0
"""Seconds between two listings of a stream's shards. New shards are usually announced earlier, by their parent's last event."""

LIST_AGAIN_SECONDS: Final = 2.0
"""Seconds between two listings while a merge is incomplete: one parent has announced the child, and the other parent is not listed yet."""


class Streams:
    """The streams of a run, by logical name. `may_grow`: clients may add streams later."""

    def __init__(self, streams: dict[str, Stream], *, may_grow: bool = False) -> None:
        self.streams: Final = streams
        self.in_use: Callable[[], Collection[str]] = lambda: self.streams  # Returns the streams that queries read
        self._may_grow = may_grow
        self._outdated = Signal()

    def stream(self, name: str) -> Stream:
        """Return a stream by its logical name.

        Raises `FetcherUnreachableError` for an unknown stream if clients may add streams, and `FetcherError` if not.
        """
        try:
            return self.streams[name]
        except KeyError:
            if self._may_grow:
                raise FetcherUnreachableError(f"the shards of stream {name!r} are not listed here yet") from None
            raise FetcherError(
                f"the checkpoint names stream {name!r}, but the query reads {', '.join(map(repr, sorted(self.streams)))}: "
                "streams cannot be removed from a query; start it with a new checkpoint"
            ) from None

    async def add(self, name: str, stream: Stream) -> None:
        """List the shards of a stream, and add the stream. Raises `StreamError` if listing fails."""
        await stream.refresh(patient=True)
        self.streams[name] = stream

    async def refresh(self, names: Iterable[str]) -> None:
        """List the shards of these streams, with retries. Raises `StreamError` if listing fails."""
        await all_of(*(self.stream(name).refresh(patient=True) for name in names))

    async def list_shards(self, offset: Mapping[ShardKey, Position]) -> None:
        """Wait until ListShards returns all shards of an offset, except trimmed shards. New shards may be missing for up to a minute."""
        await all_of(*(self.stream(name).list_shards(some) for name, some in by_stream(offset).items()))

    async def list_children(self, ended: Mapping[ShardKey, Position]) -> set[ShardKey]:
        """Wait until the children of ended shards are listed, and return them. Raises `StreamError` if listing fails."""
        shards = by_stream(ended)
        await all_of(*(self.stream(name).list_children(some) for name, some in shards.items()))
        return {
            ShardKey(name, child)
            for name, some in shards.items()
            for each in some
            for child in self.stream(name).lineage.children(each)
        }

    async def watch(self, clock: Clock, listed: Callable[[str], None]) -> None:
        """Periodically list the shards of all streams in use, until cancelled. After each success, call `listed` with the stream's name."""
        while True:
            if self._is_outdated:
                await clock.sleep(LIST_AGAIN_SECONDS)
            else:
                await within(clock, LIST_SHARDS_SECONDS, self._outdated.wait())
            for name in sorted(self.streams.keys() & self.in_use()):
                try:
                    await self.stream(name).refresh()
                except KinesisEfoError as error:
                    why = str(error).removesuffix(error.remedy or "").rstrip(". ;")  # the remedy is for a failed query
                    logger.warning(
                        "stream %s cannot be listed, trying again in %.0f s: %s", name, LIST_SHARDS_SECONDS, why
                    )
                else:
                    listed(name)

    def add_children(self, key: ShardKey, children: Sequence[ChildShard]) -> None:
        """Record the children that a shard's last event announced. If a child has an unlisted parent, list the shards again soon."""
        self.stream(key.stream).add_children(key.shard, children)
        if self._is_outdated:
            self._outdated.notify()

    @property
    def _is_outdated(self) -> bool:
        return any(stream.lineage.outdated for stream in self.streams.values())

    async def identify(self) -> None:
        """Read the creation times of the streams, to detect streams that are deleted and re-created."""
        await all_of(*(stream.identify() for stream in self.streams.values()))

    def identity(self, name: str) -> StreamIdentity:
        """Return the ARN and the creation time of a stream, by its logical name."""
        return self.stream(name).identity

    def starting(self, reached: Mapping[ShardKey, Position]) -> list[ShardKey]:
        """Return the shards that can be started next: all their parents were read to their end, skipped or trimmed."""
        return self._of_lineage(Lineage.startable, reached)

    def finished(self, reached: Mapping[ShardKey, Position]) -> list[ShardKey]:
        """Return the finished shards that can be removed from the offset: all their children are, or were, in the offset."""
        return self._of_lineage(Lineage.droppable, reached)

    def ends(self, reached: Mapping[ShardKey, Position]) -> dict[ShardKey, Position | None]:
        """Return the ends of the shards in `reached`, of shards that can start next, and of all descendants; None for each open shard."""
        return {
            ShardKey(name, shard.shard_id): None if shard.last is None else SHARD_END
            for name, positions in by_stream(reached).items()
            for shard in self.stream(name).with_descendants(
                [*positions, *self.stream(name).lineage.startable(positions)]
            )
        }

    async def hash_ranges(self, shards: Collection[ShardKey]) -> dict[ShardKey, tuple[int, int]]:
        """Return the first and last hash key of each shard. Waits until new shards are listed."""
        found: dict[ShardKey, tuple[int, int]] = {}
        for name in {key.stream for key in shards}:
            known = await self.stream(name).hash_ranges([key.shard for key in shards if key.stream == name])
            found |= {ShardKey(name, shard): hash_range for shard, hash_range in known.items()}
        return found

    def ancestors(self, key: ShardKey) -> list[ShardKey]:
        return [ShardKey(key.stream, shard) for shard in self.stream(key.stream).lineage.ancestors((key.shard,))]

    def lease_info(self, key: ShardKey, position: Position) -> LeaseInfo:
        """Return the content of a shard's new lease row."""
        # Use the lineage: it also has children that a parent's last event has announced and ListShards may not return yet.
        lineage = self.stream(key.stream).lineage
        if key.shard not in lineage:
            return LeaseInfo(position)
        shard = lineage[key.shard]
        return LeaseInfo(position, frozenset(shard.parents), *map(str, shard.hash_range))

    @property
    def listings(self) -> int:
        """How many times shards have been listed so far, in total over all streams."""
        return sum(stream.listings for stream in self.streams.values())

    def _of_lineage(
        self, choose: Callable[[Lineage, Mapping[str, Position]], Iterable[str]], reached: Mapping[ShardKey, Position]
    ) -> list[ShardKey]:
        return [
            ShardKey(name, shard)
            for name, positions in by_stream(reached).items()
            for shard in choose(self.stream(name).lineage, positions)
        ]


def by_stream(positions: Mapping[ShardKey, Position]) -> dict[str, dict[str, Position]]:
    """Group positions by stream, and then by shard id."""
    streams: dict[str, dict[str, Position]] = {}
    for key, position in positions.items():
        streams.setdefault(key.stream, {})[key.shard] = position
    return streams
