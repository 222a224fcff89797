"""Fetches the shards of a run in the run's own process: `fetchers=driver`."""

from __future__ import annotations

from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.fetcher.fetcher import Coordinator, Fetcher
from kinesis_efo.fetcher.service import RangeSource
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.positions import Position, ShardKey
from kinesis_efo.sharing.query_fetching import QueryFetching
from kinesis_efo.sharing.serving import ServingShared
from kinesis_efo.sharing.sharing import Sharing


class LocalFetching:
    """Fetches with one fetcher, in the run's event loop; implements `Fetching`.

    Args:
        fetcher: The fetcher, which `start` starts.
        clock: Time.
        together: Whether queries stay together even if one starves; see `Sharing`.

    Attributes:
        sharing: The queries for which it fetches.
    """

    def __init__(self, fetcher: Fetcher, clock: Clock, *, together: bool = False) -> None:
        self._fetcher = fetcher
        self.sharing: Final = Sharing(fetcher.feeds, clock, fetcher.budget, fetcher.new_apart, together=together)

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
        self._fetcher.feeds.close([feed.key for feed in self._fetcher.feeds if feed.key.stream == stream])
        self.sharing.end(stream)

    @property
    def reading(self) -> bool:
        return self._fetcher.reading or self.sharing.reading

    def fetcher_of(self, key: ShardKey) -> str | None:  # noqa: ARG002
        return None

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        return self._fetcher.statuses(stream)

    def of(self, query: str) -> RangeSource:
        """The source from which the tasks of the query with the name `query` read."""
        return ServingShared(self._fetcher, self.sharing.named(query).tasks)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self._fetcher.feeds.read_until(key, position)
