"""Several queries on one run in virtual time: each reads every record once and in order, whatever the others do, and nobody stands still."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.cluster.cluster import Apart, Cluster
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import NotBufferedError
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import WhereRequest
from kinesis_efo.kinesis.polling import PollingTransport, apart_pace, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import Bounds, RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, PositionKind, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query
from kinesis_efo.run.run import Run
from kinesis_efo.sharing.local_fetching import LocalFetching
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import BEGAN_MS, ModelStream
from tests.support.planned import finish, planned
from tests.support.polled_stream import PolledClient
from tests.support.transports import refused
from tests.support.virtual_time import LoopClock, run
from tests.unit.cluster.test_cluster import Host

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")
NO_LIMIT = 1 << 60
HOME = FetcherAddress("home", 1)
BEHIND_ALL = 1 << 200


def key(number: int) -> ShardKey:
    return ShardKey("orders", f"shardId-{number:012d}")


class Program:
    """One run, and the queries on it."""

    def __init__(
        self,
        stream: ModelStream,
        buffer_bytes: int = 1 << 20,
        *,
        together: bool = False,
        apart: bool = True,
        fetchers: int = 0,
        rate: int = 1 << 20,
    ) -> None:
        self.stream = stream
        self.places = fetchers
        self.hosts: list[Host] = []
        self.dead: set[FetcherAddress] = set()
        self.ends = None
        self.clock = clock = LoopClock()
        self.polled = PolledClient(stream, clock)
        access = Stream(REF, stream, stream, RetrySettings(), "m.json", clock)
        if apart:
            transport = PollingTransport(self.polled, clock, 1.0, lambda: apart_pace(rate))
            access.allow_apart(transport, polling_limits(KINESIS_LIMITS))
        self.store = MemoryLeaseStore()
        keys = LeaseKeys({"orders": "dev-orders"})
        leases = RunLease(self.store, "me", keys, Timing(10.0), clock, Random(1), application="lake")
        self.budget = Budget(buffer_bytes, now=clock.monotonic)
        streams = Streams({"orders": access})
        self.fetcher = Fetcher(streams, self.budget, FetcherSettings(True, patience=660.0), clock)
        self.fetching: LocalFetching | Cluster = LocalFetching(self.fetcher, clock, together=together)
        if fetchers:
            settings_ = FetcherSettings(True, patience=660.0)
            self.fetching = self.cluster = Cluster(
                streams,
                leases.seconds,
                10.0,
                clock,
                gone=self._is_dead,
                apart=Apart(buffer_bytes, lambda budget: Fetcher(streams, budget, settings_, clock, apart=True)),
                together=together,
            )
            self.cluster.home = HOME
        self.run = Run(streams, self.fetching, leases, self.store, keys, 25.0, 660.0, clock)
        self._names = 0

    async def __aenter__(self) -> Program:
        await self.run.start("grpc://here")
        self.hosts = [Host(self, place) for place in range(self.places)]  # type: ignore[arg-type]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run.stop()
        for host in self.hosts:
            host.task.cancel()
        await asyncio.gather(*(host.task for host in self.hosts), return_exceptions=True)

    async def _is_dead(self, address: FetcherAddress) -> bool:
        return address in self.dead

    async def payloads(self, query: str, wanted: ShardRange) -> list[bytes]:
        """The events of a range, as a task gets them."""
        tried: FetcherAddress | None = None
        while True:
            serving: Any = self.fetching.of(query)
            if self.places:
                (address,) = (await self.cluster.where(WhereRequest.of([wanted], 60.0, query, tried))).fetchers
                host = next((host for host in self.hosts if host.address == address), None)
                if address != HOME:
                    if host is None or address in self.dead:
                        await asyncio.sleep(0.2)
                        continue
                    serving = host.fetcher
            payloads: list[bytes] = []
            try:
                async with aclosing(serving.read(wanted)) as chunks:
                    async for chunk in chunks:
                        payloads += chunk
            except (FetcherUnreachableError, NotBufferedError):
                assert self.places
                tried = address
                await asyncio.sleep(0.2)
                continue
            return payloads

    def join(self, offset: Offset, *, ends: Bounds | None = None) -> Reader:
        self._names += 1
        return Reader(self, f"q{self._names}", offset, ends=ends)

    async def join_at_latest(self, now: Offset) -> Reader:
        reader = self.join(now)
        reader.offset = reader.begins = await reader.query.at_front(now)
        return reader

    def row(self, number: int) -> Position | None:
        """What the lease table says of a shard."""
        return self.store.lease(f"orders:shardId-{number:012d}").position


class Reader:
    """A query, and what Spark would do with it.

    Attributes:
        rows: The shard and number of each row that is committed, in order.
        begins: Where it began.
        moved_at: When it has got something last.
    """

    def __init__(self, program: Program, name: str, offset: Offset, *, ends: Bounds | None) -> None:
        self.program = program
        self.name = name
        self.rows: list[tuple[str, int]] = []
        self.pause = 0.0
        self.max_records = NO_LIMIT
        self.moved_at = program.clock.monotonic()
        self.query = Query(program.run, ends, name=name)
        self.offset = self.begins = offset
        self.planned: Offset | None = None
        self.left = False

    async def again(self) -> None:
        """Restart it: what is planned and not committed is read again."""
        await self.query.leave()
        self.query = Query(self.program.run, name=self.name)
        if self.planned is not None:
            await self.query.check_replay(self.offset, self.offset.ranges_to(self.planned))

    async def leave(self) -> None:
        await self.query.leave()

    async def poll(self) -> Offset:
        reply = await self.query.poll(self.offset, NO_LIMIT, self.max_records, 0.2)
        return planned(self.offset, reply)

    async def batch(self, *, fails: bool = False) -> bool:
        """One micro-batch, or the one again that failed; whether there was something to do."""
        if self.planned is None:
            end = await self.poll()
            if end == self.offset:
                return False
            self.planned = end
        end = self.planned
        rows: list[tuple[str, int]] = []
        for wanted in self.offset.ranges_to(end):
            rows += await self.read(wanted)
            self.moved_at = self.program.clock.monotonic()
        await asyncio.sleep(self.pause)
        if fails:
            return True
        self.rows += rows
        self.offset, self.planned = end, None
        finish(self.query, end)
        if rows:
            self.moved_at = self.program.clock.monotonic()
        return True

    async def read(self, wanted: ShardRange) -> list[tuple[str, int]]:
        payloads = await self.program.payloads(self.name, wanted)
        batches = decode(payloads, wanted.key, wanted.after, wanted.through, deaggregate=True)
        return [(wanted.key.shard, int(number.as_py())) for batch in batches for number in batch.column(2)]

    def expected(self) -> Counter[tuple[str, int]]:
        """All records behind where it began, in shards that it reads and their descendants."""
        found: Counter[tuple[str, int]] = Counter()
        read: set[str] = set()
        for name, shard in self.program.stream.shards_by_id.items():
            begins = self.begins.get(ShardKey("orders", name))
            if begins is None and read.isdisjoint(shard.parents):
                continue
            read.add(name)
            low = 0 if begins is None else BEHIND_ALL if begins.is_end else begins.value
            if begins is not None and begins.kind is PositionKind.AT_TIMESTAMP:
                low = begins.value - BEGAN_MS - 1
            found.update((name, number) for number, _ in shard.records if number > low)
        return found

    @property
    def has_all(self) -> bool:
        return len(self.rows) >= self.expected().total()

    def check(self) -> None:
        """Each row once, in the order of its shard, and none from before its beginning."""
        doubled = [row for row, times in Counter(self.rows).items() if times > 1]
        assert not doubled, f"{self.name}: twice {doubled}"
        by_shard: dict[str, list[int]] = {}
        for shard, number in self.rows:
            by_shard.setdefault(shard, []).append(number)
        assert all(numbers == sorted(numbers) for numbers in by_shard.values()), f"{self.name}: out of order"
        assert not Counter(self.rows) - self.expected(), f"{self.name}: rows from before its beginning"

    async def until(self, done: Callable[[], bool], seconds: float = 600.0) -> None:
        give_up_at = self.program.clock.monotonic() + seconds
        while not done():
            assert self.program.clock.monotonic() < give_up_at, (
                f"{self.name} has {len(self.rows)} rows at {self.offset}"
            )
            await self.batch()


def refuse_get_records(program: Program) -> None:
    def refuse(_: str) -> None:
        raise refused("AccessDeniedException", "not authorized to perform: kinesis:GetRecords", operation="GetRecords")

    program.polled.faults = refuse


def horizon(stream: ModelStream) -> Offset:
    return Offset(
        {ShardKey("orders", name): TRIM_HORIZON for name, shard in stream.shards_by_id.items() if not shard.parents}
    )


def scenario(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """Run a test in virtual time, an hour of it at most."""

    def wrapped() -> None:
        run(asyncio.wait_for(test(), 3600))

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


async def together(*queries: Reader, seconds: float = 600.0) -> None:
    """Let queries run until each has everything."""
    async with asyncio.TaskGroup() as group:
        for query in queries:
            group.create_task(query.until(lambda query=query: query.has_all, seconds))  # type: ignore[misc]
    for query in queries:
        query.check()


@pytest.mark.slow
@pytest.mark.parametrize("fetchers", [0, 2])
def test_beside_a_query_that_is_behind_one_at_the_tip_stays_there_although_one_shard_of_a_thousand_is_hot(
    fetchers: int,
) -> None:
    """With `bufferBytes=1m`; the one behind reads 1 MB/s with GetRecords, and catches up."""

    async def main() -> None:
        hot, backlog, each_second = 500, [50_000] * 400, [50_000] * 8
        stream = ModelStream(shards=1000, event_records=(4,))
        for number in range(1000):
            stream.put(number, 30)
        stream.put(hot, *backlog)
        at_tip = Offset({key(number): Position.after(stream[number].records[-1][0]) for number in range(1000)})
        async with Program(stream, fetchers=fetchers) as program:
            tip, behind = program.join(at_tip), program.join(horizon(stream))
            missing = []

            async def write() -> None:
                for second in range(60):
                    stream.put(hot, *each_second)
                    stream.put(second, 30)
                    await asyncio.sleep(1)
                    missing.append(tip.expected().total() - len(tip.rows))

            writing = asyncio.create_task(write())
            both = [
                asyncio.create_task(query.until(lambda query=query: writing.done() and query.has_all))  # type: ignore[misc]
                for query in (tip, behind)
            ]
            await asyncio.gather(writing, *both)
            assert max(missing[10:]) <= 5 * (len(each_second) + 1), "five seconds behind at most, once both read"
            assert program.polled.opened
            assert not stream.collisions
            for query in (tip, behind):
                query.check()

    run(asyncio.wait_for(main(), 3600))


@pytest.mark.parametrize("leaves", [False, True])
def test_nothing_is_kept_for_queries_behind_the_buffer_that_do_not_ask(leaves: bool) -> None:
    """Their tasks may be waiting for the very room that would be kept."""

    async def main() -> None:
        stream = ModelStream(shards=1, event_records=(1,))
        stream.put(0, *[1000] * 60)
        numbers = [number for number, _ in stream[0].records]
        async with Program(stream, buffer_bytes=16 << 10) as program:
            behind, another = program.join(horizon(stream)), program.join(horizon(stream))
            for query in (behind, another):
                await query.poll()
            for query, records in ((behind, 4), (another, 6)):
                query.max_records = 1
                await query.until(lambda query=query, records=records: len(query.rows) >= records)  # type: ignore[misc]
            front = program.join(Offset({key(0): Position.after(numbers[29])}))
            sharing = program.fetching.sharing
            sharing.shared.begin_at(key(0), front.offset[key(0)])
            if leaves:
                await front.leave()
                await asyncio.sleep(10)
                sharing.make_room(sharing.named(another.name))
                buffer = sharing.shared.found(key(0))
                assert buffer is not None
                assert buffer.start == behind.offset[key(0)]
            else:
                await front.until(lambda: front.has_all, 20)
                assert program.budget.used == 0
            await together(behind, another)

    run(asyncio.wait_for(main(), 3600))


async def write(stream: ModelStream, random: Random) -> None:
    for _ in range(random.randint(20, 60)):
        open_shards = [number for number, shard in enumerate(stream.shards_by_id.values()) if shard.last is None]
        for number in open_shards:
            if random.random() < 0.7:
                stream.put(number, *[random.choice([30, 300, 1500])] * random.randint(1, 12))
        if random.random() < 0.06 and len(stream.shards_by_id) < 12:
            if random.random() < 0.6 or len(open_shards) < 2:
                stream.split(random.choice(open_shards))
            else:
                stream.merge(*random.sample(open_shards, 2))
        await asyncio.sleep(random.choice([0.0, 0.2, 1.0, 6.0]))
