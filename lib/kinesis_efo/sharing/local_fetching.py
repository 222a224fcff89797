"""Fetches the shards of a run in the run's own process: `fetchers=driver`.

A range of a task is in its query's own buffer or in the shared one. If neither has it any more, the query's own fetcher reads it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.fetcher.buffer import NotBufferedError
from kinesis_efo.fetcher.fetcher import Coordinator, Fetcher
from kinesis_efo.fetcher.service import RangeSource
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.sharing.apart_reading import QueryTasks
from kinesis_efo.sharing.query_fetching import QueryFetching
from kinesis_efo.sharing.sharing import Sharing


class LocalFetching:
    """Fetches with one fetcher, in the run's event loop; implements `Fetching`. `together` is as in `Sharing`."""

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


class ServingShared:
    """Serves one query from the run's fetcher, which all queries share, or from the query's own; implements `RangeSource`."""

    def __init__(self, fetcher: Fetcher, tasks: QueryTasks) -> None:
        self._fetcher = fetcher
        self._tasks = tasks

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        return self._fetcher.expect(ranges) if self._tasks.may_restart() else self._tasks.expect(ranges)

    async def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        apart = False
        while not wanted.is_over:
            apart = apart or self._tasks.are_apart(wanted.key, wanted.after)
            try:
                if apart:
                    reading = self._tasks.read(wanted, asked_at)
                else:
                    reading = self._fetcher.read(wanted, asked_at, self._tasks.may_restart, self._tasks.is_alone)
                async with aclosing(reading) as payloads:
                    async for some in payloads:
                        yield some
            except NotBufferedError as error:
                wanted, apart = error.left, not apart
            else:
                return
