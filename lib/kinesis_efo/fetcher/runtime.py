"""Runs a fetcher in a thread of its own, with its clients, leases and Flight service, and ends them in order.

This is the one place where these parts are put together.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Final, TypeVar

from aiobotocore.config import AioConfig

from kinesis_efo.aws import AsyncClients
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.local import LocalFetcher
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.start import start_offset
from kinesis_efo.kinesis.polling import POLLING_CONFIG, PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import SUBSCRIPTION_CONFIG, BotoTransport, Transport, reading_little
from kinesis_efo.leases.checkpoints import Pace
from kinesis_efo.leases.keeper import Timing
from kinesis_efo.leases.owner import owner_id
from kinesis_efo.leases.row import LeaseKeys
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.table import LeaseTable, client_config
from kinesis_efo.manifest import Manifest
from kinesis_efo.metrics import report
from kinesis_efo.options import SourceOptions, Start
from kinesis_efo.positions import Offset

logger = logging.getLogger(__name__)
T = TypeVar("T")

_STOP_SECONDS: Final = 10.0
_MOST_SUBSCRIPTIONS: Final = 20_000
_LEASE_REQUESTS: Final = 32


class FetcherRuntime:
    """Runs one fetcher beside the calling thread.

    Args:
        manifest: The application, with the streams to read.
        options: The options of the query.
        host: Address to bind to.
        clock: Time.
        limits: Kinesis' times; tests shorten them.
    """

    def __init__(
        self,
        manifest: Manifest,
        options: SourceOptions,
        host: str,
        *,
        clock: Clock | None = None,
        limits: Limits = KINESIS_LIMITS,
    ) -> None:
        self.secret: Final = secrets.token_urlsafe(32)
        self.location = ""
        self._manifest = manifest
        self._options = options
        self._host = host
        self._clock = clock or SystemClock()
        self._budget = Budget(options.buffer_bytes, now=self._clock.monotonic)
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kinesis-efo fetcher", daemon=True)
        self._stack = AsyncExitStack()
        self._stopping = threading.Lock()
        self._fetcher: Fetcher | None = None
        self._streams: dict[str, Stream] = {}
        self._service: FetcherService | None = None
        self._table: LeaseTable | None = None
        self._end_report: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start fetching on demand.

        Raises:
            KinesisEfoError: The lease table, a stream or the credentials cannot be used.
        """
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.stop()
            raise

    def initial_offset(self, start: Start) -> Offset:
        """The position of each shard from which a new query begins.

        Raises:
            KinesisEfoError: The streams cannot be listed, or there are no leases to start from.
        """
        assert self._table is not None
        return self._run(start_offset(start, self._streams, self._table, self._lease_keys, self._clock))

    @property
    def fetcher(self) -> LocalFetcher:
        """The fetcher, for the thread that plans. Only after `start`."""
        assert self._fetcher is not None
        return LocalFetcher(self._fetcher, self._loop, self._thread.is_alive)

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment."""
        return self._fetcher is not None and self._fetcher.reading

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
        # Only after the leases were released: a successor waits for them.
        self._end_report()
        if self._service is not None:
            # `shutdown` waits for the calls under way. They ended with the fetcher, but a stuck one must not block us.
            closing = threading.Thread(target=self._service.shutdown, daemon=True)
            closing.start()
            closing.join(2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)
        if not self._thread.is_alive():
            self._loop.close()

    async def _open(self) -> None:
        options, manifest = self._options, self._manifest
        clients = AsyncClients(options.aws, manifest.region)
        enter = self._stack.enter_async_context
        control = await enter(await clients.open("kinesis"))
        transport = await self._open_transport(clients)
        limits = polling_limits(self._limits) if options.read_mode == "polling" else self._limits
        dynamo = await enter(await clients.open("dynamodb", client_config(options.lease_timeout, _LEASE_REQUESTS)))
        self._streams = {
            name: Stream(
                ref,
                transport,
                Topology(control),
                options.retry,
                manifest.source,
                self._clock,
                limits,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            for name, ref in manifest.streams.items()
        }
        self._table = LeaseTable(
            dynamo,
            manifest.lease_table,
            declared_by=f"the stack of application {manifest.application!r} (see manifest {manifest.source})",
        )
        random = Random()
        leases = RunLease(
            self._table,
            owner_id(random),
            self._lease_keys,
            Timing(options.lease_timeout),
            self._clock,
            random,
            application=manifest.application,
        )
        settings = FetcherSettings(options.fail_on_data_loss, options.lease_timeout, Pace(options.checkpoint_rate))
        fetcher = Fetcher(self._streams, leases, self._table, self._lease_keys, self._budget, settings, self._clock)
        self._fetcher = fetcher
        self._service = FetcherService(fetcher, self._loop, self.secret, self._host)
        self.location = self._service.location
        self._stack.push_async_callback(fetcher.stop)
        await fetcher.start(self.location)
        about = {"application": manifest.application, "environment": manifest.environment}
        collector = FetcherCollector(
            fetcher, self._streams, leases, about, options.metrics.shards, self._clock.monotonic
        )
        self._end_report = report(collector, options.metrics)
        logger.info("fetcher of application %s serves %s", manifest.application, ", ".join(self._streams))

    async def _open_transport(self, clients: AsyncClients) -> Transport:
        polling = self._options.read_mode == "polling"
        config = AioConfig(
            **(POLLING_CONFIG if polling else {**SUBSCRIPTION_CONFIG, **reading_little(lambda: self._budget.share)}),
            max_pool_connections=_MOST_SUBSCRIPTIONS,
        )
        client = await self._stack.enter_async_context(await clients.open("kinesis", config))
        if polling:
            return PollingTransport(client, self._clock, self._options.polling_interval)
        return BotoTransport(client)

    @property
    def _lease_keys(self) -> LeaseKeys:
        return LeaseKeys(self._manifest.stream_names)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
