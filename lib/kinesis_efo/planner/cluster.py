"""The shards of a run, fetched by other processes: `fetchers=N`.

The fetchers ask for work and report what has arrived, so the planner waits for none of them: it plans from what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

from kinesis_efo.clock import Clock, within
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.background import in_background
from kinesis_efo.fetcher.coordinator import Coordinator
from kinesis_efo.fetcher.micro_batches import MicroBatchPlanner
from kinesis_efo.fetcher.progress import ShardProgress
from kinesis_efo.fetcher.shard_watch import ShardWatch
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.planner.assignments import Assignments
from kinesis_efo.planner.fetcher_watch import FetcherWatch
from kinesis_efo.planner.members import Fallback, MissingFetchers
from kinesis_efo.planner.sessions import FetcherSessions
from kinesis_efo.planner.snapshots import ShardSnapshots
from kinesis_efo.positions import LastRecord, Offset, Position, ShardKey, ShardRange

_GOODBYE_SECONDS: Final = 3.0
_PATIENCE: Final = 6
"""Times `leaseTimeout`: how long a query bears that it has no fetcher."""


class Cluster:
    """Fetches with the fetchers of other processes; see `Fetching`.

    Args:
        streams: What the query reads.
        seconds: For how long a stream may be read: until the run's lease ends.
        timeout: Seconds after which a fetcher that is not heard of counts as dead; it has stopped reading by then.
        clock: Time.
        gone: Tells whether nobody listens at an address any more, for certain.
        fallback: What is done and said if no fetcher comes.
        max_skew: See `MicroBatchPlanner`.

    Attributes:
        assignments: Which fetcher reads which shard.
        sessions: Answers fetchers and tasks.
    """

    def __init__(
        self,
        streams: Streams,
        seconds: Callable[[str], float],
        timeout: float,
        clock: Clock,
        *,
        gone: Callable[[FetcherAddress], Coroutine[Any, Any, bool]],
        fallback: Fallback | None = None,
        max_skew: float | None = None,
    ) -> None:
        self._clock = clock
        self._snapshots = ShardSnapshots(clock)
        missing = MissingFetchers(_PATIENCE * timeout, clock.monotonic(), fallback or Fallback())
        self.assignments = Assignments(self._snapshots, missing, timeout, clock)
        self._micro_batches = MicroBatchPlanner(self._snapshots, clock, self._check, max_skew)
        self._watch = ShardWatch(streams, clock, lambda _stream: self._micro_batches.wake())
        self._fetcher_watch = FetcherWatch(self.assignments, missing, gone, clock)
        self.sessions = FetcherSessions(
            streams, seconds, self.assignments, self._snapshots, self._micro_batches, self._watch, clock
        )
        self._failure: Failure
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, coordinator: Coordinator) -> None:
        """See `Fetching`."""
        self._failure = coordinator.failure
        self.sessions.start(coordinator)
        self._failure.on_set(self._micro_batches.wake)
        self._failure.on_set(self.assignments.changed.notify)
        self._tasks = [
            in_background(self._watch.run(), "watching the shards", self._failure),
            in_background(self._fetcher_watch.run(self._failure), "watching the fetchers", self._failure),
        ]

    async def stop(self) -> None:
        """See `Fetching`. The fetchers close their subscriptions, and say so."""
        self.assignments.stopping = True
        self.assignments.tell_all()
        await within(self._clock, _GOODBYE_SECONDS, self.assignments.all_gone())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def expect(self, offset: Offset) -> None:
        """See `Fetching`."""
        if offset is not self._micro_batches.offset or self.assignments.withholds:
            self.assignments.want(offset)

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> list[ShardProgress]:
        """See `Fetching`."""
        self.expect(offset)
        return await self._micro_batches.poll(offset, max_bytes, max_records, at_most)

    async def commit(self, offset: Offset) -> Mapping[ShardKey, LastRecord]:
        """See `Fetching`."""
        self._check()
        reached = self.assignments.reached
        records: dict[ShardKey, LastRecord] = {}
        moved = False
        for key, position in offset.items():
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
        # Children that a later offset has begun are still to be read.
        if left := reached.keys() - offset.keys() - (self._micro_batches.offset or offset).keys():
            moved = True
            for key in left:
                self.assignments.end(key)
        if moved:
            self.assignments.tell_all()
        return records

    def last_record(self, wanted: ShardRange) -> int | None:
        """See `Fetching`."""
        return self._snapshots.last_record(wanted)

    def begin(self, stream: str) -> None:
        """See `Fetching`."""
        self.assignments.allow(stream)

    def end(self, stream: str) -> None:
        """See `Fetching`."""
        self.assignments.forbid(stream)

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """See `Fetching`."""
        await self.assignments.let_go(shards)

    def fetcher_of(self, key: ShardKey) -> str | None:
        """See `Fetching`."""
        return self.assignments.fetcher_of(key)

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """See `Fetching`. By what the fetchers have said last."""
        return self._snapshots.statuses(stream, self.assignments.fetcher_of)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        """See `Fetching`."""
        return self._snapshots.read_until(key, position)

    def tip(self, key: ShardKey) -> Position | None:
        """See `Fetching`."""
        return self._snapshots.tip(key)

    @property
    def room(self) -> int:
        """Bytes that the fetchers may buffer."""
        return self.assignments.room

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment, by what fetchers said last."""
        return self.assignments.reading

    def _check(self) -> None:
        self._failure.raise_if_set()
