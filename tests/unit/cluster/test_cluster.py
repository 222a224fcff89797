"""A planner with several fetchers in virtual time: nothing lost, nothing twice, never two at one shard, whatever happens to them.

The network between them is a model, which can be cut and delayed; everything else is the real thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.cluster.cluster import Cluster
from kinesis_efo.cluster.remote_fetcher import FetcherIdentity, RemoteFetcher
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Report, ReportReply, WhereRequest, Work, WorkRequest
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import Bounds, RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query
from kinesis_efo.run.run import Run as PlannedRun
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.model_stream import ModelStream
from tests.support.planned import finish, planned
from tests.support.virtual_time import LoopClock, run

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")
NO_LIMIT = 1 << 60
LEASE = 10.0
PORTS = count(1)


class Link:
    """The way from one fetcher to the planner."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cut = False
        self.delay = 0.001
        self.reports = 0

    async def work(self, request: WorkRequest) -> Work:
        return await self._call(self.cluster.assignments.work, request)

    async def report(self, report: Report) -> ReportReply:
        self.reports += 1
        return await self._call(self.cluster.assignments.report, report)

    async def _call(self, call: Callable[[Any], Coroutine[Any, Any, Any]], request: Any) -> Any:
        await self._pass()
        answer = await call(request)
        await self._pass()
        return answer

    async def _pass(self) -> None:
        await asyncio.sleep(self.delay)
        if self.cut:
            await asyncio.sleep(2)
            raise FetcherUnreachableError("the network is cut")


class Host:
    """A fetcher on a host of its own."""

    def __init__(self, run: Run, place: int) -> None:
        clock = LoopClock()
        self.run = run
        self.name = f"host{place}"
        self.link = Link(run.cluster)

        def open_stream(ref: StreamRef) -> Stream:
            return Stream(ref, run.stream, run.stream, RetrySettings(), "m.json", clock)

        self.streams = Streams({"orders": open_stream(REF)})
        self.fetcher = Fetcher(self.streams, Budget(1 << 20, now=clock.monotonic), FetcherSettings(True, 1.0), clock)
        self.address = FetcherAddress(self.name, next(PORTS))
        names = (f"{self.name}-{number}-{self.address.port}" for number in count())
        self.remote = RemoteFetcher(
            FetcherIdentity(place, self.name, self.address),
            self.fetcher,
            self.streams,
            self.link,
            clock,
            lambda: next(names),
            60.0,
            open_stream,
            run.ends,
        )
        self.task = asyncio.create_task(self.remote.run())

    async def die(self) -> None:
        """End as by SIGKILL: nothing is said any more, and the connection breaks."""
        self.link.cut = True
        self.run.dead.add(self.address)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Run:
    """A planner, its fetchers, and what Spark would do with them."""

    def __init__(
        self,
        stream: ModelStream,
        fetchers: int = 2,
        takeovers: bool = False,
        ends: Bounds | None = None,
    ) -> None:
        self.stream = stream
        self.ends = ends
        self.store = MemoryLeaseStore()
        self.network = Network(self.store, Random(1))
        self.rows: list[tuple[str, int]] = []
        self.offset = horizon(stream)
        self.dead: set[FetcherAddress] = set()
        clock = LoopClock()
        streams = Streams({"orders": Stream(REF, stream, stream, RetrySettings(), "m.json", clock)})
        keys = LeaseKeys({"orders": "dev-orders"})
        self.leases = RunLease(self.network, f"w{id(self)}", keys, Timing(LEASE), clock, Random(1), application="lake")
        self.is_gone = self._is_dead
        self.cluster = Cluster(
            streams,
            self.leases.seconds,
            LEASE,
            clock,
            gone=lambda address: self.is_gone(address),
        )
        self.inner = PlannedRun(streams, self.cluster, self.leases, self.network, keys, 25.0, 60.0, clock)
        self.planner = Query(self.inner)
        self.places = fetchers
        self.takeovers = takeovers
        self.hosts: list[Host] = []

    async def __aenter__(self) -> Run:
        await self.inner.start("grpc://here")
        self.hosts = [Host(self, place) for place in range(self.places)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.inner.stop()
        for host in self.hosts:
            host.task.cancel()
        await asyncio.gather(*(host.task for host in self.hosts), return_exceptions=True)
        if not self.takeovers:
            assert self.stream.collisions == []

    async def _is_dead(self, address: FetcherAddress) -> bool:
        if address not in self.dead and any(host.address == address and host.link.cut for host in self.hosts):
            await asyncio.sleep(1)  # one that is cut off does not answer
        return address in self.dead

    def readers(self) -> dict[str, int]:
        """The number of open subscriptions by shard, where there is one."""
        return {shard: number for shard, number in self.stream.open.items() if number}

    async def read(self, wanted: ShardRange) -> list[tuple[str, int]]:
        """The rows of a range; where a fetcher is gone, the next one is asked for all of it."""
        while True:
            (address,) = (await self.cluster.assignments.where(WhereRequest.of([wanted], 60.0))).fetchers
            host = next((host for host in self.hosts if host.address == address), None)
            if host is None or host.address in self.dead or host.link.cut:
                await asyncio.sleep(0.2)
                continue
            payloads: list[bytes] = []
            try:
                async for chunk in host.fetcher.read(wanted):
                    payloads += chunk
            except FetcherUnreachableError:
                continue
            batches = decode(payloads, wanted.key, wanted.after, wanted.through, deaggregate=True)
            return [(wanted.key.shard, int(number.as_py())) for batch in batches for number in batch.column(2)]

    async def batch(self, max_records: int = NO_LIMIT) -> None:
        """One micro-batch."""
        offset = self.offset
        finish(self.planner, offset)
        reply = await self.planner.poll(offset, NO_LIMIT, max_records, 0.2)
        self.offset = planned(offset, reply)
        for wanted in offset.ranges_to(self.offset):
            got = await self.read(wanted)
            assert got == expected(self.stream, wanted)
            self.rows += got

    async def until(self, rows: int) -> None:
        while len(self.rows) < rows:
            await self.batch()
        assert len(self.rows) == rows == len(set(self.rows))

    async def idle_until(self, condition: Callable[[], bool], seconds: float) -> float:
        """Go on polling until a condition holds; returns the seconds that took."""
        began = LoopClock().monotonic()
        while not condition():
            assert LoopClock().monotonic() - began < seconds, "waited in vain"
            await self.batch()
        return LoopClock().monotonic() - began


def horizon(stream: ModelStream) -> Offset:
    return Offset(
        {ShardKey("orders", name): TRIM_HORIZON for name, shard in stream.shards_by_id.items() if not shard.parents}
    )


def expected(stream: ModelStream, wanted: ShardRange) -> list[tuple[str, int]]:
    shard = stream.shards_by_id[wanted.key.shard]
    low = wanted.after.value
    high = NO_LIMIT if wanted.through.is_end else wanted.through.value
    return [(shard.shard_id, number) for number, _ in shard.records if low < number <= high]


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time, an hour of it at most."""

    def wrapped() -> None:
        run(asyncio.wait_for(test(), 3600))

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@scenario
async def test_the_shards_of_a_killed_fetcher_are_read_on_within_seconds() -> None:
    stream = ModelStream(shards=4)
    for number in range(4):
        stream.put(number, *[30] * 5)
    async with Run(stream) as run:
        await run.until(20)
        killed = run.hosts[0]
        lost = [feed.key.shard for feed in killed.fetcher.feeds]
        assert len(lost) == 2
        await killed.die()
        for number in range(4):
            stream.put(number, *[30] * 5)
        assert await run.idle_until(lambda: len(run.rows) == 40, 8.0) < 8.0
        assert len(set(run.rows)) == 40
        run.hosts.append(Host(run, 0))
        await run.idle_until(lambda: [len(member.shards) for member in run.cluster.assignments.members] == [2, 2], 30.0)
        for number in range(4):
            stream.put(number, *[30] * 5)
        await run.until(60)


@scenario
async def test_many_that_are_cut_off_at_once_are_replaced_as_soon_as_one() -> None:
    stream = ModelStream(shards=32)
    async with Run(stream, fetchers=32) as run:
        await run.idle_until(lambda: len(run.readers()) == 32, 20.0)
        for host in run.hosts[::2]:
            host.link.cut = True
        for number in range(32):
            stream.put(number, *[30] * 2)
        assert await run.idle_until(lambda: len(run.rows) == 64, 60.0) <= LEASE + 3
        assert len(set(run.rows)) == 64


@scenario
async def test_one_whose_connection_breaks_for_a_moment_asks_before_it_opens_anything() -> None:
    stream = ModelStream(shards=4)
    async with Run(stream, takeovers=True) as run:
        await run.idle_until(lambda: len(run.readers()) == 4, 10.0)
        away = run.hosts[0]
        name = away.remote._name
        run.cluster.assignments.dropped(name)  # the planner takes it for dead; it is not
        opened = len(stream.subscribed)
        await run.idle_until(lambda: [len(member.shards) for member in run.cluster.assignments.members] == [2, 2], 60.0)
        assert away.remote._name != name, "it has come as a new one"
        assert len(stream.subscribed) - opened <= 4, "no ping-pong"


@pytest.mark.slow
@scenario
async def test_a_minute_after_any_change_nobody_has_much_more_than_the_others() -> None:
    stream, random = ModelStream(shards=24), Random(3)
    sizes = [random.randrange(500, 5_000) for _ in range(24)]

    async with Run(stream, fetchers=3) as run:

        async def a_minute() -> None:
            for _ in range(60):
                for number, size in enumerate(sizes):
                    stream.put(number, size)
                await run.batch()
                await asyncio.sleep(1)

        def unevenness() -> float:
            loads: dict[FetcherAddress | None, int] = {
                host.address: 0 for host in run.hosts if host.address not in run.dead
            }
            for number, size in enumerate(sizes):
                loads[run.cluster.assignments.address(ShardKey("orders", stream[number].shard_id))] += size
            return max(loads.values()) * len(loads) / sum(loads.values())

        await a_minute()
        assert unevenness() <= 1.3
        sizes.sort()  # what was light may be heavy now
        await a_minute()
        assert unevenness() <= 1.3
        await run.hosts[0].die()
        await a_minute()
        assert unevenness() <= 1.3
        run.hosts.append(Host(run, 0))
        await a_minute()
        assert unevenness() <= 1.3
        await run.until(4 * 60 * 24)


@scenario
async def test_a_second_attempt_at_a_place_reads_nothing_while_the_first_lives() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, *[30] * 5)
    async with Run(stream, fetchers=1) as run:
        await run.until(5)
        run.hosts.append(Host(run, 0))
        stream.put(1, *[30] * 5)
        await run.until(10)
        await asyncio.sleep(20)
        assert not list(run.hosts[1].fetcher.feeds)
        await run.hosts[0].die()
        stream.put(1, *[30] * 5)
        await run.until(15)
        assert list(run.hosts[1].fetcher.feeds)


@scenario
async def test_stopping_ends_every_fetcher_and_releases_the_lease() -> None:
    stream = ModelStream(shards=4)
    stream.put(0, 30)
    run = Run(stream)
    await run.__aenter__()
    await run.until(1)
    await run.batch()
    began = LoopClock().monotonic()
    await run.inner.stop()
    assert LoopClock().monotonic() - began < 2
    async with asyncio.timeout(2):
        await asyncio.gather(*(host.task for host in run.hosts))
    assert run.readers() == {}
    assert run.store.lease("#run:orders").owner is None
    row = run.store.lease("orders:shardId-000000000000")
    assert row.fetcher is None
    assert row.record == stream[0].records[0][0]


@pytest.mark.parametrize(("place", "after"), [(0, -1), (4, -1), (9, -1), (10, -1), (14, -1), (14, 4), (4, 4)])
@pytest.mark.parametrize("between", [False, True])
def test_the_last_record_in_front_of_an_end_within_an_event_is_told_by_fetchers(
    place: int, after: int, between: bool
) -> None:
    @scenario
    async def test() -> None:
        stream = ModelStream(shards=1, event_records=(10,))
        stream.put(0, *[30] * 30)
        numbers = [number for number, _ in stream[0].records]
        end = Position.after((numbers[place] + numbers[place + 1]) // 2 if between else numbers[place])
        async with Run(stream, ends=Bounds(everywhere=end)) as run:
            (key,) = run.offset
            begin = run.offset if after < 0 else Offset({key: Position.after(numbers[after])})
            [wanted] = begin.ranges_to(Offset({key: end})) or [ShardRange(key, begin[key], end)]
            while not (await run.planner.poll(begin, NO_LIMIT, NO_LIMIT, 1.0)).shards[0].records:
                pass
            known = run.planner.last_records([wanted])
            assert known == ({} if after == place else {key: numbers[place]})

    test()
