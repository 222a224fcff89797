"""HTTP/2 against HTTP/1.1: the CPU time and the memory of a process that reads, with TLS and in the clear.

The reading processes run in turns, and each is measured once all of its subscriptions are open. Servers have processes
of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from aiobotocore.config import AioConfig

from benchmarks.canned import RECORDS_PER_EVENT, canned_kinesis, last_number
from benchmarks.certificate import trusted_certificate
from benchmarks.earlier import begin, drop, row_of
from benchmarks.fetching import CARRIED, NAMES, REF, REGION
from benchmarks.figures import Figure, Goal
from benchmarks.machine import anonymous_memory, process_of
from kinesis_efo.aws import AsyncClients
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.feed import FetchCounts, ShardFeed
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, subscription_config
from kinesis_efo.options import AwsSettings, RetrySettings, SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.events import ChildShard

EVENTS: Final = {1: 400, 16: 40, 300: 6}
"""Events per shard, by the number of shards."""
RECORD_BYTES: Final = 1024
RUNS: Final = 5
CPU: Final = Goal(1.15, least=False, of_ratio=True)
MEMORY: Final = Goal(0.7, least=False, of_ratio=True)


class Taken(NamedTuple):
    """What one reading took.

    Attributes:
        cpu: CPU seconds per MB of records.
        memory: The most memory, bytes.
    """

    cpu: float
    memory: int


def run() -> list[Figure]:
    """Measure. MB of memory are 2^20 bytes; other MB count the records' data."""
    figures = []
    for shards, events in EVENTS.items():
        taken, idle = _measured(shards, events)
        for tls in (False, True):
            case = f"{shards} shards, {RECORD_BYTES} B records, {'TLS' if tls else 'in the clear'}"
            pair = [taken[transport, tls] for transport in NAMES]
            figures += _compared(case, "CPU", "ms/MB", [[one.cpu * 1e3 for one in runs] for runs in pair], CPU)
            if shards == max(EVENTS):
                read = [[one.memory / 2**20 for one in runs] for runs in pair]
                figures += _compared(case, "memory, as fast as it comes", "MB", read, MEMORY)
                waited = [[memory / 2**20 for memory in idle[transport, tls]] for transport in NAMES]
                figures += _compared(case, "memory, signs of life only", "MB", waited, MEMORY)
    return figures


def _compared(case: str, what: str, unit: str, pair: list[list[float]], goal: Goal) -> list[Figure]:
    first, second = NAMES.values()
    baseline = Figure(case, f"{what}, {first}", unit, tuple(pair[0]))
    return [baseline, Figure.against(baseline, case, f"{' ' * len(what)}  {second}", pair[1], goal)]


def _measured(
    shards: int, events: int
) -> tuple[dict[tuple[str, bool], list[Taken]], dict[tuple[str, bool], list[int]]]:
    """What reading takes, and the memory where there is nothing to read."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(trusted_certificate())
        endpoints = {
            (transport, tls): stack.enter_context(
                canned_kinesis(RECORD_BYTES, events, shards, http2=transport == "http2", tls=tls)
            ).endpoint
            for transport, tls in CARRIED
        }
        taken: dict[tuple[str, bool], list[Taken]] = {variant: [] for variant in CARRIED}
        idle: dict[tuple[str, bool], list[int]] = {variant: [] for variant in CARRIED}
        for _ in range(RUNS):
            for variant in CARRIED:
                with process_of(_read, endpoints[variant], variant[0], shards, events) as process:
                    taken[variant].append(process.recv())
                if shards == max(EVENTS):
                    with process_of(_idle, endpoints[variant], variant[0], shards, events) as process:
                        idle[variant].append(process.recv())
        return taken, idle


def _read(result: Connection, endpoint: str, transport: str, shards: int, events: int) -> None:
    result.send(asyncio.run(_reading(endpoint, transport, shards, events)))


def _idle(result: Connection, endpoint: str, transport: str, shards: int, events: int) -> None:
    result.send(asyncio.run(_idling(endpoint, transport, shards, events)))


async def _reading(endpoint: str, transport: str, shards: int, events: int) -> Taken:
    async with _feeds(endpoint, transport, shards, TRIM_HORIZON) as reader:
        watching = asyncio.create_task(_most_memory())
        await _until(reader, lambda: len(reader.heard) == shards)
        began, before = time.process_time(), reader.events
        await _until(reader, lambda: reader.events >= shards * events)
        cpu = time.process_time() - began
        watching.cancel()
        read = (reader.events - before) * RECORDS_PER_EVENT * RECORD_BYTES / 1e6
        return Taken(cpu / read, await watching)


async def _idling(endpoint: str, transport: str, shards: int, events: int) -> int:
    async with _feeds(endpoint, transport, shards, Position.after(last_number(events))) as reader:
        await _until(reader, lambda: len(reader.heard) == shards)
        gc.collect()
        return anonymous_memory(os.getpid())


async def _until(reader: _Reader, reached: Callable[[], bool]) -> None:
    while not reached():
        await reader.news.wait()


@contextlib.asynccontextmanager
async def _feeds(endpoint: str, transport: str, shards: int, start: Position) -> AsyncIterator[_Reader]:
    """Fetch all shards."""
    budget = Budget(SourceOptions().buffer_bytes)
    config = AioConfig(**subscription_config(transport, lambda: budget.share), max_pool_connections=2 * shards)
    async with await AsyncClients(AwsSettings(endpoint_url=endpoint), REGION).open("kinesis", config) as client:
        clock = SystemClock()
        stream = Stream(REF, BotoTransport(client), Topology(client), RetrySettings(), "the benchmark", clock)
        await stream.refresh()
        reader = _Reader()
        for number in range(shards):
            shard = f"shardId-{number:012d}"
            key, subscribe = ShardKey("orders", shard), partial(stream.subscribe, shard)
            feed = reader.feeds[key] = ShardFeed(
                row_of(key),
                subscribe,
                budget,
                reader,
                reader.ended,
                reader.failed,
                FetchCounts(),
                clock,
                fail_on_data_loss=True,
            )
            begin(feed, start)
        yield reader
        await asyncio.gather(*filter(None, [feed.close() for feed in reader.feeds.values()]), return_exceptions=True)


async def _most_memory() -> int:
    most = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            most = max(most, anonymous_memory(os.getpid()))
            await asyncio.sleep(0.05)
    return most


class _Reader:
    """Stands in for Spark, and is always there in time: commits each event when it arrives."""

    def __init__(self) -> None:
        self.feeds: dict[ShardKey, ShardFeed] = {}
        self.heard: set[ShardKey] = set()
        self.events = 0
        self.news = Signal()

    def touch(self, rows: Iterable[Any]) -> None:
        for row in rows:
            key = getattr(row, "shard", row) if isinstance(getattr(row, "shard", None), ShardKey) else row
            buffer = self.feeds[key].buffer
            if buffer is not None and not buffer.idle:  # at the end, it is not there any more
                drop(buffer, buffer.end)
                self.events += 1
            self.heard.add(key)
        self.news.notify()

    def wake(self) -> None:
        pass

    def ended(self, children: Sequence[ChildShard]) -> None:
        raise AssertionError(f"no shard ends, but here are {children}")

    def failed(self, error: KinesisEfoError) -> None:
        raise error
