"""The feeds of the shards that one fetcher reads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange


class Feeds:
    """The feeds of one fetcher: one per shard, made when it is needed and the shard may be read. Implements `SharedBuffers`."""

    withholds: Final = False

    def __init__(
        self, make: Callable[[ShardKey], ShardFeed], may_read: Callable[[ShardKey], bool], budget: Budget
    ) -> None:
        self._make = make
        self._may_read = may_read
        self._budget = budget
        self._feeds: dict[ShardKey, ShardFeed] = {}
        self._offset: Mapping[ShardKey, Position] | None = None
        self._committed: Mapping[ShardKey, Position] = {}
        self._readers: Counter[ShardKey] = Counter()

    def __iter__(self) -> Iterator[ShardFeed]:
        """The open feeds. Thread-safe."""
        return iter(list(self._feeds.values()))

    def feed(self, key: ShardKey) -> ShardFeed | None:
        """The feed of a shard; None if the shard may not be read now."""
        if not self._may_read(key):
            return None
        if key not in self._feeds:
            self._feeds[key] = self._make(key)
        return self._feeds[key]

    def known(self, key: ShardKey) -> ShardFeed | None:
        """The feed of a shard, if it is open."""
        return self._feeds.get(key)

    def close(self, shards: Iterable[ShardKey]) -> list[asyncio.Task[None]]:
        """Close the feeds of shards; returns tasks that are done when their connections are closed."""
        feeds = [feed for key in shards if (feed := self._feeds.pop(key, None)) is not None]
        return [task for feed in feeds if (task := feed.close()) is not None]

    # -- tasks

    @contextmanager
    def reading(self, key: ShardKey) -> Iterator[None]:
        """Keep the feed of a shard while a task reads a range of it."""
        self._readers[key] += 1
        try:
            yield
        finally:
            self._readers[key] -= 1
            self._close_unneeded(key)

    def is_read(self, key: ShardKey) -> bool:
        return self._readers[key] > 0

    def covers(self, key: ShardKey, position: Position) -> bool:
        """Whether a shard can be read from a position on without a restart of its subscription."""
        buffer = self.found(key)
        return buffer is None or buffer.covers(position) is not False

    # -- what queries share

    def expect(self, positions: Mapping[ShardKey, Position]) -> None:
        """Do nothing, because a feed starts when it is needed."""

    def found(self, key: ShardKey) -> ShardBuffer | None:
        feed = self.feed(key)
        return feed.buffer if feed is not None else None

    def buffered(self, key: ShardKey, position: Position) -> ShardBuffer | None:
        feed = self.feed(key)
        return feed.from_position(position) if feed is not None else None

    def begin_at(self, key: ShardKey, position: Position) -> ShardBuffer | None:
        feed = self.feed(key)
        return feed.begin(position) if feed is not None else None

    def follow(self, positions: Mapping[ShardKey, Position]) -> None:
        """Set which shards are read, and close the feeds of all others."""
        self._offset = positions
        for key in self._feeds.keys() - positions.keys():
            self._close_unneeded(key)

    def commit(self, positions: Mapping[ShardKey, Position]) -> dict[ShardKey, LastRecord]:
        records: dict[ShardKey, LastRecord] = {}
        for key, position in positions.items():
            feed = self._feeds.get(key)
            if feed is None:
                continue
            if position.is_end:
                feed.close()
                del self._feeds[key]
            elif feed.buffer is not None:
                # Commit a position that has not changed, too, because this drops events that were fetched again for a task.
                feed.buffer.commit(position)
                if self._committed.get(key) != position:
                    # The last record is unknown if the feed began after the position.
                    record = feed.buffer.last_record_up_to(position)
                    if record is not None:
                        records[key] = record
        self._committed = positions
        return records

    def last_record(self, wanted: ShardRange) -> int | None:
        buffer = self.found(wanted.key)
        if buffer is None or buffer.covers(wanted.after) is False:
            return None
        return buffer.last_up_to(wanted.through, wanted.after)

    def wants_room(self, seconds: float) -> bool:
        return self._budget.longest_wait() >= seconds

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        feed = self.feed(key)
        return feed.tip_since(since) if feed is not None else None

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        self.close(shards)

    # -- what the micro-batch planner asks

    def millis_behind(self, key: ShardKey) -> int | None:
        feed = self._feeds.get(key)
        return feed.millis_behind if feed is not None else None

    def quiet(self, key: ShardKey) -> float:
        feed = self._feeds.get(key)
        return feed.quiet if feed is not None else 0.0

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        feed = self._feeds.get(key)
        return feed.read_until(position) if feed is not None else None

    def budgets(self, keys: Collection[ShardKey]) -> list[tuple[Collection[ShardKey], int]]:
        return [(keys, self._budget.limit)]

    # -- inside

    def _close_unneeded(self, key: ShardKey) -> None:
        """Close the feed of a shard that no query and no task reads any more."""
        if self._offset is None or self._readers[key] > 0:
            return
        position = self._offset.get(key)
        if position is None or (position.is_end and self._committed.get(key) == position):
            self.close((key,))
