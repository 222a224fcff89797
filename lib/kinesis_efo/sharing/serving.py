"""Gives the tasks of one query the records of their ranges. Runs in the run's process.

A range is in the query's own buffer or in the shared one. If neither has the range any more, the query's own fetcher reads it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING

from kinesis_efo.fetcher.buffer import NotBufferedError
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.sharing.apart_reading import ApartReading

if TYPE_CHECKING:
    from kinesis_efo.sharing.query_fetching import QueryFetching
    from kinesis_efo.sharing.sharing import Sharing


class QueryTasks:
    """Serves tasks with the query's own fetcher, which `apart` has; implements `RangeSource`."""

    def __init__(self, query: QueryFetching, group: Sharing, apart: ApartReading) -> None:
        self._query = query
        self._group = group
        self._apart = apart

    def may_restart(self) -> bool:
        """Whether a task may restart the shared subscription: if the run has one query, or no query may have a fetcher of its own.

        Raises:
            KinesisEfoError: The query has failed, or has left.
        """
        self._query.failure.raise_if_set()
        return self._group.alone or not self._group.may_read_apart

    def is_alone(self) -> bool:
        """Whether the run has no other query."""
        return self._group.alone

    def are_apart(self, key: ShardKey, position: Position) -> bool:
        """Whether tasks that read a shard from a position on read with the query's own fetcher.

        Raises:
            KinesisEfoError: The query has failed, or has left.
        """
        if self.may_restart():
            return False
        own, shared = self._apart.found(key), self._group.shared.found(key)
        if own is not None and own.covers(position) is not False:
            return True
        return shared is not None and shared.covers(position) is False

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        self._query.failure.raise_if_set()
        return await self._apart.fetcher.hash_range(key) if self._group.may_read_apart else None

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        apart = [wanted for wanted in ranges if self.are_apart(wanted.key, wanted.after)]
        return self._apart.fetcher.expect(apart) if apart else self._group.clock.monotonic()

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        if self.may_restart():
            raise NotBufferedError(wanted)
        return self._apart.read(wanted, asked_at)


class ServingShared:
    """Serves one query from the run's fetcher, which all queries share, or from the query's own; implements `RangeSource`."""

    def __init__(self, fetcher: Fetcher, tasks: QueryTasks) -> None:
        self._fetcher = fetcher
        self._tasks = tasks

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        return await self._fetcher.hash_range(key)

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
