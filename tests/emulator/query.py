"""A streaming query without Spark: real fetchers on the local Kinesis in memory, in virtual time.

It does what Spark does: plans micro-batches, reads their ranges (some twice, some partly, some slowly), commits, and after a
crash repeats the last batch planned, which must give the same rows again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import Pace, PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, Transport
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings, Start
from kinesis_efo.positions import TRIM_HORIZON, Offset, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query as Planning
from kinesis_efo.run.run import Run
from kinesis_efo.run.start import start_offset
from kinesis_efo_local.errors import AwsError
from tests.emulator.memory import MemoryClient, MemoryKinesis
from tests.emulator.oracle import Oracle, WatchedTransport
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.planned import finish, planned
from tests.support.virtual_time import LoopClock

NO_LIMIT = 1 << 60
LEASE_TIMEOUT = 10.0
PATIENCE = 660.0


class Row(NamedTuple):
    """A row that was read."""

    shard: str
    sequence: int
    sub: int
    key: str
    data: bytes


@dataclass
class Application:
    """The state that outlives a query: Kinesis, the lease table, and Spark's checkpoint.

    Attributes:
        kinesis: Kinesis in memory.
        ref: The stream and its consumer.
        random: Decides what Spark does.
        buffer_bytes: Budget of a fetcher.
        max_bytes: Limit of a micro-batch, bytes.
        max_records: Limit of a micro-batch, records.
        fail_on_data_loss: The option `failOnDataLoss`.
        slowness: The longest time that a task takes for a chunk, seconds.
        hanging: How probable it is that a range has an attempt that hangs, beside the one that reads it.
        polls: Whether the next query reads with GetRecords.
        pace: Makes the pace of queries that catch up; None if they may not.
        clock: The readers' clock, whose wall time may jump.
        start: Where a new query starts.
        table: The lease table.
        rows: The rows read, in the order of micro-batches.
        offsets: Start and end of every micro-batch planned.
        runs: Number of queries started.
        hung: Number of attempts that hung.
        committed: Whether all rows of the last micro-batch are stored.
        repeated: Number of micro-batches that were repeated although that was so.
    """

    kinesis: MemoryKinesis
    ref: StreamRef
    random: Random
    buffer_bytes: int = 4 << 20
    max_bytes: int = NO_LIMIT
    max_records: int = NO_LIMIT
    fail_on_data_loss: bool = True
    slowness: float = 0.0
    hanging: float = 0.0
    clock: LoopClock = field(default_factory=LoopClock)
    polls: bool = False
    pace: Callable[[], Pace] | None = None
    start: Start = field(default_factory=lambda: Start(TRIM_HORIZON))
    table: MemoryLeaseStore = field(default_factory=MemoryLeaseStore)
    rows: list[Row] = field(default_factory=list)
    offsets: list[tuple[Offset, Offset]] = field(default_factory=list)
    runs: int = 0
    hung: int = 0
    committed: bool = False
    repeated: int = 0


TEN = RetrySettings(max_retries=10)
"""Ends a query that only fails within minutes, and before the ten minutes of the defaults are over."""


class WatchedRun(Run):
    """Tells the oracle of which shards it loses the lease."""

    oracle: Oracle

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """See `LeaseListener`."""
        for feed in self.fetcher:
            self.oracle.interrupted(feed.key.shard)
        super().lease_lost(stream, owner)


class Query:
    """One run of the query, from its start to its stop, failure or crash.

    Args:
        application: The state that the run continues.
        retry: The options on retries.
    """

    def __init__(self, application: Application, retry: RetrySettings = TEN) -> None:
        self.application = application
        application.runs += 1
        name = f"host:{application.runs}:w"
        self.client = MemoryClient(application.kinesis)
        clock = KinesisClock(application.clock, warns=False)
        clock.watch(self.client)
        assert retry.max_retries is not None, "the oracle counts"
        self.oracle = Oracle(clock, retry.max_retries, self._consumer_exists, polled=application.polls)
        self.network = Network(application.table, Random(f"{application.random.random()}"))
        ref, limits = application.ref, KINESIS_LIMITS
        inner: Transport = BotoTransport(self.client)
        if application.polls:
            ref, limits = replace(ref, consumer_arn=None), polling_limits(limits)
            inner = PollingTransport(self.client, clock, 1.0)
        transport = WatchedTransport(inner, self.oracle)
        self.streams = {
            "orders": Stream(
                ref, transport, Topology(self.client, clock), retry, "manifest.json", clock,
                limits, fail_on_data_loss=application.fail_on_data_loss,
            )
        }  # fmt: skip
        if application.pace is not None:
            apart = PollingTransport(self.client, clock, 1.0, application.pace)
            self.streams["orders"].allow_separate(apart, polling_limits(KINESIS_LIMITS))
        self.keys = LeaseKeys({"orders": application.ref.stream_name})
        self.leases = RunLease(
            self.network, name, self.keys, Timing(LEASE_TIMEOUT), clock, Random(name), application="lake"
        )
        settings = FetcherSettings(application.fail_on_data_loss, patience=PATIENCE)
        budget = Budget(application.buffer_bytes, now=clock.monotonic)
        streams = Streams(self.streams)
        self.fetcher = Fetcher(streams, budget, settings, clock)
        self.run = WatchedRun(streams, self.fetcher, self.leases, self.network, self.keys, 25.0, PATIENCE, clock)
        self.run.oracle = self.oracle
        self.planner = Planning(self.run)
        self.reader = "query"
        self._clock = clock
        self.most_used = 0

    def _consumer_exists(self) -> bool:
        application = self.application
        try:
            found = application.kinesis.call("DescribeStreamConsumer", ConsumerARN=application.ref.consumer_arn)
        except AwsError:
            return application.polls
        return bool(found["ConsumerDescription"]["ConsumerStatus"] != "DELETING")

    async def __aenter__(self) -> Query:
        try:
            await self.run.start("grpc://here")
        except BaseException:
            await self.run.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run.stop()
        assert all(body.over for body in self.client.bodies), "a connection was left open"

    def crash(self) -> None:
        """Cut the run off from the lease table, so that `stop` cannot release its leases."""
        self.network.cut = True

    async def begin(self) -> Offset:
        """Start or resume the query; returns the offset to go on from.

        Repeats the last batch planned, as Spark does if its commit is not there: it was not written, or somebody deleted it.
        """
        application = self.application
        if not application.offsets:
            offset = await start_offset(application.start, self.streams, self.network, self.keys, self._clock)
            # Spark stores where a query began before anything is read.
            application.offsets.append((offset, offset))
            return offset
        start, end = application.offsets[-1]
        if application.committed and application.random.random() < 0.3:
            return end
        application.repeated += application.committed
        await self.planner.check_replay(start, start.ranges_to(end), end)
        await self.run_batch(start, end, again=True)
        return end

    async def batch(self, offset: Offset) -> Offset:
        """Run one micro-batch; returns the offset at its end, which is the same if there was nothing to read."""
        # The batch before is done when Spark asks for the next one's end.
        finish(self.planner, offset)
        end = await self.poll(offset)
        if end != offset:
            self.application.offsets.append((offset, end))
            self.application.committed = False
            await self.run_batch(offset, end, again=False)
        return end

    async def poll(self, offset: Offset) -> Offset:
        """Plan the next micro-batch; returns its end."""
        application = self.application
        await self.planner.wait_held(1.0)
        reply = await self.planner.poll(offset, application.max_bytes, application.max_records, 1.0)
        return planned(offset, reply)

    async def run_batch(self, start: Offset, end: Offset, *, again: bool) -> None:
        """Read a batch's ranges as tasks do, and store its rows."""
        application = self.application
        random = application.random
        ranges = start.ranges_to(end)
        random.shuffle(ranges)
        for wanted in ranges:
            if random.random() < 0.05:
                await self.read(wanted, stop_after=random.randrange(3))
        # A range that is repeated may be larger than what is buffered: then an attempt that hangs is in the others' way.
        probably = application.hanging and (0.7 if again else application.hanging)
        frozen = [wanted for wanted in ranges if random.random() < probably]
        hung = [asyncio.ensure_future(self._hang(wanted, random.randrange(1, 4))) for wanted in frozen]
        try:
            results = await asyncio.gather(*map(self.read, ranges))
        finally:
            for each in hung:
                each.cancel()
            await asyncio.gather(*hung, return_exceptions=True)
        if random.random() < 0.1:
            assert results == await asyncio.gather(*map(self.read, ranges)), "a second action read other rows"
        rows = [row for result in results for row in result]
        if again:
            read = {row for row in self.application.rows if self._in(row, ranges)}
            assert not read or read == set(rows), "the batch read again has other rows"
            rows = [] if read else rows
        application.rows += rows
        application.committed = True

    async def read(self, wanted: ShardRange, stop_after: int | None = None) -> list[Row]:
        """Read the rows of one range; with `stop_after`, break off after that many payloads and return none."""
        application = self.application
        payloads: list[bytes] = []
        reader = self.run.serving.of(self.reader).read(wanted)
        try:
            async for chunk in reader:
                payloads += chunk
                self.most_used = max(self.most_used, self.fetcher.budget.used)
                if application.slowness:
                    await asyncio.sleep(application.slowness * application.random.random())
                if stop_after is not None and len(payloads) > stop_after:
                    return []
        finally:
            await reader.aclose()  # type: ignore[attr-defined]
        hash_range = (await self.streams["orders"].hash_ranges([wanted.key.shard])).get(wanted.key.shard)
        return [
            Row(
                wanted.key.shard, int(row["sequenceNumber"]), row["subSequenceNumber"], row["partitionKey"], row["data"]
            )
            for batch in decode(payloads, *wanted[:3], deaggregate=True, hash_range=hash_range)
            for row in batch.select(["sequenceNumber", "subSequenceNumber", "partitionKey", "data"]).to_pylist()
        ]

    async def _hang(self, wanted: ShardRange, chunks: int) -> None:
        """Read a range as an attempt does whose host freezes: it takes some chunks, and no more as long as the other one reads."""
        self.application.hung += 1
        reader = self.run.serving.of(self.reader).read(wanted)
        try:
            for _ in range(chunks):
                await anext(reader, None)
            await asyncio.get_running_loop().create_future()
        finally:
            await reader.aclose()  # type: ignore[attr-defined]

    @property
    def failure(self) -> KinesisEfoError | None:
        """The error that ended the query, or None."""
        return self.run.failure.error

    @staticmethod
    def _in(row: Row, ranges: list[ShardRange]) -> bool:
        for wanted in ranges:
            if wanted.key.shard == row.shard and row.sequence > wanted.after.value:
                return wanted.through.is_end or row.sequence <= wanted.through.value
        return False
