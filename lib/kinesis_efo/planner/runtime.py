"""Runs a planner and its fetcher in a thread of their own, with clients, leases and Flight service, and ends them in order.

This is the one place where these parts are put together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import msgspec

from kinesis_efo.aws import AsyncClients
from kinesis_efo.aws_errors import describe
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError
from kinesis_efo.fetcher.address import FetcherAddress, network_namespace
from kinesis_efo.fetcher.assembly import certificate_for, stream_opener
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.remote import FetcherPlan, fetch
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.serving import StatusDesk
from kinesis_efo.fetcher.status import RunStatus, StatusAccess, StatusRequest
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import WhereRequest
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.checkpoints import Pace
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.owner import owner_id
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.leases.table import LeaseTable, client_config
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.metrics import report
from kinesis_efo.options import Bounds, SourceOptions, Start
from kinesis_efo.patience import Patience, passes
from kinesis_efo.planner.calls import QueryCalls, finished
from kinesis_efo.planner.cluster import Apart, Cluster
from kinesis_efo.planner.local_fetching import LocalFetching
from kinesis_efo.planner.members import Fallback
from kinesis_efo.planner.probe import nobody_listens
from kinesis_efo.planner.query import Query
from kinesis_efo.planner.run import Fetching, Run
from kinesis_efo.planner.service import PlannerService
from kinesis_efo.planner.start import added_offset, start_offset
from kinesis_efo.positions import Offset, ShardRange

if TYPE_CHECKING:
    from kinesis_efo.planner.guests import Guests

logger = logging.getLogger(__name__)
T = TypeVar("T")

_STOP_SECONDS: Final = 10.0
_LEASE_REQUESTS: Final = 32


class _StartOffset(Protocol):
    """`start_offset`, or `added_offset`."""

    async def __call__(
        self, start: Start, streams: Mapping[str, Stream], table: LeaseStore, lease_keys: LeaseKeys, clock: Clock
    ) -> Offset: ...


class RemoteFetchers(Protocol):
    """The fetchers of a run in other processes."""

    optional: bool
    """Whether a fetcher may run here if they do not come."""

    def problem(self) -> str:
        """What keeps them from coming up, as far as it is known; empty if nothing is."""

    def stop(self) -> None:
        """See that nothing is left of them."""


class PlannerRuntime:
    """Runs one planner beside the calling thread.

    Args:
        manifest: The application, with the streams to read.
        options: The options of the query.
        listening: Where to listen for tasks.
        start_fetchers: Starts the fetchers of other processes; None: one fetcher runs here.
        secret: The secret of the run; None: a new one.
        name: Tells the query from others of the run, for its tasks.
        shared: Whether queries of other processes may become guests of the run.
        clock: Time.
        limits: Kinesis' times; tests shorten them.
    """

    def __init__(
        self,
        manifest: Manifest,
        options: SourceOptions,
        listening: Listening,
        *,
        start_fetchers: Callable[[FetcherPlan], RemoteFetchers] | None = None,
        secret: str | None = None,
        name: str = "",
        shared: bool = False,
        clock: Clock | None = None,
        limits: Limits = KINESIS_LIMITS,
    ) -> None:
        self.secret: Final = secret or secrets.token_urlsafe(32)
        self.query_name: Final = name
        self._shared = shared
        self._guests: Guests | None = None
        self._closed_to_guests = False
        self.streams_changed: Callable[[dict[str, str]], None] = lambda _: None
        self._desk: Final = StatusDesk(secrets.token_urlsafe(16), self._status)
        self._manifest = manifest
        self._options = options
        self._listening = listening
        self._start_fetchers = start_fetchers
        self._remote: RemoteFetchers | None = None
        self._own: asyncio.Task[None] | None = None
        self._clock = KinesisClock(clock or SystemClock())
        self._patience = Patience(options.retry, self._clock)
        self._budget = Budget(options.buffer_bytes, now=self._clock.monotonic)
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kinesis-efo fetcher", daemon=True)
        self._stack = AsyncExitStack()
        self._stopping = threading.Lock()
        self._run: Run | None = None
        self._query: Query | None = None
        self._fetcher: Fetcher | None = None
        self._cluster: Cluster | None = None
        self._streams: dict[str, Stream] = {}
        self._open_stream: Callable[[StreamRef], Stream] | None = None
        self._refs: dict[str, StreamRef] = dict(manifest.streams)
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._service: FetcherService | PlannerService | None = None
        self._table: LeaseTable | None = None
        self._end_report: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start fetching on demand.

        Raises:
            KinesisEfoError: The lease table, a stream or the credentials cannot be used.
        """
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self.stop()
            raise

    def initial_offset(self, start: Start) -> Offset:
        """The position of each shard from which a new query begins.

        Raises:
            KinesisEfoError: The streams cannot be listed, or there are no leases to start from.
        """
        assert self._query is not None
        return self._call(self.initial(start, self._manifest.streams, self._query))

    def added_offset(self, start: Start, names: Collection[str]) -> Offset:
        """The position of each shard from which streams begin that an older query reads now, too.

        Args:
            start: Where they begin.
            names: Their logical names.

        Raises:
            KinesisEfoError: The streams cannot be listed, or their leases are of other streams.
        """
        return self._call(self.added(start, names))

    @property
    def is_guest(self) -> Literal[False]:
        """It is not: the run is here."""
        return False

    @property
    def address(self) -> FetcherAddress:
        """How the fetcher is reached, or the planner if fetchers are elsewhere. Only after `start`."""
        assert self._service is not None
        return self._service.address

    def place(self, ranges: Sequence[ShardRange], at_most: float) -> list[FetcherAddress | None]:
        """Who reads the shards of some ranges, which are about to be read.

        Args:
            ranges: The ranges.
            at_most: Seconds to wait until all of them are read by somebody.

        Returns:
            The addresses, in the order of the ranges; None if nobody reads the shard yet: ask again. Tasks that begin before
            there are fetchers could take the cores that these need.

        Raises:
            KinesisEfoError: Reading failed for good.
        """
        if self._cluster is None:
            return [self.address] * len(ranges)
        return self._call(self.placed(ranges, at_most, self.query_name))

    @property
    def planner_address(self) -> FetcherAddress | None:
        """Where tasks ask who reads a shard; None if that never changes."""
        return self.address if self._cluster is not None else None

    @property
    def query(self) -> QueryCalls:
        """The query, for the thread that Spark calls. Only after `start`."""
        assert self._query is not None
        return QueryCalls(self._query, self._loop, self._thread.is_alive)

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment."""
        return self._run is not None and self._run.fetching.reading

    def say(self, line: str) -> None:
        """Let a guest write a line for this process; in any thread."""
        if self._guests is not None:
            self._guests.said.append(line)

    def leave(self) -> None:
        """End the query, but not the run: its guests may go on."""
        with contextlib.suppress(FetcherUnreachableError):
            if self._query is not None:
                self._call(self._query.leave())

    def close(self, *, only_if_alone: bool = False) -> bool:
        """Take no more guests; see `Guests.close`."""

        async def close() -> bool:
            if self._guests is None:
                self._closed_to_guests = True
                return True
            return self._guests.close(only_if_alone=only_if_alone)

        try:
            return self._call(close())
        except FetcherUnreachableError:
            return True

    def stop(self) -> None:
        """Release the leases, close every connection, end the thread. Takes bounded time; may be called again."""
        with self._stopping:
            self._stop()

    def _stop(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result(_STOP_SECONDS)
        except (TimeoutError, CancelledError):
            logger.warning("the fetcher did not stop within %.0f s; leases it still holds will expire", _STOP_SECONDS)
        except Exception:
            # Nobody is to wait for ever for the end of this process, whatever one part of it ran into.
            logger.exception("a part of the fetcher did not stop in order; the rest is stopped all the same")
        # Only after the leases were released: a successor waits for them.
        try:
            self._end_report()
        except Exception:
            logger.exception("the last metrics were not reported")
        if self._service is not None:
            # `shutdown` waits for the calls under way. They ended with the fetcher, but a stuck one must not block us.
            closing = threading.Thread(target=self._service.shutdown, daemon=True)
            closing.start()
            closing.join(2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)
        if not self._thread.is_alive():
            self._loop.close()

    # -- what guests ask, in the event loop

    @property
    def options(self) -> SourceOptions:
        """See `Host`."""
        return self._options

    @property
    def clock(self) -> Clock:
        """See `Host`."""
        return self._clock

    def stream_faults(self, streams: Mapping[str, StreamRef]) -> list[str]:
        """See `Host`."""
        faults = []
        for name, ref in streams.items():
            known = self._refs.get(name)
            if known not in (None, ref) or self._manifest.stream_names.get(name) != ref.stream_name:
                faults.append(
                    f"stream {name!r} is {ref.consumer_arn or ref.stream_arn} here, and something else in a query of this Spark program that "
                    "uses the same lease table: give both queries the same manifest"
                )
            elif known is None and self._cluster is not None:
                faults.append(
                    f"a query of this Spark program reads with kinesis-efo option 'fetchers', but not stream {name!r}, and its fetchers cannot "
                    "begin to: let both queries read the same streams, or start the one first that reads more"
                )
        return faults

    def extend(self, streams: Mapping[str, StreamRef]) -> asyncio.Task[None]:
        """See `Host`."""
        for name, ref in streams.items():
            if name not in self._refs:
                self._refs[name] = ref
                self._opening[name] = asyncio.create_task(self._open_further(name, ref), name=f"open {name}")
        self.streams_changed({name: ref.stream_arn for name, ref in self._refs.items()})
        return asyncio.create_task(self._extended(streams), name="extend")

    async def _open_further(self, name: str, ref: StreamRef) -> None:
        assert self._open_stream is not None
        stream = self._open_stream(ref)
        try:
            await all_of(stream.refresh(patient=True), stream.identify())
        except BaseException:
            del self._refs[name], self._opening[name]
            raise
        self._streams[name] = stream

    async def _extended(self, names: Collection[str]) -> None:
        assert self._run is not None
        # Another guest may wait for it, too.
        await asyncio.gather(*(asyncio.shield(self._opening[name]) for name in names if name in self._opening))
        self._run.leases.extend(names)

    def new_query(self, name: str, streams: Collection[str], ends: Bounds) -> Query:
        """See `Host`."""
        assert self._run is not None
        return Query(self._run, ends, name=name, max_skew=self._options.max_shard_skew, streams=streams)

    async def initial(self, start: Start, names: Collection[str], query: Query) -> Offset:
        """See `Host`."""
        found = await self._begin(start_offset, start, names)
        assert self._run is not None
        # Those that begin now begin at the same record. Who is alone, or gives a time, begins there.
        return query.at_front(found) if start == Start() and len(self._run.queries) > 1 else found

    async def added(self, start: Start, names: Collection[str]) -> Offset:
        """See `Host`."""
        return await self._begin(added_offset, start, names)

    async def placed(self, ranges: Sequence[ShardRange], at_most: float, query: str) -> list[FetcherAddress | None]:
        """See `Host`."""
        if (cluster := self._cluster) is None:
            return [self.address] * len(ranges)
        cluster.expect({wanted.key: wanted.after for wanted in ranges})
        return (await cluster.where(WhereRequest.of(ranges, at_most, query))).fetchers

    async def _begin(self, ask: _StartOffset, start: Start, names: Collection[str]) -> Offset:
        assert self._table is not None
        streams = {name: self._streams[name] for name in names}
        asking = partial(ask, start, streams, self._table, self._lease_keys, self._clock)
        return await self._patience.call(f"the rows of {self._table.label}", asking)

    @property
    def _joinable(self) -> Guests:
        if self._guests is None:
            # A query that is alone in its program does not need it.
            from kinesis_efo.planner.guests import Guests

            self._guests = Guests(self)
            if self._closed_to_guests:
                self._guests.close()
        return self._guests

    async def _answer(self, kind: str, body: bytes) -> msgspec.Struct | None:
        return await self._joinable.answer(kind, body)

    async def _end_guests(self) -> None:
        if self._guests is not None:
            await self._guests.stop()

    # -- inside

    async def _open(self) -> None:
        options, manifest = self._options, self._manifest
        clients = AsyncClients(options.aws, manifest.region)
        await self._wait_for_credentials(clients)
        enter = self._stack.enter_async_context
        dynamo = await enter(await clients.open("dynamodb", client_config(options.lease_timeout, _LEASE_REQUESTS)))
        self._open_stream = await stream_opener(
            self._stack, clients, manifest.source, options, self._budget, self._clock, self._limits
        )
        self._streams = {name: self._open_stream(ref) for name, ref in manifest.streams.items()}
        self._table = LeaseTable(
            dynamo,
            manifest.lease_table,
            declared_by=manifest.declared_by,
        )
        random = Random()
        leases = RunLease(
            self._table,
            owner_id(random),
            self._lease_keys,
            Timing(options.lease_timeout, options.retry.timeout),
            self._clock,
            random,
            application=manifest.application,
        )
        patience = options.patience
        streams = Streams(self._streams)
        fetching = self._fetching(streams, leases, patience)
        ways = map(self.address.location, self.address.hosts_from(network_namespace()))
        what = "fetcher" if self._cluster is None else "planner"
        logger.info("tasks reach the %s at %s", what, ", ".join(ways))
        pace = Pace(options.checkpoint_rate)
        self._run = Run(streams, fetching, leases, self._table, self._lease_keys, pace, patience, self._clock)
        self._query = self.new_query(self.query_name, manifest.streams, options.ends)
        # What has failed is no run to join, even if its own queries learn that late.
        self._run.failure.on_set(lambda: self.streams_changed({}))
        self._stack.callback(self._end_remote)
        self._stack.push_async_callback(self._end_own)
        self._stack.push_async_callback(self._run.stop)
        self._stack.push_async_callback(self._end_guests)
        await self._run.start(str(self.address), StatusAccess(self.address, self._desk.token).to_text())
        if self._start_fetchers is not None:
            self._remote = self._start_fetchers(self._plan)
        about = {"application": manifest.application, "environment": manifest.environment}
        collector = FetcherCollector(
            self._fetcher,
            self._streams,
            leases,
            about,
            options.metrics.shards,
            self._clock.monotonic,
            self._run.count_queries,
        )
        self._end_report = report(collector, options.metrics)
        logger.info("fetcher of application %s serves %s", manifest.application, ", ".join(self._streams))

    async def _wait_for_credentials(self, clients: AsyncClients) -> None:
        """Wait out what passes. The call that needs credentials explains better why there are none."""
        role = self._options.aws.role_arn
        what = f"AssumeRole of {role}" if role else "AWS credentials"
        try:
            await self._patience.call(what, clients.credentials)
        except KinesisEfoError:
            raise
        except Exception as error:
            if passes(error):
                raise FetcherError(
                    f"application {self._manifest.application}: no answer to {what} for as long as kinesis-efo option "
                    f"'subscribe.retryTimeout' says: {describe(error)}. Nothing was lost: start the query again"
                ) from error

    def _fetching(self, streams: Streams, leases: RunLease, patience: float) -> Fetching:
        """What fetches, and the service by which tasks and other fetchers reach this process."""
        options, clock = self._options, self._clock
        certificate = certificate_for(options, self._listening, clock)
        settings = FetcherSettings(options.fail_on_data_loss, patience, options.arrival_step, options.retry.timeout)
        more = self._answer if self._shared else None
        if self._start_fetchers is not None:
            self._cluster = Cluster(
                streams,
                leases.seconds,
                options.lease_timeout,
                clock,
                gone=nobody_listens,
                fallback=Fallback(self._fetch_here, self._excuse),
                apart=Apart(
                    options.buffer_bytes, lambda watch, budget: Fetcher(streams, budget, settings, clock, beside=watch)
                ),
                together=options.hold_together,
            )
            self._service = PlannerService(
                self._cluster, self._loop, self.secret, self._listening, certificate, self._desk, more
            )
            return self._cluster
        self._fetcher = Fetcher(streams, self._budget, settings, clock)
        fetching = LocalFetching(self._fetcher, clock, together=options.hold_together)
        self._service = FetcherService(
            fetching, self._loop, self.secret, self._listening, certificate, self._desk, more
        )
        return fetching

    async def _status(self, request: StatusRequest) -> RunStatus:
        assert self._run is not None
        fetching = self._fetcher or self._cluster
        room = fetching.room if fetching is not None else 0
        queries = self._run.query_statuses(shards=request.query_shards)
        return RunStatus(self._clock.time(), await self._run.status(), room, time.process_time(), queries)

    def _end_remote(self) -> None:
        if self._remote is not None:
            self._remote.stop()

    @property
    def _plan(self) -> FetcherPlan:
        return FetcherPlan(self._manifest, self._options, self.address, self.secret)

    def _fetch_here(self) -> bool:
        """Fill one more place than the run has, in this process; False if the others have to come."""
        if self._remote is None or not self._remote.optional:
            return False
        place = self._options.fetchers or 0
        self._own = asyncio.create_task(fetch(self._plan, place, self._listening, self._limits))
        self._own.add_done_callback(self._note_own)
        return True

    def _note_own(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self._run is not None:
            known = (
                error
                if isinstance(error, KinesisEfoError)
                else FetcherError(f"the fetcher beside the planner: {error!r}")
            )
            self._run.failure.set(known)

    async def _end_own(self) -> None:
        """End the fetcher of this process, which the planner has told so."""
        if self._own is not None:
            self._own.cancel()
            await asyncio.gather(self._own, return_exceptions=True)

    def _excuse(self) -> str:
        return self._remote.problem() if self._remote is not None else ""

    @property
    def _lease_keys(self) -> LeaseKeys:
        return LeaseKeys(self._manifest.stream_names)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return finished(asyncio.run_coroutine_threadsafe(work, self._loop), self._thread.is_alive)
