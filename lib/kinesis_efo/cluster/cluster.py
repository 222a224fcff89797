"""Fetches the shards of a run in other processes: `fetchers=N`.

The fetchers ask the run for work, and report what has arrived. The run plans from these reports and waits for no fetcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.service import Call, CallerGone, decoded
from kinesis_efo.clock import Clock, within
from kinesis_efo.cluster.assignments import Assignments
from kinesis_efo.cluster.probe import nobody_listens, watch_fetchers
from kinesis_efo.cluster.snapshots import ShardSnapshots
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.background import in_background
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Coordinator, Fetcher
from kinesis_efo.fetcher.service import FetcherService, RangeSource
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import REPORT, WHERE, WORK, Report, WhereReply, WhereRequest, WorkRequest
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange
from kinesis_efo.sharing.apart_reading import QueryTasks
from kinesis_efo.sharing.query_fetching import QueryFetching
from kinesis_efo.sharing.sharing import Sharing

_GOODBYE_SECONDS: Final = 3.0
_FULL: Final = 0.9
"""If a fetcher's buffers use more than this part of its budget, there may be no room for the next event."""
_PATIENCE: Final = 6
"""Multiple of `leaseTimeout` after which a query without a fetcher fails."""


class Apart(NamedTuple):
    """How queries catch up in the run's process: `fetcher` makes a fetcher with a part of `room` bytes (the option `bufferBytes`)."""

    room: int
    fetcher: Callable[[Budget], Fetcher]


class Cluster:
    """Fetches with the fetchers of other processes; implements `Fetching` and `SharedBuffers`.

    `seconds` and `timeout` are those of `Assignments`, `gone` and `problem` those of `watch_fetchers`. `apart` says how queries catch up
    (None: they cannot), `together` whether they stay together even if one starves; see `Sharing`. `home` is the address of this process
    for tasks.
    """

    def __init__(
        self,
        streams: Streams,
        seconds: Callable[[str], float],
        timeout: float,
        clock: Clock,
        *,
        gone: Callable[[FetcherAddress], Coroutine[Any, Any, bool]] = nobody_listens,
        problem: Callable[[], str] = lambda: "",
        apart: Apart | None = None,
        together: bool = False,
    ) -> None:
        self._clock = clock
        self._snapshots = ShardSnapshots(clock)
        reads_apart = None if apart is None else apart.fetcher
        budget = Budget(1 if apart is None else apart.room, now=clock.monotonic)
        self.sharing: Final = Sharing(self, clock, budget, reads_apart, together=together)
        self.assignments: Final = Assignments(streams, seconds, timeout, self._snapshots, self.sharing, clock)
        self.home: FetcherAddress
        self._streams = streams
        self._patience = _PATIENCE * timeout
        self._gone, self._problem = gone, problem
        self._has_query = False
        self._restarted: set[ShardKey] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, coordinator: Coordinator) -> None:
        failure = coordinator.failure
        self.sharing.coordinator = self.assignments.coordinator = coordinator
        failure.on_set(self.sharing.wake)
        failure.on_set(self.assignments.changed.notify)
        watching_shards = self._streams.watch(self._clock, lambda _name: self.sharing.wake())
        watching_fetchers = watch_fetchers(
            self.assignments, failure, self._clock, self._patience, self._gone, self._problem
        )
        self._tasks = [
            in_background(watching_shards, "watching the shards", failure),
            in_background(watching_fetchers, "watching the fetchers", failure),
        ]

    async def stop(self) -> None:
        """Stop fetching. Waits at most 3 seconds for the fetchers to close their subscriptions."""
        await self.sharing.stop()
        self.assignments.stopping = True
        self.assignments.wake_all()
        await within(self._clock, _GOODBYE_SECONDS, self.assignments.all_gone())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def join(self, name: str = "", max_skew: float | None = None) -> QueryFetching:
        # From the second query on, a query may be before the start of a buffer, because others may be further than the new one.
        self._snapshots.shared = self._has_query
        self._has_query = True
        return self.sharing.join(name, max_skew)

    def begin(self, stream: str) -> None:
        self.assignments.allow(stream)
        self.sharing.begin(stream)

    def end(self, stream: str) -> None:
        self.assignments.forbid(stream)
        self.sharing.end(stream)

    def fetcher_of(self, key: ShardKey) -> str | None:
        member = self.assignments.members.owner(key)
        return None if member is None else str(member)

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """The status of each shard of one stream, as the fetchers' last reports say; None: of all streams."""
        return self._snapshots.statuses(stream, self.fetcher_of)

    @property
    def room(self) -> int:
        """Bytes that all fetchers together may buffer."""
        return sum(member.request.budget for member in self.assignments.members)

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range, as the fetchers' last requests say. Thread-safe."""
        return self._reads() or self.sharing.reading

    def _reads(self) -> bool:
        return any(member.request.reading for member in self.assignments.members)

    async def where(self, request: WhereRequest) -> WhereReply:
        """The address from which a task reads each range: that of its fetcher, or of this process if the query catches up in the shard."""
        reply = await self.assignments.where(request)
        if not self._snapshots.shared:
            return reply
        if self.sharing.alone:
            for key, at in zip(request.shards, request.after, strict=True):
                self.buffered(key, at)
            return reply
        tasks = self.sharing.named(request.query).tasks
        if tasks.may_restart():
            # Queries that are further may have ended shards that this one still reads.
            nobodys = zip(request.shards, request.after, reply.fetchers, strict=True)
            self.assignments.want({key: at for key, at, there in nobodys if there is None})
        begins = zip(request.shards, request.after, reply.fetchers, strict=True)
        found = [self.home if self._is_apart(tasks, key, at) else there for key, at, there in begins]
        if request.tried is not None and found[0] == request.tried:
            # Read the range again: the fetcher's buffer may have dropped it for lack of room, which no report says.
            key, at = request.shards[0], request.after[0]
            if not tasks.may_restart():
                found[0] = self.home
            elif (buffer := self.found(key)) is not None and not buffer.ends_before(at):
                self.begin_at(key, at)
        return WhereReply(found, reply.there)

    def _is_apart(self, tasks: QueryTasks, key: ShardKey, position: Position) -> bool:
        """Whether a task has to read with the query's own fetcher, also because the shared buffer has not reached the position yet."""
        if tasks.are_apart(key, position):
            return True
        if (buffer := self.found(key)) is None:
            # Other queries may have finished a shard in the middle of the range of this one.
            return key not in self.assignments.reached and not tasks.may_restart()
        if tasks.may_restart():
            self.buffered(key, position)
            return False
        return buffer.ends_before(position)

    def of(self, query: str) -> RangeSource:
        """The source from which the tasks of a query read the shards in which the query catches up."""
        return self.sharing.named(query).tasks

    # -- what the queries share

    @property
    def withholds(self) -> bool:
        return self.assignments.withholds

    def expect(self, positions: Mapping[ShardKey, Position]) -> None:
        self.assignments.want(positions)

    def follow(self, positions: Mapping[ShardKey, Position]) -> None:
        self.assignments.want(positions)
        # What is buffered of shards that a query has read to its end would fill the buffers, and nothing would drop it.
        self._end({key for query in self.sharing.queries for key in query.left} - positions.keys())

    def begin_at(self, key: ShardKey, position: Position) -> EventIndex | None:
        if key not in self._restarted:
            self._restarted.add(key)
            self.assignments.restart(key, position)
        return None

    def commit(self, positions: Mapping[ShardKey, Position]) -> Mapping[ShardKey, LastRecord]:
        reached = self.assignments.reached
        records: dict[ShardKey, LastRecord] = {}
        moved = False
        for key, position in positions.items():
            before = reached.get(key, position)
            if before == position or not position.reaches(before):
                continue
            moved = True
            if position.is_end:
                self.assignments.end(key)
                continue
            reached[key] = position
            if (record := self._snapshots.commit(key, position)) is not None:
                records[key] = record
        # Keep shards that are not in `positions` but that a query reads, such as children of ended shards.
        self._end(reached.keys() - positions.keys() - self.sharing.positions().keys())
        if moved:
            self.assignments.wake_all()
        return records

    def _end(self, shards: Collection[ShardKey]) -> None:
        if left := self.assignments.reached.keys() & shards:
            for key in left:
                self.assignments.end(key)
            # The query that left may have been the last one to read some shards: end their subscriptions now.
            self.assignments.share()

    def last_record(self, wanted: ShardRange) -> int | None:
        return self._snapshots.last_record(wanted)

    def is_read(self, key: ShardKey) -> bool:  # noqa: ARG002
        """Whether a task reads any shard, because the fetchers do not report which shards are being read."""
        return self._reads()

    def wants_room(self, seconds: float) -> bool:  # noqa: ARG002
        """Whether the buffers of a fetcher are nearly full, because fetchers do not report how long a shard has waited for room."""
        return self._snapshots.fullest >= _FULL

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        return self._snapshots.tip_since(key, since)

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        await self.assignments.let_go(shards)

    # -- what the micro-batch planner asks

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        found = self._snapshots.buffered(key, position)
        if found is not None or (told := self.found(key)) is None:
            return found
        # The buffer starts after the position, because queries that have left had read further. Or only an event would show that, and none
        # seems to come.
        restarts = told.covers(position) is False or self.quiet(key)
        return self.begin_at(key, position) if restarts else None

    def found(self, key: ShardKey) -> EventIndex | None:
        found = self._snapshots.found(key)
        if found is not None:
            self._restarted.discard(key)
        return found

    def millis_behind(self, key: ShardKey) -> int | None:
        return self._snapshots.millis_behind(key)

    def quiet(self, key: ShardKey) -> float:
        return self._snapshots.quiet(key)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self._snapshots.read_until(key, position)

    def budgets(self, keys: Collection[ShardKey]) -> Iterable[tuple[Collection[ShardKey], int]]:
        return self._snapshots.budgets(keys)


class PlannerService(FetcherService):
    """Serves the fetchers of a run, and the tasks of queries that catch up; see `FetcherService`, which gets the other arguments."""

    what = "planner"

    def __init__(self, cluster: Cluster, *arguments: Any, **options: Any) -> None:
        self._cluster = cluster
        super().__init__(cluster.of, *arguments, **options)
        cluster.home = self.address

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        assignments = self._cluster.assignments
        if name == WORK:
            request = decoded(body, WorkRequest)
            try:
                return self.run(call, assignments.work(request))
            except CallerGone:
                self.run(None, self._dropped(request.name))
                raise
        if name == REPORT:
            return self.run(call, assignments.report(decoded(body, Report)))
        if name == WHERE:
            return self.run(call, self._cluster.where(decoded(body, WhereRequest)))
        return super().act(call, name, body)

    async def _dropped(self, name: str) -> None:
        self._cluster.assignments.dropped(name)
