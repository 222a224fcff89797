"""The shards of a run, fetched in the planner's own process: `fetchers=driver`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.coordinator import Coordinator
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.service import Served
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.planner.query_fetching import QueryFetching
from kinesis_efo.planner.serving import ServingShared
from kinesis_efo.planner.sharing import Sharing
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange


class LocalFetching:
    """One fetcher, in the same event loop; implements `Fetching` and `SharedBuffers`.

    Args:
        fetcher: The fetcher; not started yet.
        clock: Time.
        together: See `Sharing`.

    Attributes:
        sharing: The queries for which it fetches.
    """

    def __init__(self, fetcher: Fetcher, clock: Clock, *, together: bool = False) -> None:
        self._fetcher = fetcher
        apart = fetcher.apart if fetcher.can_read_apart else None
        self.sharing: Final = Sharing(self, clock, fetcher.budget, apart, together=together)

    def start(self, coordinator: Coordinator) -> None:
        self.sharing.coordinator = coordinator
        self._fetcher.start(coordinator, self.sharing)

    async def stop(self) -> None:
        await self.sharing.stop()
        await self._fetcher.stop()

    def join(self, name: str = "", max_skew: float | None = None) -> QueryFetching:
        return self.sharing.join(name, max_skew)

    def begin(self, stream: str) -> None:
        self.sharing.begin(stream)
        self._fetcher.allowed()

    def end(self, stream: str) -> None:
        self._fetcher.let_go([feed.key for feed in self._fetcher.feeds if feed.key.stream == stream])
        self.sharing.end(stream)

    @property
    def reading(self) -> bool:
        return self._fetcher.reading or self.sharing.reading

    def fetcher_of(self, key: ShardKey) -> str | None:  # noqa: ARG002
        return None

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        return self._fetcher.statuses(stream)

    def of(self, query: str) -> Served:
        """What serves the tasks of a query.

        Args:
            query: Its name.
        """
        return ServingShared(self._fetcher, self.sharing.named(query).tasks)

    # -- what the queries share

    @property
    def withholds(self) -> bool:
        return False

    def expect(self, positions: Mapping[ShardKey, Position]) -> None:
        """See `SharedBuffers`. Each shard is begun when it is asked for."""

    def found(self, key: ShardKey) -> ShardBuffer | None:
        feed = self._fetcher.feed(key)
        return feed.buffer if feed is not None else None

    def begin_at(self, key: ShardKey, position: Position) -> ShardBuffer | None:
        feed = self._fetcher.feed(key)
        return feed.begin(position) if feed is not None else None

    def follow(self, positions: Mapping[ShardKey, Position]) -> None:
        self._fetcher.follow(positions)

    def commit(self, positions: Mapping[ShardKey, Position]) -> Mapping[ShardKey, LastRecord]:
        return self._fetcher.commit(positions)

    def last_record(self, wanted: ShardRange) -> int | None:
        buffer = self.found(wanted.key)
        return (
            buffer.last_up_to(wanted.through, wanted.after)
            if buffer is not None and buffer.may_cover(wanted.after)
            else None
        )

    def is_read(self, key: ShardKey) -> bool:
        return self._fetcher.is_read(key)

    def wants_room(self, seconds: float) -> bool:
        return self._fetcher.budget.longest_wait() >= seconds

    def tip(self, key: ShardKey) -> Position | None:
        return self._fetcher.tip(key)

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        feed = self._fetcher.feed(key)
        return feed.tip_since(since) if feed is not None else None

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        self._fetcher.let_go(shards)
        self.sharing.touch(shards)

    # -- what the micro-batch planner asks

    def buffered(self, key: ShardKey, position: Position) -> ShardBuffer | None:
        return self._fetcher.buffered(key, position)

    def millis_behind(self, key: ShardKey) -> int | None:
        return self._fetcher.millis_behind(key)

    def quiet(self, key: ShardKey) -> float:
        return self._fetcher.quiet(key)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self._fetcher.read_until(key, position)

    def budgets(self, keys: Collection[ShardKey]) -> list[tuple[Collection[ShardKey], int]]:
        return [(keys, self._fetcher.budget.limit)]
