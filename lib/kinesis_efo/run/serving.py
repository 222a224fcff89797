"""Serves the tasks of a run's queries: from buffers in the run's process, or by returning the address of a range's fetcher."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.service import Call, CallerGone, decoded
from kinesis_efo.clock import Clock, within
from kinesis_efo.fetcher.buffer import NotCovered
from kinesis_efo.fetcher.fetcher import Coordinator
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.work import REPORT, WHERE, WORK, Report, RowKey, WhereReply, WhereRequest, WorkRequest
from kinesis_efo.positions import ShardRange
from kinesis_efo.run.assignments import TICK_SECONDS, Assignments
from kinesis_efo.run.table import Table

_AGAIN_SECONDS: Final = 0.2


class Serving:
    """Serves the tasks of all queries. `assignments` has the fetchers in other processes; None if this process fills all buffers."""

    def __init__(self, table: Table, coordinator: Coordinator, assignments: Assignments | None, clock: Clock) -> None:
        self.assignments: Final = assignments
        self._table = table
        self._coordinator = coordinator
        self._clock = clock

    def of(self, query: str) -> QuerySource:
        """Return the object that serves a query's tasks from the buffers of this process."""
        self._table.get_query(query)
        return QuerySource(self._table, self._coordinator, self._clock, query, has_shared=self.assignments is None)

    async def where(self, request: WhereRequest, home: FetcherAddress, *, in_turn: bool = False) -> WhereReply:
        """Return the ranges' fetchers within `request.wait` seconds. `home` is this process's address; set `in_turn` for a single task."""
        give_up_at = self._clock.monotonic() + request.wait
        while True:
            self._coordinator.failure.raise_if_set()
            query = self._table.get_query(request.query)
            if query.replay is not None:
                await within(self._clock, give_up_at - self._clock.monotonic(), query.replay.get())
            query.failure.raise_if_set()
            wanted = dict(zip(request.shards, request.after, strict=True))
            rows = self._table.find(request.query, wanted, in_turn=in_turn) if query.replay is None else {}
            found = [self._address(rows.get(key), home) for key in request.shards]
            left = give_up_at - self._clock.monotonic()
            if None not in found or left <= 0:
                return WhereReply(found, 1 if self.assignments is None else len(self.assignments.members))
            await self._table.orders_changed.within(min(left, TICK_SECONDS))

    def _address(self, row: RowKey | None, home: FetcherAddress) -> FetcherAddress | None:
        if row is None:
            return None
        return home if self.assignments is None or not row.is_shared else self.assignments.address(row.shard)


class QuerySource:
    """Serves the tasks of one query from the buffers of this process; implements `RangeSource`."""

    def __init__(self, table: Table, coordinator: Coordinator, clock: Clock, query: str, *, has_shared: bool) -> None:
        self._table = table
        self._coordinator = coordinator
        self._clock = clock
        self._query = query
        self._has_shared = has_shared

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        if self._coordinator.failure.error is None and self._table.get_query(self._query).replay is None:
            self._table.find(self._query, {wanted.key: wanted.after for wanted in ranges}, in_turn=True)
        return self._clock.monotonic()

    async def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        asked_at = self._clock.monotonic() if asked_at is None else asked_at
        while not wanted.is_over:
            row = await self._row(wanted)
            try:
                async with aclosing(self._table.home.read(row, wanted, asked_at, self._query)) as reading:
                    async for payloads in reading:
                        yield payloads
            except NotCovered as error:
                if error.left == wanted:
                    await self._table.orders_changed.within(_AGAIN_SECONDS)
                wanted = error.left
            else:
                return

    async def _row(self, wanted: ShardRange) -> RowKey:
        """Wait until a buffer can serve a range, and return the buffer's key. Raises `NotCovered` if this buffer is in another process."""
        patience = self._table.home.settings.patience
        give_up_at = self._clock.monotonic() + patience
        while True:
            self._coordinator.failure.raise_if_set()
            query = self._table.get_query(self._query)
            if query.replay is not None:
                await query.replay.get()
            query.failure.raise_if_set()
            row = self._table.find(self._query, {wanted.key: wanted.after})[wanted.key]
            if row is not None and (self._has_shared or not row.is_shared):
                return row
            if row is not None:
                raise NotCovered(wanted)
            if (left := give_up_at - self._clock.monotonic()) <= 0:
                raise self._coordinator.refusal(wanted.key, patience)
            await self._table.orders_changed.within(min(left, 1.0))


class PlannerService(FetcherService):
    """Serves a run's tasks, and its fetchers in other processes. See `FetcherService` for the arguments after `serving`."""

    what = "planner"

    def __init__(self, serving: Serving, *arguments: Any, **options: Any) -> None:
        self._serving = serving
        super().__init__(serving.of, *arguments, **options)

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        if name == WHERE:
            return self.run(call, self._serving.where(decoded(body, WhereRequest), self.address, in_turn=True))
        if (assignments := self._serving.assignments) is None:
            return super().act(call, name, body)
        if name == WORK:
            request = decoded(body, WorkRequest)
            try:
                return self.run(call, assignments.work(request))
            except CallerGone:
                self.run(None, assignments.dropped(request.name))
                raise
        if name == REPORT:
            return self.run(call, assignments.report(decoded(body, Report)))
        return super().act(call, name, body)
