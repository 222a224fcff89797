"""The memory of a fetcher whose reader stands still, with events of 1 MB waiting in every shard.

The fetcher's parts run in a process of their own; measured is its anonymous memory, which is what runs out: the pages of
libraries are the system's to drop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from typing import Any, Final

from aiobotocore.config import AioConfig

from benchmarks.canned import canned_kinesis
from benchmarks.certificate import trusted_certificate
from benchmarks.earlier import begin, row_of
from benchmarks.fetching import CARRIED, NAMES, REF, REGION
from benchmarks.figures import Figure, Goal
from benchmarks.machine import anonymous_memory, process_of
from kinesis_efo.aws import AsyncClients
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.feed import FetchCounts, ShardFeed
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, subscription_config
from kinesis_efo.options import AwsSettings, RetrySettings, SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, ShardKey
from kinesis_efo.records.events import ChildShard

SHARDS: Final = (1, 100, 1000)
RECORD_BYTES: Final = 2000
"""An event has 500 records, hence 1 MB of data."""
EVENTS: Final = {1: 400, 100: 8, 1000: 4}
"""Events per shard, by the number of shards: more than fits, in all."""
SECONDS: Final = 15.0
ALLOWED_MB: Final = 150


def run() -> list[Figure]:
    """Measure. MB are 2^20 bytes."""
    limit = SourceOptions().buffer_bytes >> 20
    figures = []
    with trusted_certificate():
        for shards, (transport, tls) in product(SHARDS, CARRIED):
            with (
                canned_kinesis(RECORD_BYTES, EVENTS[shards], shards, http2=transport == "http2", tls=tls) as kinesis,
                process_of(_fetch, kinesis.endpoint, transport, shards) as process,
            ):
                most, used = process.recv()
            case = f"{shards} shards, bufferBytes {limit}m, nobody reads"
            how = f"{NAMES[transport]}{', TLS' if tls else ''}"
            goal = Goal(limit + ALLOWED_MB, least=False)
            figures.append(Figure(case, f"anonymous memory, {how}", "MB", (most / 2**20,), goal=goal))
            figures.append(Figure(case, "of it, accounted", "MB", (used / 2**20,)))
    return figures


def _fetch(result: Connection, endpoint: str, transport: str, shards: int) -> None:
    result.send(asyncio.run(_stalled(endpoint, transport, shards)))


async def _stalled(endpoint: str, transport: str, shards: int) -> tuple[int, int]:
    """The most memory while nobody reads, and what the budget says of it, bytes."""
    budget = Budget(SourceOptions().buffer_bytes)
    config = AioConfig(**subscription_config(transport, lambda: budget.share), max_pool_connections=2 * shards)
    async with await AsyncClients(AwsSettings(endpoint_url=endpoint), REGION).open("kinesis", config) as client:
        clock = SystemClock()
        stream = Stream(REF, BotoTransport(client), Topology(client), RetrySettings(), "the benchmark", clock)
        await stream.refresh()
        listener, feeds = _Nobody(), []
        for number in range(shards):
            shard = f"shardId-{number:012d}"
            feed = ShardFeed(
                row_of(ShardKey("orders", shard)), partial(stream.subscribe, shard), budget, listener, listener.ended,
                listener.failed, FetchCounts(), clock, fail_on_data_loss=True,
            )  # fmt: skip
            begin(feed, TRIM_HORIZON)
            feeds.append(feed)
        most = used = 0
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
            most, used = max(most, anonymous_memory(os.getpid())), max(used, budget.used)
        await asyncio.gather(*filter(None, [feed.close() for feed in feeds]), return_exceptions=True)
        return most, used


class _Nobody:
    """Hears of everything, and reads nothing."""

    def touch(self, rows: Iterable[Any]) -> None:
        pass

    def wake(self) -> None:
        pass

    def ended(self, children: Sequence[ChildShard]) -> None:
        raise AssertionError(f"no shard ends, but here are {children}")

    def failed(self, error: KinesisEfoError) -> None:
        raise error
