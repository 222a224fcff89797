"""Serves the tasks of one query in the planner's process: what it shares with others, and what it reads apart."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.sharer import ElsewhereError
from kinesis_efo.planner.query_fetching import QueryFetching
from kinesis_efo.positions import ShardKey, ShardRange


class ServingShared:
    """Serves from the fetcher of this process, and apart from it; implements `Served`.

    Args:
        fetcher: Reads for all queries of the run.
        query: Whose tasks are served.
    """

    def __init__(self, fetcher: Fetcher, query: QueryFetching) -> None:
        self._fetcher = fetcher
        self._query = query

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """See `Served`."""
        return await self._fetcher.hash_range(key)

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        """See `Served`."""
        return self._fetcher.expect(ranges) if self._query.alone else self._query.expect_ranges(ranges)

    async def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        """See `Served`."""
        apart = False
        while not wanted.is_over:
            if apart:
                reading = self._query.read_apart(wanted, asked_at)
            else:
                reading = self._fetcher.read(wanted, asked_at, self._query)
            try:
                async with aclosing(reading) as payloads:
                    async for some in payloads:
                        yield some
            except ElsewhereError as elsewhere:
                apart, wanted = not apart, elsewhere.left
            else:
                return


class ServingApart:
    """Serves what a query reads apart while the fetchers of the run are elsewhere; implements `Served`.

    Args:
        query: Whose tasks are served.
    """

    def __init__(self, query: QueryFetching) -> None:
        self._query = query

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """See `Served`."""
        return await self._query.hash_range(key)

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        """See `Served`."""
        return self._query.expect_ranges(ranges)

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        """See `Served`."""
        return self._query.read_apart(wanted, asked_at)
