"""Kinesis simulated in the process of its reader, for more shards than a machine can serve; everything that reads it is real.

As Kinesis does, a shard sends an event without records every 5 s, and a subscription ends after five minutes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.earlier import run_of
from benchmarks.fetching import REF, REGION
from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import Quota
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import RetrySettings, SourceOptions
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.records.events import Event, read_head
from kinesis_efo.run.access import Call
from kinesis_efo.run.query import Query
from kinesis_efo.run.query_planner import QueryPlanner
from kinesis_efo.run.run import Run
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from tests.support.lease_store import MemoryLeaseStore

if TYPE_CHECKING:
    from kinesis_efo.kinesis.topology import StreamSummary

IDLE_SECONDS: Final = 5.0
SUBSCRIPTION_SECONDS: Final = 300.0
BUSY_EVENTS: Final = 1000.0
"""Events with records a second, all shards together."""
SHARD_EVENTS: Final = 10.0
"""The same, of one shard at most: Kinesis sends some ten a second."""
RECORDS: Final = 2

_FIRST: Final = 495903382714902566085596925383615710959210000000000000000
_RECORD: Final = '{"Data":"' + "A" * 136 + '","PartitionKey":"key-123456","SequenceNumber":"%d"}'


class SimulatedKinesis(Topology):
    """One stream; implements `Transport` and `Topology`.

    Args:
        shards: The number of its shards.
        clock: Time.
        random: Spreads the events, and the ends of the first subscriptions.

    Attributes:
        events: Events with records a second, all shards together.
    """

    def __init__(self, shards: int, clock: Clock, random: Random) -> None:
        self.events = 0.0
        self.clock = clock
        self.random = random
        self.number = shards
        self.ids = [f"shardId-{number:012d}" for number in range(shards)]
        self._renewed: set[str] = set()
        self._numbers = count(_FIRST + int(clock.time() * 1e6))

    @property
    def horizon(self) -> Offset:
        """Where a query starts that reads everything."""
        return Offset({ShardKey("orders", shard): TRIM_HORIZON for shard in self.ids})

    async def shards(self, stream_arn: str) -> list[Shard]:
        """See `Topology`."""
        width = 2**128 // self.number
        return [
            Shard(shard, (), (number * width, (number + 1) * width - 1), _FIRST, None)
            for number, shard in enumerate(self.ids)
        ]

    async def consumer_exists(self, consumer_arn: str) -> bool:
        return True

    async def summary(self, stream_arn: str) -> StreamSummary:
        """See `Topology`."""
        from kinesis_efo.kinesis.topology import StreamSummary  # earlier versions call the two below instead

        return StreamSummary(await self.created(stream_arn), await self.retention(stream_arn))

    async def created(self, stream_arn: str) -> int:
        return 1_700_000_000

    async def distribution(self, stream_arn: str) -> Distribution:
        """See `Topology`."""
        return Distribution.KEYED

    async def shards_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        """See `Topology`."""
        return await self.shards(stream_arn)

    async def retention(self, stream_arn: str) -> float:
        return 24 * 3600.0

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota) -> _Events:
        """See `Transport`."""
        # The subscriptions of a query that has read for a while do not all end at once.
        first = shard_id not in self._renewed
        self._renewed.add(shard_id)
        least = 2 * IDLE_SECONDS
        seconds = self.random.uniform(least, SUBSCRIPTION_SECONDS) if first else SUBSCRIPTION_SECONDS
        return _Events(self, self.clock.monotonic() + seconds)

    def event(self, records: int) -> Event:
        """The next event of any shard."""
        numbers = [next(self._numbers) for _ in range(records)] or [next(self._numbers)]
        payload = (
            f'{{"ContinuationSequenceNumber":"{numbers[-1]}","MillisBehindLatest":0,"Records":['
            f"{','.join(_RECORD % number for number in numbers[:records])}]}}"
        ).encode()
        return Event(payload, read_head(payload))


class _Events:
    """The events of one subscription; implements `EventStream`."""

    received = 0

    def __init__(self, kinesis: SimulatedKinesis, until: float) -> None:
        self._kinesis = kinesis
        self._until = until

    def close(self) -> None:
        """See `EventStream`. Whoever waits is cancelled by its own task."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        kinesis = self._kinesis
        rate = min(SHARD_EVENTS, kinesis.events / kinesis.number)
        until_records = kinesis.random.expovariate(rate) if rate else inf
        # Thousands of subscriptions are not opened in one moment, as they are here.
        until_idle = IDLE_SECONDS if self.received else kinesis.random.uniform(0, IDLE_SECONDS)
        until_end = self._until - kinesis.clock.monotonic()
        await kinesis.clock.sleep(max(0.0, min(until_records, until_idle, until_end)))
        if until_end <= min(until_records, until_idle):
            raise StopAsyncIteration
        self.received += 1
        return kinesis.event(RECORDS if until_records <= until_idle else 0)


def streams_of(kinesis: SimulatedKinesis) -> Streams:
    """The streams of a query that reads the simulated one; every fetcher has its own."""
    return Streams({"orders": Stream(REF, kinesis, kinesis, RetrySettings(), "the benchmark", kinesis.clock)})


def fetcher_of(kinesis: SimulatedKinesis, streams: Streams) -> Fetcher:
    """A fetcher with the default options."""
    budget = Budget(SourceOptions().buffer_bytes, now=kinesis.clock.monotonic)
    return Fetcher(streams, budget, FetcherSettings(fail_on_data_loss=True, patience=60.0), kinesis.clock)


def lease_of(clock: Clock, seconds: float = SourceOptions().lease_timeout) -> RunLease:
    """The lease of a run, in memory."""
    return RunLease(MemoryLeaseStore(), "run", LeaseKeys({"orders": "orders"}), Timing(seconds), clock, Random(1))


def query_of(
    streams: Streams, fetcher: Fetcher, lease: RunLease, clock: Clock, gone: Any = None
) -> tuple[Run, Query, Any]:
    """A run whose lease table is in memory, its query, and what fetchers elsewhere call; see `run_of`."""
    run, cluster = run_of(streams, fetcher, lease, LeaseKeys({"orders": "orders"}), clock, gone)
    return run, Query(run), cluster


class RunOfQuery:
    """What a query planner needs of a run whose fetcher is here; see `QueryPlanner`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.reading = False
        # No position gets old enough for a low watermark, which would wait for the stream's retention.
        self.limits = replace(KINESIS_LIMITS, shortest_retention=1e12)

    async def placed(self, ranges: Sequence[ShardRange], _at_most: float, _query: str) -> list[FetcherAddress]:
        """See `QueryPlanner`."""
        return [FetcherAddress("here", 1)] * len(ranges)


def planner_of(query: Query, clock: Clock) -> QueryPlanner:
    """Plans for the query of a simulated run."""
    run: Any = RunOfQuery(clock)
    return QueryPlanner(run, query, "", SourceOptions(), ["orders"])


def reader_of(ask: Callable[[Call[Any]], Any]) -> KinesisStreamReader:
    """A stream reader of a query whose run is there already.

    Args:
        ask: Makes a call to the query; see `SharedRun`.
    """
    manifest = Manifest("lake", "dev", REGION, "lake", {"orders": REF}, "the benchmark", {"orders": "orders"})
    reader = KinesisStreamReader(SourceOptions(), manifest)
    runtime: Any = SimpleNamespace(ask=ask, query_name="", secret="", planner_address=None)
    runtime.record_logged = runtime.planned = lambda _mark: None  # the latter for earlier versions
    reader._planner._run._shared = runtime
    return reader
