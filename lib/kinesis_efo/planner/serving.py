"""Serves the tasks of one query in the run's process: from the shared buffers, and from the query's own fetcher."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from kinesis_efo.fetcher.buffer import STARVING_SECONDS
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.sharer import ElsewhereError
from kinesis_efo.planner.apart_reading import ApartReading
from kinesis_efo.planner.shared import Choice, choose
from kinesis_efo.positions import Position, ShardKey, ShardRange

if TYPE_CHECKING:
    from kinesis_efo.planner.query_fetching import Group, QueryFetching


class QueryTasks:
    """Decides where the tasks of a query read; implements `Sharer`.

    Args:
        query: The query.
        group: The queries of its run.
        apart: The shards in which the query catches up.
    """

    def __init__(self, query: QueryFetching, group: Group, apart: ApartReading) -> None:
        self._query = query
        self._group = group
        self._apart = apart
        self._ahead: dict[ShardKey, float] = {}
        self._waiting: dict[ShardKey, tuple[Position, float]] = {}

    @property
    def alone(self) -> bool:
        return self._group.alone

    def reads_shared(self, key: ShardKey, position: Position) -> bool:
        """See `Sharer`. It changes nothing of the planning.

        Raises:
            FetcherUnreachableError: The query has left.
            KinesisEfoError: The query has failed.
        """
        self._query.failure.raise_if_set()
        group = self._group
        if group.alone or (buffer := group.shared.found(key)) is None:
            return True
        apart = key in self._apart.shards
        choice = choose(
            position,
            buffer,
            others=bool(group.others_at(self._query, key)),
            apart=apart,
            may_read_apart=group.may_read_apart,
            has_waited=not apart and self._query.has_waited(key, position, buffer, self._ahead),
        )
        if choice is Choice.APART:
            return False
        if choice in (Choice.SHARED, Choice.FORWARD):
            self._relieve(key, position)
        if choice is Choice.FORWARD:
            del self._ahead[key]
        if choice is not Choice.SHARED:
            group.shared.begin_at(key, position)
        return True

    def _relieve(self, key: ShardKey, position: Position) -> None:
        """Make room for a task that has waited for long, as for a poll."""
        now = self._group.clock.monotonic()
        at, since = self._waiting.get(key, (position, now))
        if at != position:
            since = now
        self._waiting[key] = (position, since)
        if now - since >= STARVING_SECONDS:
            self._group.relieve(self._query)

    def keep(self, shards: Collection[ShardKey]) -> None:
        """Forget all but the shards that the query reads."""
        waits: tuple[dict[ShardKey, Any], ...] = (self._ahead, self._waiting)
        for each in waits:
            for key in each.keys() - shards:
                del each[key]

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        return await self._apart.fetcher.hash_range(key)

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        for wanted in ranges:
            if wanted.last is None and not wanted.through.is_end and not self.reads_shared(wanted.key, wanted.after):
                self._apart.expect(wanted.key, self._query.claim(wanted.key))
                self._apart.fetcher.feeds.buffered(wanted.key, wanted.after)
        return self._group.clock.monotonic()

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        """The payloads that cover a range, with GetRecords; see `ApartReading.read`."""
        return self._apart.read(wanted, asked_at, self._query.claim(wanted.key))


class ServingShared:
    """Serves one query from the run's fetcher, or from the query's own; implements `RangeSource`.

    Args:
        fetcher: The run's fetcher, which all queries share.
        tasks: Decides where the query's tasks read.
    """

    def __init__(self, fetcher: Fetcher, tasks: QueryTasks) -> None:
        self._fetcher = fetcher
        self._tasks = tasks

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        return await self._fetcher.hash_range(key)

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        return self._fetcher.expect(ranges) if self._tasks.alone else self._tasks.expect(ranges)

    async def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        apart = False
        while not wanted.is_over:
            reading = self._tasks.read(wanted, asked_at) if apart else self._fetcher.read(wanted, asked_at, self._tasks)
            try:
                async with aclosing(reading) as payloads:
                    async for some in payloads:
                        yield some
            except ElsewhereError as elsewhere:
                apart, wanted = not apart, elsewhere.left
            else:
                return
