"""Runs a fetcher in a Spark task, outside the run's process, until the run has ended."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

from kinesis_efo.aws import AsyncClients
from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.clock import SystemClock
from kinesis_efo.cluster.remote_fetcher import FetcherIdentity, RemoteFetcher
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.fetcher.assembly import certificate_for, stream_opener
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings, FetcherSource
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import PlannerClient, Report, ReportReply, Work, WorkRequest
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.manifest import Manifest
from kinesis_efo.metrics import report
from kinesis_efo.options import SourceOptions

logger = logging.getLogger(__name__)
T = TypeVar("T")

_TASK_PATIENCE: Final = 2.0
"""After this many seconds, a fetcher rejects a task's request for a shard that it may not read. The task then calls the current fetcher."""


@dataclass(frozen=True)
class FetcherPlan:
    """The settings for the fetchers of a run: the run's application and options, and the address and secret of its service."""

    manifest: Manifest
    options: SourceOptions
    planner: FetcherAddress
    secret: str

    def __repr__(self) -> str:
        return f"FetcherPlan({self.manifest.application!r}, {self.planner})"


async def fetch(plan: FetcherPlan, place: int, listening: Listening, limits: Limits = KINESIS_LIMITS) -> None:
    """Run the fetcher with the number `place` until the run has ended. Tests shorten Kinesis' time limits with `limits`."""
    clock = KinesisClock(SystemClock())
    options = plan.options
    budget = Budget(options.buffer_bytes, now=clock.monotonic)
    async with AsyncExitStack() as stack:
        clients = AsyncClients(options.aws.of(plan.manifest.application), plan.manifest.region)
        open_stream = await stream_opener(stack, clients, plan.manifest.source, options, budget, clock, limits)
        streams = Streams({}, may_grow=True)
        settings = FetcherSettings(
            options.fail_on_data_loss, _TASK_PATIENCE, options.arrival_step, options.retry.timeout
        )
        fetcher = Fetcher(streams, budget, settings, clock)
        certificate = certificate_for(listening, clock)
        service = FetcherService(
            partial(FetcherSource, fetcher, clock), asyncio.get_running_loop(), plan.secret, listening, certificate
        )
        stack.push_async_callback(asyncio.to_thread, service.shutdown)
        identity = FetcherIdentity(place, socket.gethostname(), service.address)
        about = {
            "application": plan.manifest.application,
            "environment": plan.manifest.environment,
            "fetcher": str(place),
        }
        collector = FetcherCollector(fetcher, streams.streams, None, about, options.metrics.shards, clock.monotonic)
        stack.push_async_callback(asyncio.to_thread, report(collector, options.metrics))
        planner = PlannerLink(plan.planner, plan.secret)
        stack.callback(planner.close)
        logger.info("fetcher %d of application %s serves at %s", place, plan.manifest.application, service.address)
        give_up = 6 * options.lease_timeout
        await RemoteFetcher(
            identity, fetcher, streams, planner, clock, lambda: uuid4().hex, give_up, open_stream, options.ends
        ).run()


class PlannerLink:
    """Calls the run from an event loop. `work` and `report` have separate threads and connections, so neither delays the other."""

    def __init__(self, address: FetcherAddress, secret: str) -> None:
        self._clients = PlannerClient(address, secret), PlannerClient(address, secret)
        self._threads = [ThreadPoolExecutor(1, "kinesis-efo planner") for _ in self._clients]

    async def work(self, request: WorkRequest) -> Work:
        return await self._call(0, partial(PlannerClient.work, request=request))

    async def report(self, report: Report) -> ReportReply:
        return await self._call(1, partial(PlannerClient.report, report=report))

    async def _call(self, number: int, call: Callable[[PlannerClient], T]) -> T:
        client = self._clients[number]
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads[number], call, client)
        except FetcherRefusedError as error:
            # Another run now uses this port, and has refused the secret: the fetcher's run is unreachable.
            raise FetcherUnreachableError(str(error)) from error
        except FetcherUnreachableError:
            client.close()
            raise

    def close(self) -> None:
        for client, thread in zip(self._clients, self._threads, strict=True):
            thread.shutdown(wait=False, cancel_futures=True)
            client.close()
