"""One run of an application: its leases, fetchers, checkpoints and queries. It lives in one event loop and is not thread-safe.

Spark's offsets decide from which positions a run reads. The leases only decide whether it may read a stream at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import Clock, within
from kinesis_efo.decisions.losses import START_SECONDS, Facts
from kinesis_efo.decisions.progress import lease_positions
from kinesis_efo.errors import AccessRefusedError, FetcherError, KinesisEfoError, LeaseLostError
from kinesis_efo.fetcher.background import all_of, in_background
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.status import QueryStatus, ShardStatus
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import RowKey
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.leases.checkpoints import Checkpoints
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.run import LeaseListener, RunLease
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.positions import TRIM_HORIZON, LastRecord, Offset, Position, ShardKey, lowest
from kinesis_efo.run.assignments import Assignments
from kinesis_efo.run.probe import nobody_listens, watch_fetchers
from kinesis_efo.run.serving import Serving
from kinesis_efo.run.standing import lag_of, slowest_queries
from kinesis_efo.run.strictness import Strictness
from kinesis_efo.run.table import Table

if TYPE_CHECKING:
    from kinesis_efo.run.query import Query

logger = logging.getLogger(__name__)

_CLOSING_SECONDS: Final = 2.0
_GOODBYE_SECONDS: Final = 1.5
_TICK_SECONDS: Final = 1.0
_PATIENCE: Final = 6
"""A run with fetchers in other processes fails if no fetcher joins within this multiple of `leaseTimeout`."""
_LOOK_SECONDS: Final = 0.1


class Elsewhere(NamedTuple):
    """Settings for fetchers in other processes."""

    timeout: float  # Seconds without a request after which a fetcher counts as dead
    problem: Callable[[], str] = lambda: ""  # Returns what prevents fetchers from starting; empty if unknown
    gone: Callable[[FetcherAddress], Coroutine[Any, Any, bool]] = nobody_listens  # Whether a port is certainly closed


class Run(LeaseListener):
    """One run, which reads a stream only while it owns the stream's lease.

    Args:
        streams: The run's streams.
        fetcher: The fetcher in this process. With `elsewhere`, it only fills the separate buffers of queries that are catching up.
        leases: The run's leases, one for each stream.
        lease_keys: The keys of the run's lease rows.
        checkpoint_rate: Maximum checkpoints per second.
        patience: Seconds for which a query waits for a lease before it fails.
        elsewhere: Settings for fetchers in other processes; None if this process fetches everything.
        hold: Whether queries that share a full buffer wait for the slowest query (option `slowQueries`).

    `failure` stores the error that ends the run. See `Resumption` for `continued`.
    """

    def __init__(
        self,
        streams: Streams,
        fetcher: Fetcher,
        leases: RunLease,
        table: LeaseStore,
        lease_keys: LeaseKeys,
        checkpoint_rate: float,
        patience: float,
        clock: Clock,
        *,
        elsewhere: Elsewhere | None = None,
        hold: bool = False,
    ) -> None:
        super().__init__()
        self.queries: list[Query] = []
        self.continued: Final[set[str]] = set()
        self.streams: Final = streams
        self.fetcher: Final = fetcher
        self.table: Final = Table(fetcher, clock, self.may_read, self._order, hold=hold)
        self.assignments: Final = (
            None
            if elsewhere is None
            else Assignments(self.table, streams, self, leases.seconds, elsewhere.timeout, clock)
        )
        self.serving: Final = Serving(self.table, self, self.assignments, clock)
        self._elsewhere = elsewhere
        self._tasks: list[asyncio.Task[None]] = []
        self.leases: Final = leases
        self.lease_keys: Final = lease_keys
        self.patience: Final = patience
        self.clock: Final = clock
        self.searches: Final = asyncio.Lock()
        self.strictness: Final = Strictness(streams, leases, patience, clock)
        self._joined = 0
        self._rows: dict[str, Mapping[str, Lease]] = {}
        self._checkpoints = Checkpoints(
            table,
            lease_keys,
            leases.epoch,
            streams.identity,
            checkpoint_rate,
            clock,
            read_until=self.read_until,
            horizon=self._horizon,
            failure=self.failure,
            fetcher=self.fetcher_of,
        )
        self._ending: asyncio.Task[None]
        self.failure.on_set(self._end)
        streams.in_use = lambda: {name for query in self.queries for name in query.streams}

    @asynccontextmanager
    async def suspended(self, shards: Collection[ShardKey]) -> AsyncIterator[None]:
        """Close the subscriptions of some shards within this context, so that the caller can subscribe to find the shards' tips."""
        self.table.suspend(shards)
        try:
            await self.fetcher.close(RowKey(None, key) for key in shards)
            if self.assignments is not None:
                await self.assignments.wait_closed(shards)
            yield
        finally:
            self.table.resume(shards)

    async def start(self, endpoint: str, status: str | None = None) -> None:
        """Start the run: it acquires the lease on each stream in the background, and reads a stream while it owns the lease.

        `endpoint` (where tasks read) and `status` (where tools request the run's status) are written to the lease rows.
        """
        self.fetcher.start(self, self.table)
        self._tasks.append(in_background(self._tick(), "updating what is retained", self.failure))
        if self.assignments is not None and (elsewhere := self._elsewhere) is not None:
            self.failure.on_set(self.assignments.changed.notify)
            watching = watch_fetchers(
                self.assignments,
                self.failure,
                self.clock,
                _PATIENCE * elsewhere.timeout,
                elsewhere.gone,
                elsewhere.problem,
            )
            self._tasks.append(in_background(watching, "watching the fetchers", self.failure))
        await self.leases.start(self, endpoint, status)
        self.failure.raise_if_set()
        self._checkpoints.start()
        await all_of(self.streams.refresh(self.streams.streams), self.streams.identify())
        self.leases.request(self.streams.streams)

    async def stop(self) -> None:
        """Stop fetching, write the last checkpoints and release the leases. Calls that are waiting raise an error."""
        self.failure.stop()
        for query in self.queries:
            query.stop()
        await self._ending

    def _end(self) -> None:
        # Release the leases now, without waiting until all queries have failed: a query that is writing to its sink fails only afterwards.
        self._ending = asyncio.create_task(self._release(), name="end of the run")

    async def _release(self) -> None:
        if self.assignments is not None:
            await within(self.clock, _GOODBYE_SECONDS, self.assignments.stop())
        for task in self._tasks:
            task.cancel()
        await within(self.clock, _CLOSING_SECONDS, self.fetcher.stop())
        await self._checkpoints.stop()
        await self.leases.stop()

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(_TICK_SECONDS)
            self.table.tick()

    def _order(self, rows: Collection[RowKey]) -> None:
        """Send each buffer's `Order`, the events to retain, to its fetcher: with a call if it is in this process, else with a message."""
        here = {row: self.table.order(row) for row in rows if self.assignments is None or not row.is_shared}
        self.fetcher.apply_orders(here)
        if self.assignments is not None:
            self.assignments.forward_orders({row.shard for row in rows if row not in here})

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range. Thread-safe."""
        members = () if self.assignments is None else self.assignments.members
        return self.fetcher.reading or any(member.request.reading for member in members)

    def fetcher_of(self, key: ShardKey) -> str | None:
        """Return the name of a shard's fetcher; None if the shard is not assigned, or if the run has a single fetcher."""
        member = None if self.assignments is None else self.assignments.members.owner(key)
        return None if member is None else str(member)

    # -- called by the run's queries

    def join(self, query: Query) -> int:
        """Add a query to the run. Return the query's number."""
        self.queries.append(query)
        self._joined += 1
        for stream, rows in self._rows.items():
            query.resumption.load_rows(stream, rows)
        return self._joined

    def leave(self, query: Query) -> None:
        """Remove a query. Lease rows may then advance past this query's positions."""
        if query not in self.queries:
            return
        self.queries.remove(query)
        self._save(self._lowest(query.progress.finished or ()), {})
        if self._finished:
            self.follow()

    def follow(self) -> dict[ShardKey, LeaseInfo]:
        """From now on, write lease rows for the shards that the queries currently read. Return the initial content of each row.

        Also called when ListShards first returns one of these shards, to complete its row.
        """
        positions: dict[ShardKey, Position] = {}
        for offset in self._finished:
            positions = {**offset, **positions}
        if len(self._finished) > 1:
            positions |= self._lowest(positions)
        shards = {key: self.streams.lease_info(key, position) for key, position in positions.items()}
        self._checkpoints.request(shards)
        return shards

    def move_lease_rows(
        self, offset: Offset, moved: Mapping[ShardKey, Position], records: Mapping[ShardKey, LastRecord]
    ) -> None:
        """Move the lease rows forward after one query has processed everything up to `offset`.

        `moved` has the changed positions, and `records` the last record up to each of them, if known.
        """
        if len(self.queries) > 1:
            moved = self._lowest(moved)
            # If a shard's lease row is at the position of a slower query, omit the shard's last record, which lies after this position.
            records = {key: record for key, record in records.items() if moved.get(key) == offset.get(key)}
        self._save(moved, records)

    @property
    def _finished(self) -> list[Offset]:
        return [each for query in self.queries if (each := query.progress.finished) is not None]

    def _lowest(self, shards: Iterable[ShardKey]) -> dict[ShardKey, Position]:
        return lease_positions(shards, self._finished, self._checkpoints.stored, self.streams.ancestors)

    def _save(self, moved: Mapping[ShardKey, Position], records: Mapping[ShardKey, LastRecord]) -> None:
        for key, position in moved.items():
            if position.is_end:
                self._checkpoints.finish(key, self.streams.stream(key.stream).lineage.children(key.shard))
            else:
                self._checkpoints.update(key, position, records.get(key))

    def _proof(self, key: ShardKey, position: Position) -> float | None:
        """Return the lowest low watermark (epoch seconds) in the offsets of the queries at `position`; None if any offset lacks it."""
        offsets = [each.progress.finished or Offset({}) for each in self.queries if each.progress.reads(key)]
        proofs = [each.proof(key, position) or 0.0 for each in offsets if each.get(key, TRIM_HORIZON) == position]
        return min(proofs, default=0.0) or None

    def read_until(self, key: ShardKey, position: Position, known: float = 0.0) -> float | None:
        """Return the low watermark of a position that has been read, in epoch seconds; None if unknown. `known` is an earlier result."""
        row = self.table.read_until(key, position, lost=False)
        idle, since = self.streams.stream(key.stream).idle(key.shard, position) or (None, None)
        if since is not None:
            # Records that arrived before the time `since` may have been trimmed unread. Do not return a low watermark that hides this loss.
            begun, stored = self._horizon(key), self._checkpoints.read_until(key, position) or 0.0
            covered = max(stored, known) >= since or (begun is not None and since <= begun + START_SECONDS)
            idle = idle if covered else None
        found = max((each for each in (row, idle) if each is not None), default=None)
        # Subtract the maximum time for which an event waits in the socket while the buffer is full.
        return None if found is None else found - KINESIS_LIMITS.full

    # -- called by the run's lease

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Start reading a stream whose lease was acquired."""
        self._checkpoints.load(stream, rows)
        self._rows[stream] = rows
        for query in self.queries:
            query.resumption.load_rows(stream, rows)
        # Do not start reading if the run is stopping: it stops fetching first, and then releases its leases.
        if self.failure.error is None:
            logger.info("this run reads stream %s: it owns the lease", stream)
            self._update_orders(stream)

    def reopened(self, stream: str) -> None:
        """Called when a stream that no query reads was opened again: if it was re-created, its lease rows belong to another stream."""
        if self._checkpoints.reload(stream):
            self._rows[stream] = {}

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """Stop reading a stream whose lease was lost. This run fails if another run (`owner`) has acquired the lease."""
        self._update_orders(stream)
        rows = [feed.row for feed in self.fetcher if feed.key.stream == stream]
        self._tasks.append(asyncio.create_task(self.fetcher.close(rows), name="closing"))
        if owner is not None:
            self.failure.set(
                LeaseLostError(
                    f"{readable(owner)} took the lease on stream {stream} while this query was reading: the application has a second "
                    "query, or this one was stopped for longer than leaseTimeout. Nothing was lost",
                    remedy="run one query per application",
                ).about(stream)
            )

    def _update_orders(self, stream: str) -> None:
        queries = self.table.queries.values()
        shards = {key for query in queries for key in query.shards() if key.stream == stream}
        self.table.update_orders(shards)
        self.table.touch_queries(shards)
        self.table.wake()

    def lag(self, stream: str) -> Lag:
        """Return the run's lag in a stream, as written to the stream's lease row."""
        queries = [query.status(stream=stream) for query in self.queries] if self._are_several else []
        return lag_of(self.table.statuses(stream, self.fetcher_of), round(self.clock.time() * 1000), queries)

    async def status(self) -> list[ShardStatus]:
        """Return the status of each shard for tools, including the position of the shard's slowest query."""
        done: dict[int, Mapping[ShardKey, Position]] = {
            query.number: query.progress.finished or {} for query in self.queries
        }
        found = slowest_queries(done, self.streams.ancestors)
        # With several queries, use the lag of the slowest query, which may be further behind than the shared buffer.
        queries = [query.status(shards=True) for query in self.queries] if self._are_several else []
        lags = {
            (query.number, shard.stream, shard.shard): shard.millis for query in queries for shard in query.shards or ()
        }
        told = []
        for each in self.table.statuses(None, self.fetcher_of):
            number, position = found.get(each.key, (None, None))
            told.append(
                replace(
                    each,
                    done=None if position is None else str(position),
                    query=number if len(done) > 1 else None,
                    oldest=each.oldest if number is None else lags.get((number, *each.key), each.oldest),
                )
            )
        return told

    def query_statuses(self, *, shards: bool = False) -> list[QueryStatus]:
        """Return the status of each query for tools, including its shards if `shards`. Empty for a single query that is not catching up."""
        return [query.status(shards=shards) for query in self.queries] if self._are_several else []

    @property
    def _are_several(self) -> bool:
        return len(self.queries) > 1 or any(query.catches_up for query in self.queries)

    def count_queries(self) -> tuple[int, int]:
        """Return the number of queries, and the number of queries that are catching up. Thread-safe."""
        queries = list(self.queries)
        return len(queries), sum(query.catches_up for query in queries)

    # -- called by the fetcher

    def may_read(self, shard: ShardKey) -> bool:
        return self.failure.error is None and self.leases.is_held(shard.stream)

    async def may_open(self, shard: ShardKey) -> None:
        """Wait until this run owns the lease on the shard's stream, which it may have lost. Called before opening a subscription."""
        while not self.leases.is_held(shard.stream):
            await self.clock.sleep(_LOOK_SECONDS)

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        if self.may_read(shard):
            return FetcherError(
                f"shard {shard}: nothing was fetched for a task for {seconds:.0f} s, because its query does not need the task's range. "
                "Nothing was lost: Spark retries tasks that it needs"
            )
        return FetcherError(
            f"the lease on stream {shard.stream} could not be acquired within {seconds:.0f} s: another run owns it, or the lease table "
            "does not answer; `kinesis-efo leases list` shows its owner: stop that query"
        )

    def facts(self, row: RowKey, position: Position) -> Facts:
        if (owner := next((query for query in self.queries if query.owns(row)), None)) is not None:
            return owner.facts(row.shard, position)
        return self.facts_of_all(row.shard, position)

    def facts_of_all(self, shard: ShardKey, position: Position) -> Facts:
        """Return what is known about a position in a shard that all queries share."""
        begins = position == TRIM_HORIZON
        return Facts(
            self._checkpoints.read_until(shard, position),
            self._horizon(shard) if begins else None,
            self._accepted(shard, position),
            self._checkpoints.read_since(shard) if begins else None,
            begins and any(query.has_planned(shard) for query in self.queries),
            self._proof(shard, position),
        )

    def failed(self, row: RowKey, error: KinesisEfoError) -> None:
        """Handle a buffer's error: fail the run (shared buffer) or query (separate buffer). If GetRecords is denied, only stop using it."""
        query = self.table.queries.get(row.query or "")
        if row.is_shared:
            self.failure.set(error)
        elif isinstance(error, AccessRefusedError):
            self.table.forbid_polling(error)
        elif query is None and row.query:
            pass  # a task of a stopped query may still be reading: ignore its errors
        elif len(self.queries) == 1:
            self.failure.set(error)
        elif query is not None:
            query.failure.set(error)

    def _horizon(self, shard: ShardKey) -> float | None:
        horizons = [query.horizon(shard) for query in self.queries]
        return min((each for each in horizons if each is not None), default=None)

    def _accepted(self, shard: ShardKey, position: Position) -> Position | None:
        """Return the position up to which losses after `position` are accepted; None if they affect a query that does not accept them."""
        accepted, stream = [], self.streams.stream(shard.stream)
        for query in self.queries:
            finished, checked = query.progress.finished, query.rows.checked
            at = None if finished is None else finished.get(shard)
            if (checked is not None and shard not in checked) or (at is not None and not at.reaches(position)):
                continue  # the query does not read the shard yet, or is behind the shared buffer and catches up with a buffer of its own
            if (own := query.accepted.get(shard)) is not None:
                accepted.append(own)
            elif at is not None and not stream.is_recent(shard.shard, at):
                return None
        return lowest(accepted) if accepted else None
