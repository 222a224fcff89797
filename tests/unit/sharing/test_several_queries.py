"""Several queries on one run in virtual time: each reads every record once and in order, whatever the others do, and nobody stands still."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from math import floor, inf
from random import Random
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.cluster.cluster import Apart, Cluster
from kinesis_efo.errors import ConfigurationError, DataLossError, FetcherUnreachableError
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
from tests.support.examples import seeds
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import BEGAN_MS, ModelStream
from tests.support.planned import finish, planned
from tests.support.polled_stream import PolledClient
from tests.support.transports import refused
from tests.support.virtual_time import LoopClock, run
from tests.unit.cluster.test_cluster import Host

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")
NO_LIMIT = 1 << 60
STILL_SECONDS = 60.0
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


@scenario
async def test_two_queries_share_one_subscription_per_shard() -> None:
    stream = ModelStream(shards=2)
    for number in range(2):
        stream.put(number, *[30] * 20)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await together(first, second)
        stream.put(0, *[30] * 5)
        await together(first, second)
        assert len(stream.subscribed) == 2
        assert not program.polled.opened


@scenario
async def test_the_buffer_is_kept_until_the_slower_query_has_committed() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 40)
    async with Program(stream) as program:
        fast, slow = program.join(horizon(stream)), program.join(horizon(stream))
        slow.max_records = 3
        await fast.poll()
        await slow.poll()
        await fast.until(lambda: fast.has_all)
        assert len(slow.rows) < 40
        await slow.until(lambda: slow.has_all)
        assert len(stream.subscribed) == 1
        assert not program.polled.opened
        assert program.budget.used == 0


@scenario
async def test_a_query_that_begins_behind_reads_apart_until_it_meets_the_others() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 200)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        await together(first, second)
        assert program.polled.opened
        stream.put(0, *[30] * 4)
        await together(first, second)
        calls = len(program.polled.limits_asked)
        for _ in range(20):
            stream.put(0, 30)
            await together(first, second)
            await asyncio.sleep(1)
        assert len(program.polled.limits_asked) - calls <= 3, "it shares the buffer again"
        assert len(stream.subscribed) <= 2
        assert not stream.collisions


@scenario
async def test_on_an_idle_stream_the_subscription_goes_back_for_a_query_that_is_behind_and_no_record_is_asked_for_for_ever() -> (
    None
):
    stream = ModelStream(shards=1)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        for _ in range(100):
            await first.batch()
        second = program.join(horizon(stream))
        for _ in range(100):
            await first.batch()
            await second.batch()
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls
        stream.put(0, *[30] * 3)
        await together(first, second)
        assert len(program.polled.limits_asked) == calls


@scenario
async def test_a_slow_query_holds_no_fast_one_up() -> None:
    stream = ModelStream(shards=2, event_records=(4,))
    async with Program(stream, buffer_bytes=64 << 10) as program:
        fast, slow = program.join(horizon(stream)), program.join(horizon(stream))
        slow.pause, slow.max_records = 15.0, 10

        async def write() -> None:
            for _ in range(60):
                for number in range(2):
                    stream.put(number, *[1000] * 10)
                await asyncio.sleep(0.5)

        writing = asyncio.create_task(write())
        slowly = asyncio.create_task(slow.until(lambda: slow.has_all and writing.done(), 3000))
        await fast.until(lambda: writing.done() and fast.has_all, 120)
        slow.pause, slow.max_records = 0.0, NO_LIMIT
        await slowly
        fast.check()
        slow.check()
        assert program.polled.opened, "it went on apart"
        assert program.budget.limit in (64 << 10, 48 << 10)


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


@scenario
async def test_queries_that_stay_together_wait_for_the_slowest() -> None:
    stream = ModelStream(shards=1, event_records=(4,))
    stream.put(0, *[1000] * 200)
    async with Program(stream, buffer_bytes=64 << 10, together=True) as program:
        fast, slow = program.join(horizon(stream)), program.join(horizon(stream))
        slow.pause, slow.max_records = 1.0, 10
        await together(fast, slow, seconds=3000)
        assert not program.polled.opened
        assert len(stream.subscribed) == 1


@scenario
async def test_the_subscription_goes_forward_to_a_query_in_front() -> None:
    stream = ModelStream(shards=1, event_records=(1,))
    stream.put(0, *[1000] * 2000)
    numbers = [number for number, _ in stream[0].records]
    async with Program(stream, buffer_bytes=32 << 10) as program:
        behind = program.join(horizon(stream))
        behind.pause, behind.max_records = 0.5, 10
        await behind.batch()
        front = program.join(Offset({key(0): Position.after(numbers[-10])}))
        slowly = asyncio.create_task(behind.until(lambda: behind.has_all, 3000))
        began = program.clock.monotonic()
        await front.until(lambda: front.has_all, 60)
        assert program.clock.monotonic() - began < 12
        assert not behind.has_all
        await slowly
        front.check()
        behind.check()


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


@scenario
async def test_a_shard_that_one_query_has_ended_is_read_on_for_one_behind_its_buffer() -> None:
    stream = ModelStream(shards=1, event_records=(1,))
    stream.put(0, *[30] * 20)
    stream.split(0)
    async with Program(stream, fetchers=2) as program:
        behind, front = (program.join(horizon(stream)) for _ in range(2))
        behind.max_records = 5
        await behind.batch()
        front.offset = front.begins = Offset({key(0): Position.after(stream[0].records[-3][0])})
        program.fetching.sharing.shared.begin_at(key(0), front.offset[key(0)])
        await front.until(lambda: front.offset[key(0)].is_end, 60)
        assert key(0) in program.cluster.assignments.reached
        await together(behind, front, seconds=60)


@scenario
async def test_queries_that_begin_now_begin_at_the_same_record() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30, 30)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        await first.batch()
        at = Offset({key(0): Position.at_timestamp(floor(program.clock.time() * 1000))})
        second = await program.join_at_latest(at)
        assert second.begins[key(0)].kind is Position.after(1).kind
        stream.put(0, 30, 30)
        await together(first, second)
        assert len(second.rows) == 2
        assert not program.polled.opened


@scenario
async def test_rows_are_the_minimum_of_all_queries_and_never_go_back() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 10)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        second.max_records = 2
        await first.poll()
        await second.batch()
        await first.until(lambda: first.has_all)
        await asyncio.sleep(30)
        assert program.row(0) == second.offset[key(0)]
        await second.leave()
        await asyncio.sleep(30)
        assert program.row(0) == first.offset[key(0)]
        third = program.join(horizon(stream))
        await third.poll()
        stream.put(0, 30)
        await first.until(lambda: first.has_all)
        await asyncio.sleep(30)
        assert program.row(0) == first.offset[key(0)]


@scenario
async def test_what_a_query_reads_again_before_it_polls_is_kept_for_it() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 20)
    async with Program(stream, apart=False) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await first.poll()
        second.max_records = 4
        await second.batch()
        assert await second.batch(fails=True)
        await second.again()
        await first.until(lambda: first.has_all)
        buffer = program.fetching.sharing.shared.found(key(0))
        assert buffer is not None
        assert buffer.covers(second.offset[key(0)]) is not False
        await together(first, second)
        assert len(stream.subscribed) == 1


@pytest.mark.parametrize("fetchers", [0, 2])
def test_a_shard_that_others_have_ended_is_read_for_a_query_that_comes_later(fetchers: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=2)
        stream.put(0, *[30] * 9)
        stream.split(0)
        stream.put(2, 30)
        stream.put(3, 30)
        async with Program(stream, fetchers=fetchers) as program:
            first, second = program.join(horizon(stream)), program.join(horizon(stream))
            await together(first, second)
            assert key(0) not in {**first.offset, **second.offset}
            third = program.join(horizon(stream))
            await third.poll()
            stream.put(2, 30)
            await first.until(lambda: first.has_all)
            if fetchers:
                assert key(0) in program.cluster.assignments.reached
            await together(first, second, third, seconds=60)
            assert [shard for shard, _ in stream.subscribed].count(key(0).shard) <= 2

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_without_get_records_all_wait_for_the_slowest() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 100)
    async with Program(stream) as program:
        refuse_get_records(program)
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        await together(first, second)
        assert not program.fetching.sharing.may_read_apart
        stream.put(0, 30)
        await together(first, second)
        at = Offset({key(0): Position.at_timestamp(1_700_000_500_000)})
        third = program.join(at)
        with pytest.raises(ConfigurationError, match="grant kinesis:GetRecords"):
            await third.batch()


@scenario
async def test_a_query_that_fails_by_itself_fails_alone() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    async with Program(stream) as program:
        first, second = (
            program.join(horizon(stream)),
            program.join(Offset({ShardKey("orders", "shardId-0000000000"): TRIM_HORIZON})),
        )
        await first.batch()
        with pytest.raises(DataLossError):
            await second.batch()
        with pytest.raises(DataLossError):
            finish(second.query, second.offset)
        stream.put(0, 30)
        await first.until(lambda: first.has_all)
        await second.leave()
        assert program.run.failure.error is None


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "fetchers"), [*((seed, 0) for seed in seeds(4)), *((seed, 2) for seed in seeds(2))])
@pytest.mark.parametrize("wrong", [False, True])
def test_whatever_queries_do_each_reads_every_record_once_and_nobody_stands_still(
    seed: int, fetchers: int, wrong: bool
) -> None:
    """Up to four queries that join, leave, restart, fail and dawdle, on a stream that is resharded and may answer wrongly."""
    run(asyncio.wait_for(search(Random(seed), fetchers, wrong=wrong), 36_000))


async def search(random: Random, fetchers: int = 0, *, wrong: bool = False) -> None:
    stream = ModelStream(random.randint(1, 3), random.choice([(1,), (2, 5), (8,)]), timed=True)
    buffer_bytes = random.choice([16 << 10, 64 << 10, 1 << 20])
    async with Program(stream, buffer_bytes, together=random.random() < 0.1, fetchers=fetchers) as program:
        if random.random() < 0.15:
            refuses_after = program.clock.monotonic() + random.uniform(0, 60)

            def refuse(_: str) -> None:
                if program.clock.monotonic() > refuses_after:
                    raise refused("AccessDeniedException", "not authorized", operation="GetRecords")

            program.polled.faults = refuse
        writing = asyncio.create_task(write(stream, random))
        disturbing = asyncio.create_task(disturb(program, Random(random.random()), writing)) if wrong else writing
        readers: list[Reader] = []
        running = [asyncio.create_task(live(program, readers, random, writing)) for _ in range(random.randint(1, 4))]
        watching = asyncio.create_task(watch(program, readers))
        living = asyncio.gather(writing, disturbing, *running)
        done, _ = await asyncio.wait({watching, living}, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        for task in done:
            task.result()
        for reader in readers:
            reader.check()
            assert reader.left or reader.has_all, f"{reader.name} lacks {reader.expected() - Counter(reader.rows)}"
        assert not stream.collisions


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


async def disturb(program: Program, random: Random, writing: asyncio.Task[None]) -> None:
    """Let Kinesis answer wrongly, refuse calls and cut subscriptions, until everything is written. It goes on saying that readers are behind."""
    stream, polled = program.stream, program.polled
    refuse, throttled_until = polled.faults, -inf

    def throttle(shard: str) -> None:
        refuse(shard)
        if program.clock.monotonic() < throttled_until:
            raise refused("ProvisionedThroughputExceededException", "Rate exceeded", operation="GetRecords")

    polled.faults = throttle
    stream.gives_last_number = random.random() < 0.3
    polled.end_with_records = random.random() < 0.5
    while not writing.done():
        match random.choice(["quiet", "quiet", "behind", "throttled", "cut", "cut all"]):
            case "quiet":
                stream.hidden, polled.hidden = random.randint(0, 4), random.randint(0, 4)
            case "behind":
                stream.lag = random.choice([0, 1_000, 60_000])
                polled.lag = [] if random.random() < 0.3 else [random.choice([1_000, 60_000])]
            case "throttled":
                throttled_until = program.clock.monotonic() + random.uniform(0, 10)
            case "cut":
                stream.cut(random.choice(list(stream.shards_by_id)))
            case "cut all":
                for shard in stream.shards_by_id:
                    stream.cut(shard)
        await asyncio.sleep(random.choice([0.1, 1.0, 5.0, 20.0]))
    stream.hidden = polled.hidden = 0


async def live(program: Program, readers: list[Reader], random: Random, writing: asyncio.Task[None]) -> None:
    """One query after the other: the last one stays until it has everything."""
    while True:
        await asyncio.sleep(random.choice([0.0, 0.0, 1.0, 20.0]))
        known = [reader for reader in readers if reader.offset]
        if known and random.random() < 0.3:
            # A checkpoint that some other query has had.
            begin, now = random.choice(known).offset, False
        elif random.random() < 0.3 and len(program.stream.shards_by_id) <= 3:
            time = floor(program.clock.time() * 1000)
            open_ = [name for name, shard in program.stream.shards_by_id.items() if shard.last is None]
            begin, now = Offset({ShardKey("orders", name): Position.at_timestamp(time) for name in open_}), True
        else:
            begin, now = horizon(program.stream), False
        reader = await program.join_at_latest(begin) if now else program.join(begin)
        readers.append(reader)
        leaves = random.random() < 0.3 and not writing.done()
        for _ in range(random.randint(5, 60)) if leaves else iter(int, 1):
            reader.pause = random.choice([0.0, 0.0, 0.0, 0.3, 3.0]) if not writing.done() else 0.0
            reader.max_records = random.choice([1, 5, 50, NO_LIMIT, NO_LIMIT])
            if random.random() < 0.03:
                await reader.again()
            try:
                await reader.batch(fails=random.random() < 0.05)
            except ConfigurationError:
                # Times and numbers cannot be compared.
                assert not program.fetching.sharing.may_read_apart
                reader.left = True
                await reader.leave()
                return
            if writing.done() and all(each.left or (each.has_all and each.planned is None) for each in readers):
                break
        if not leaves:
            return
        reader.left = True
        await reader.leave()


async def watch(program: Program, readers: list[Reader]) -> None:
    while True:
        await asyncio.sleep(1)
        assert program.budget.used <= program.budget.limit + (256 << 10), "the budget is kept"
        now = program.clock.monotonic()
        for reader in readers:
            waits_by_design = program.fetching.sharing.together or not program.fetching.sharing.may_read_apart
            if reader.left or reader.has_all or waits_by_design:
                reader.moved_at = now
            assert now - reader.moved_at < STILL_SECONDS, (
                f"{reader.name} stands still at {reader.offset}:\n{told(program)}"
            )


def told(program: Program) -> str:
    """Where everybody is."""
    lines = [f"budget {program.budget.used} of {program.budget.limit}"]
    for query in program.fetching.sharing.queries:
        lines.append(f"{query.name} at {query.offset}")
        lines += [
            f"  {shard} claim {query.claim(shard)} {shard in query._apart.claims}" for shard in query.offset or ()
        ]
    for key, snapshot in program.cluster._snapshots._snapshots.items() if program.places else ():
        index = snapshot.index
        lines.append(
            f"{key} {snapshot.owner} {(str(index.start), str(index.end), index.lowest, index.held)} {program.cluster._restarted}"
        )
    for feed in (
        feed for fetcher in (program.fetcher, *(host.fetcher for host in program.hosts)) for feed in fetcher.feeds
    ):
        buffer = feed.buffer
        lines.append(
            f"{feed.key} {None if buffer is None else (str(buffer.start), str(buffer.end), buffer.lowest, buffer.held)}"
        )
    return "\n".join(lines)
