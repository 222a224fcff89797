"""Assembles a run from its parts, which all live in the event loop of a `RunThread`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Protocol

from kinesis_efo.calls.address import FetcherAddress, Listening, network_namespace
from kinesis_efo.calls.service import ToolCall
from kinesis_efo.calls.tls import Certificate
from kinesis_efo.clock import Clock
from kinesis_efo.cluster.remote import FetcherPlan
from kinesis_efo.fetcher.assembly import certificate_for
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.status import STATUS, RunStatus, StatusAccess, StatusRequest
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import WhereRequest
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import owner_id
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.metrics import report
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.patience import Patience
from kinesis_efo.positions import Offset, ShardRange
from kinesis_efo.run.clients import Clients
from kinesis_efo.run.query import Query
from kinesis_efo.run.query_planner import QueryPlanner
from kinesis_efo.run.run import Elsewhere, Run
from kinesis_efo.run.serving import PlannerService
from kinesis_efo.run.start import added_offset, start_offset
from kinesis_efo.run.streams import RunStreams

logger = logging.getLogger(__name__)


class RemoteFetchers(Protocol):
    """The fetchers of a run, if they are in other processes."""

    def problem(self) -> str:
        """Return what prevents the fetchers from starting; empty if unknown."""

    def stop(self) -> None:
        """Stop all fetchers."""


StartFetchers = Callable[[FetcherPlan], RemoteFetchers]
_StartOffset = Callable[[Start, Mapping[str, Stream], LeaseStore, LeaseKeys, Clock], Awaitable[Offset]]


@dataclass(frozen=True)
class RunSetup:
    """Settings for starting a run; `options` are its first query's. Without `start_fetchers`, one fetcher runs in this process."""

    manifest: Manifest
    options: SourceOptions
    listening: Listening
    start_fetchers: StartFetchers | None
    secret: str
    limits: Limits


class WholeRun:
    """A run with all its parts: leases, queries, clients, service and metrics.

    Args:
        open_stream: Opens a stream without listing its shards.
        budget: The buffer space of the fetcher in this process.
        clock: Kinesis' clock.
        streams_changed: Called when a client adds streams, with all streams' ARNs by logical name; called with {} if the run fails.
        said: Log lines of the run. The next client that makes a call receives and logs them.
    """

    def __init__(
        self,
        setup: RunSetup,
        table: LeaseStore,
        open_stream: Callable[[StreamRef], Stream],
        budget: Budget,
        clock: KinesisClock,
        streams_changed: Callable[[dict[str, str]], None],
        said: deque[str],
    ) -> None:
        manifest, options = setup.manifest, setup.options
        self.options: Final = options  # The options of the run's first query
        self.clock: Final[Clock] = clock
        self.end_report: Callable[[], None] = lambda: None  # Called when the run has ended: reports the last metrics
        self._setup = setup
        self.limits: Final = setup.limits
        self._table = table
        self._keys = LeaseKeys(manifest.stream_names)
        self._streams = RunStreams(manifest, open_stream)
        self._streams_changed = streams_changed
        self._clients: Final = Clients(self, said)
        self.emptied: Final = threading.Event()  # Set once all clients have ended
        self.certificate: Certificate | None = None  # The certificate of `service`; None without TLS
        self._fetchers: RemoteFetchers | None = None
        self._tool_call = ToolCall(secrets.token_urlsafe(16), STATUS, StatusRequest, self._status)
        random, streams, keys = Random(), Streams(self._streams.opened), self._keys
        timing = Timing(options.lease_timeout, options.retry.timeout)
        self._leases = RunLease(table, owner_id(random), keys, timing, clock, random, application=manifest.application)
        settings = FetcherSettings(
            options.fail_on_data_loss, options.patience, options.arrival_step, options.retry.timeout
        )
        elsewhere = None
        if setup.start_fetchers is not None:
            elsewhere = Elsewhere(
                options.lease_timeout, lambda: self._fetchers.problem() if self._fetchers is not None else ""
            )
        fetcher = Fetcher(streams, budget, settings, clock)
        rate, patience = options.checkpoint_rate, options.patience
        self.run: Final = Run(
            streams,
            fetcher,
            self._leases,
            table,
            keys,
            rate,
            patience,
            clock,
            elsewhere=elsewhere,
            hold=options.slow_queries == "hold",
        )
        if not manifest.lease_table:
            # Suppress the warning that the streams were read before: it recommends LEASES, which needs a lease table.
            self.run.continued.update(manifest.streams)
        # If the run fails, immediately announce it as a run without streams, so that queries do not join it.
        self.run.failure.on_set(lambda: self._streams_changed({}))
        self.service: Final = self._serve()  # Returns records or fetcher addresses to tasks

    def _serve(self) -> PlannerService:
        setup, loop = self._setup, asyncio.get_running_loop()
        certificate = self.certificate = certificate_for(setup.listening, self.clock)
        more = self._clients.answer
        serving = self.run.serving
        service = PlannerService(serving, loop, setup.secret, setup.listening, certificate, self._tool_call, more)
        ways = map(service.address.location, service.address.hosts_from(network_namespace()))
        logger.debug("tasks reach the %s at %s", service.what, ", ".join(ways))
        return service

    def _end_fetchers(self) -> None:
        if self._fetchers is not None:
            self._fetchers.stop()

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the run, its fetchers in other processes, and its metrics. Closing `stack` stops the run and its fetchers."""
        begin_fetchers, manifest = self._setup.start_fetchers, self._setup.manifest
        stack.callback(self._end_fetchers)
        stack.push_async_callback(self.run.stop)
        stack.push_async_callback(self._clients.stop)
        await self.run.start(str(self.address), StatusAccess(self.address, self._tool_call.token).to_text())
        if begin_fetchers is not None:
            self._fetchers = begin_fetchers(FetcherPlan(manifest, self.options, self.address, self._setup.secret))
        about = {"application": manifest.application, "environment": manifest.environment}
        shards, now, queries = self.options.metrics.shards, self.clock.monotonic, self.run.count_queries
        fetcher = self.run.fetcher if self.run.assignments is None else None
        collector = FetcherCollector(fetcher, self._streams.opened, self._leases, about, shards, now, queries)
        self.end_report = report(collector, self.options.metrics)

    @property
    def address(self) -> FetcherAddress:
        """The address at which tasks read records, or request the fetchers of their ranges."""
        return self.service.address

    @property
    def planner_address(self) -> FetcherAddress | None:
        """The address at which tasks request the fetchers of their ranges; None if the run has a single fetcher."""
        return None if self.run.assignments is None else self.address

    async def initial(self, start: Start, names: Collection[str], query: Query) -> Offset:
        """Return the start offset of a new query."""
        found = await self._begin(start_offset, start, names)
        query.resumption.mark_new(names, from_leases=start.from_leases)
        # Queries that are started together at LATEST must begin at the same record.
        return await query.start_at_latest(found) if start == Start() else found

    async def added(self, start: Start, names: Collection[str]) -> Offset:
        """Return the start offset of streams that were added to a query with a checkpoint."""
        return await self._begin(added_offset, start, names)

    async def placed(self, ranges: Sequence[ShardRange], at_most: float, query: str) -> list[FetcherAddress | None]:
        """Return the fetcher of each of a query's ranges; None for ranges that are not assigned within `at_most` seconds."""
        if self.run.assignments is None:
            return [self.address] * len(ranges)
        return (await self.run.serving.where(WhereRequest.of(ranges, at_most, query), self.address)).fetchers

    async def _begin(self, ask: _StartOffset, start: Start, names: Collection[str]) -> Offset:
        streams = {name: self._streams.opened[name] for name in names}
        asking = partial(ask, start, streams, self._table, self._keys, self.clock)
        return await Patience(self.options.retry, self.clock).call(f"the rows of {self._table.label}", asking)

    def stream_faults(self, streams: Mapping[str, StreamRef]) -> list[str]:
        """Return why a query that reads these streams cannot share the run; empty if it can."""
        return self._streams.faults(streams)

    def extend(self, streams: Mapping[str, StreamRef]) -> asyncio.Task[None]:
        """Add streams to the run, and announce them to other processes of the program. Returns a task that ends once they are open."""
        self._streams.add(streams, self.run.streams.in_use())
        self._streams_changed(self._streams.arns)
        return asyncio.create_task(self._extended(streams), name="extend")

    async def _extended(self, names: Collection[str]) -> None:
        await self._streams.ready(names)
        for name in names:
            self.run.reopened(name)
        self.run.leases.extend(names)

    def new_query(self, name: str, streams: Collection[str], options: SourceOptions) -> QueryPlanner:
        """Add a query to the run, and return its planner. The query's tasks send `name` with their requests."""
        query = Query(
            self.run,
            options.ends,
            name=name,
            max_skew=self.options.max_shard_skew,
            streams=streams,
            accepted=options.accepted_losses,
        )
        return QueryPlanner(self, query, name, options, streams)

    def close(self, *, only_if_alone: bool = False) -> bool:
        """Stop serving clients, unless `only_if_alone` is set and there are clients. Return whether the run is closed to clients."""
        return self._clients.close(only_if_alone=only_if_alone)

    async def _status(self, request: StatusRequest) -> RunStatus:
        members = () if self.run.assignments is None else self.run.assignments.members
        room = sum(member.request.budget for member in members) or self.run.fetcher.room
        queries = self.run.query_statuses(shards=request.query_shards)
        return RunStatus(self.clock.time(), await self.run.status(), room, time.process_time(), queries)
