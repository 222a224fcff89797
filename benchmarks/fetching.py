"""A fetcher's path from loopback HTTP to its buffer, in CPU time of its process; the servers run in others.

Compared, in the same run, with plain aiobotocore, and with aiohttp that only reads the same bytes, which is the upper bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

import aiohttp
from aiobotocore.config import AioConfig

from benchmarks.canned import RECORDS_PER_EVENT, canned_kinesis, last_number
from benchmarks.certificate import trusted_certificate
from benchmarks.earlier import begin as begin_feed
from benchmarks.earlier import drop, row_of
from benchmarks.figures import Figure, Goal
from kinesis_efo.aws import AsyncClients
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.feed import FetchCounts, ShardFeed
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, subscription_config
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import AwsSettings, RetrySettings, SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.events import ChildShard

RUNS: Final = 5
SHARDS: Final = 4
EVENTS: Final = {1024: 256, 100: 256}
STOCK_EVENTS: Final = {1024: 8, 100: 16}
"""Events per shard, by record size; fewer for aiobotocore, which is ten times slower."""
CARRIED: Final = (("http1", False), ("http2", False), ("http1", True), ("http2", True))
"""The transport, and whether there is TLS."""
NAMES: Final = {"http1": "HTTP/1.1", "http2": "HTTP/2"}
GOALS: Final = {1024: 700.0, 100: 300.0}
"""MB/s per core over HTTP/1.1 in the clear, by record size."""

Watched = Callable[[list[ShardFeed], Budget, Stream], Callable[[], None]]
"""Begins to watch a fetcher's parts, and returns a function that ends it."""

REGION: Final = "us-east-1"
REF: Final = StreamRef(
    "orders",
    "orders",
    "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
    "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/lake:1700000000",
)


def run() -> list[Figure]:
    """Measure. MB count the records' data."""
    with trusted_certificate():
        return [figure for size in EVENTS for figure in _measured(size)]


def _measured(size: int) -> list[Figure]:
    case = f"{size} B records, {SHARDS} shards"
    plain, alone = [], []
    ours: dict[tuple[str, bool], list[float]] = {carried: [] for carried in CARRIED}
    with contextlib.ExitStack() as stack:
        servers = {
            (transport, tls): stack.enter_context(
                canned_kinesis(size, EVENTS[size], SHARDS, http2=transport == "http2", tls=tls)
            )
            for transport, tls in CARRIED
        }

        def fetched(transport: str, *, tls: bool) -> float:
            reading = fetch(servers[transport, tls].endpoint, last_number(EVENTS[size]), transport=transport)
            return _rate(size, EVENTS[size], reading)

        in_the_clear = servers["http1", False]
        # The first runs also pay for the growth of the process's memory.
        for _ in range(2):
            fetched("http1", tls=False)
        for _ in range(RUNS):
            plain.append(_rate(size, STOCK_EVENTS[size], stock(in_the_clear.endpoint, STOCK_EVENTS[size])))
            alone.append(_rate(size, EVENTS[size], _bytes_only(in_the_clear.endpoint, in_the_clear.frame_bytes)))
            for transport, tls in CARRIED:
                ours[transport, tls].append(fetched(transport, tls=tls))
    baseline = Figure(case, "aiobotocore's own events", "MB/s per core", tuple(plain))
    figures = [baseline, Figure.against(baseline, case, "aiohttp, bytes only", alone)]
    for (transport, tls), rates in ours.items():
        goal = Goal(GOALS[size]) if (transport, tls) == ("http1", False) else None
        what = f"fetcher, to its buffer: {NAMES[transport]}{', TLS' if tls else ''}"
        figures.append(Figure.against(baseline, case, what, rates, goal))
    return figures


def _rate(size: int, events: int, work: Coroutine[None, None, float]) -> float:
    return size * RECORDS_PER_EVENT * events * SHARDS / 1e6 / asyncio.run(work)


def _shard_ids() -> list[str]:
    return [f"shardId-{number:012d}" for number in range(SHARDS)]


async def stock(endpoint: str, events: int) -> float:
    """CPU seconds that aiobotocore takes to parse so many events of each shard."""

    async def read(client: Any, shard: str) -> None:
        response = await client.subscribe_to_shard(
            ConsumerARN=REF.consumer_arn, ShardId=shard, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        left = events
        async for event in response["EventStream"]:
            left -= bool(event["SubscribeToShardEvent"]["Records"])
            if not left:
                break
        response["EventStream"].close()

    async with await AsyncClients(AwsSettings(endpoint_url=endpoint), REGION).open("kinesis") as client:
        begin = time.process_time()
        await asyncio.gather(*(read(client, shard) for shard in _shard_ids()))
        return time.process_time() - begin


async def _bytes_only(endpoint: str, size: int) -> float:
    """CPU seconds that aiohttp takes to read a number of bytes of each shard."""

    async def read(session: aiohttp.ClientSession, shard: str) -> None:
        headers = {"X-Amz-Target": "Kinesis_20131202.SubscribeToShard"}
        request = {"ShardId": shard, "StartingPosition": {"Type": "TRIM_HORIZON"}}
        async with session.post(endpoint, json=request, headers=headers) as response:
            left = size
            while left > 0:
                left -= len(await response.content.readany())
            response.close()

    async with aiohttp.ClientSession() as session:
        begin = time.process_time()
        await asyncio.gather(*(read(session, shard) for shard in _shard_ids()))
        return time.process_time() - begin


async def fetch(
    endpoint: str, last: int, watched: Watched = lambda _feeds, _budget, _streams: lambda: None, transport: str = "auto"
) -> float:
    """CPU seconds that the fetcher takes to read every shard to its end, with commits as fast as records arrive.

    Args:
        endpoint: Endpoint of Kinesis.
        last: Sequence number of the last record in every shard.
        watched: Begins to watch the fetcher's parts before they start, and returns a function that ends it.
        transport: The option.
    """
    config = AioConfig(**subscription_config(transport), max_pool_connections=2 * SHARDS)
    async with await AsyncClients(AwsSettings(endpoint_url=endpoint), REGION).open("kinesis", config) as client:
        clock = SystemClock()
        stream = Stream(REF, BotoTransport(client), Topology(client), RetrySettings(), "the benchmark", clock)
        await stream.refresh()
        begin = time.process_time()
        reader = _Reader(last)
        end_watching = watched(reader.feeds, reader.budget, stream)
        for shard in _shard_ids():
            key = ShardKey("orders", shard)
            subscribe = partial(stream.subscribe, shard)
            feed = ShardFeed(
                row_of(key),
                subscribe,
                reader.budget,
                reader,
                reader.ended,
                reader.failed,
                FetchCounts(),
                clock,
                fail_on_data_loss=True,
            )
            begin_feed(feed, TRIM_HORIZON)
            reader.feeds.append(feed)
        await reader.done.wait()
        end_watching()
        taken = time.process_time() - begin
        await asyncio.gather(*filter(None, [feed.close() for feed in reader.feeds]), return_exceptions=True)
        return taken


class _Reader:
    """Stands in for Spark: commits everything in the buffers whenever half of the budget is used."""

    def __init__(self, last: int) -> None:
        self._last = Position.after(last)
        self.budget = Budget(SourceOptions().buffer_bytes)
        self.feeds: list[ShardFeed] = []
        self.done = asyncio.Event()

    def touch(self, rows: Iterable[Any]) -> None:
        pass

    def wake(self) -> None:
        buffers = [feed.buffer for feed in self.feeds if feed.buffer is not None]
        ends = [buffer.end for buffer in buffers]
        if len(ends) == SHARDS and all(end.reaches(self._last) for end in ends):
            self.done.set()
        if self.budget.used > self.budget.limit // 2:
            for buffer in buffers:
                drop(buffer, buffer.end)

    def ended(self, children: Sequence[ChildShard]) -> None:
        raise AssertionError(f"no shard ends, but here are {children}")

    def failed(self, error: KinesisEfoError) -> None:
        raise error
