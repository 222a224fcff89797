"""Planning for many shards: a planner with 32 fetchers, compared with one that fetches in its own process (`fetchers=driver`).

In virtual time, with Kinesis simulated: everything else is real. Messages between fetchers and planner are encoded and decoded as
over sockets; the network itself is left out. What others do in the same process is not in the times, nor is the garbage
collector.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from benchmarks.figures import Figure, Goal
from benchmarks.simulated import (
    BUSY_EVENTS,
    SimulatedKinesis,
    fetcher_of,
    lease_of,
    planner_of,
    query_of,
    reader_of,
    streams_of,
)
from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.cluster.remote_fetcher import FetcherIdentity, RemoteFetcher
from kinesis_efo.fetcher.work import Report, ReportReply, Work, WorkRequest
from kinesis_efo.run.access import Call, Next, Plan
from tests.support.virtual_time import LoopClock
from tests.support.virtual_time import run as in_virtual_time

SHARDS: Final = (1, 100, 256, 1000, 8000)
FETCHERS: Final = 32
WINDOWS: Final = 5
WINDOW_SECONDS: Final = 4.0
TRIGGER_SECONDS: Final = {"idle": 0.2, "busy": 0.5}
"""An idle query asks again after `pollTimeout`; one with data as soon as its micro-batch is done."""
LATEST_OFFSET_MS: Final = {256: 2.0, 8000: 40.0}
WAY_SECONDS: Final = 0.001

T = TypeVar("T")


def run() -> list[Figure]:
    """Measure. A longest time is that of a window of some seconds."""
    figures = []
    for shards in SHARDS:
        found = {fetchers: in_virtual_time(measured(shards, fetchers)) for fetchers in (0, FETCHERS)}
        for load in TRIGGER_SECONDS:
            case = f"{shards:,} shard{'s' if shards > 1 else ''}, {load}"
            alone, shared = found[0].loads[load], found[FETCHERS].loads[load]
            figures += _figures(case, LATEST_OFFSET_MS.get(shards) if load == "idle" else None, alone, shared)
        case = f"{shards:,} shard{'s' if shards > 1 else ''}"
        for name, each in zip(("fetchers=driver", f"fetchers={FETCHERS}"), found.values(), strict=True):
            stored, committed = each.once_a_minute
            figures += [
                Figure(case, f"stores the positions of idle shards, {name}", "CPU ms", (stored,)),
                Figure(case, "  the next one, which commits them", "CPU ms", (committed,)),
            ]
        figures += [
            Figure(case, "offset", "bytes", (found[FETCHERS].offset_bytes,)),
            Figure(case, "a fetcher dies: shares made anew", "CPU ms", (found[FETCHERS].share_ms,)),
            Figure(case, "  until all shards are read again", "s", (found[FETCHERS].read_again,)),
        ]
    return figures


@dataclass
class _Load:
    """What was measured under one load, window by window.

    Attributes:
        latest: Median time of `latestOffset`, ms.
        worst: The longest, ms.
        partitions: Median time of `partitions`, ms; none where there were no micro-batches.
        requests: Requests of all fetchers, a minute.
        sent: Bytes of requests and answers, a second.
    """

    latest: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)
    partitions: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)


@dataclass
class _Found:
    loads: dict[str, _Load] = field(default_factory=dict)
    once_a_minute: tuple[float, float] = (0.0, 0.0)
    offset_bytes: float = 0.0
    share_ms: float = 0.0
    read_again: float = 0.0


def _figures(case: str, most: float | None, alone: _Load, shared: _Load) -> list[Figure]:
    goal = Goal(most, least=False) if most else None
    driver = Figure(case, "latestOffset, fetchers=driver", "CPU ms", tuple(alone.latest), goal=goal)
    figures = [
        driver,
        Figure.against(driver, case, f"  fetchers={FETCHERS}", shared.latest, goal),
        Figure(case, "  the longest, fetchers=driver", "CPU ms", tuple(alone.worst)),
        Figure(case, f"  the longest, fetchers={FETCHERS}", "CPU ms", tuple(shared.worst)),
    ]
    if shared.partitions:
        figures.append(Figure(case, "partitions", "CPU ms", tuple(shared.partitions)))
    return [
        *figures,
        Figure(case, f"requests of {FETCHERS} fetchers", "a minute", tuple(shared.requests)),
        Figure(case, "  with their answers", "KB/s", tuple(each / 1000 for each in shared.sent)),
    ]


async def measured(shards: int, fetchers: int) -> _Found:
    """Measure a run with this many shards and fetchers in other processes (0: in the run itself)."""
    clock = LoopClock()
    kinesis = SimulatedKinesis(shards, clock, Random(shards))
    found = _Found()
    async with _Run(kinesis, fetchers) as query:
        await query.settled()
        for load in TRIGGER_SECONDS:
            kinesis.events = BUSY_EVENTS if load == "busy" else 0.0
            await query.window(TRIGGER_SECONDS[load], _Load())
            found.loads[load] = _Load()
            for _ in range(WINDOWS):
                await query.window(TRIGGER_SECONDS[load], found.loads[load])
            if load == "idle":
                found.once_a_minute = await query.store_idle_offsets()
        found.offset_bytes = float(len(msgspec.json.encode(query.offset)))
        if fetchers:
            found.share_ms, found.read_again = await query.lose_one()
    return found


class _Run:
    """A planner, its fetchers, and the stream reader as Spark calls it."""

    def __init__(self, kinesis: SimulatedKinesis, fetchers: int) -> None:
        self.kinesis = kinesis
        self.offset: dict[str, Any] = kinesis.horizon.to_dict()
        self.requests = self.sent = 0
        clock = kinesis.clock
        lease, streams = lease_of(clock), streams_of(kinesis)
        self.run, self.query, self.cluster = query_of(
            streams, fetcher_of(kinesis, streams), lease, clock, self._is_gone if fetchers else None
        )
        self.planner = planner = planner_of(self.query, clock)
        # To ask for the lease would wait.
        planner._may_read = True
        self.reader = reader_of(lambda call: _now(planner.answer(_at_once(call))))
        self._places = fetchers
        self._gone: set[FetcherAddress] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> _Run:
        await self.run.start("grpc://here")
        for place in range(self._places):
            self._tasks.append(asyncio.create_task(self._fetch(place)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fetch(self, place: int) -> None:
        kinesis = self.kinesis
        # Hosts do not tick together.
        await kinesis.clock.sleep(kinesis.random.random())
        streams = streams_of(kinesis)
        names = (f"fetcher{place}-{number}" for number in count())
        identity = FetcherIdentity(place, f"host{place}", _address(place))
        fetcher, wire = fetcher_of(kinesis, streams), _Wire(self)
        await RemoteFetcher(
            identity,
            fetcher,
            streams,
            wire,
            kinesis.clock,
            lambda: next(names),
            60.0,
            lambda ref: streams.stream(ref.name),
        ).run()

    async def _is_gone(self, address: FetcherAddress) -> bool:
        return address in self._gone

    async def settled(self) -> None:
        """Wait until every shard has told that it is idle."""
        await self.query.poll(self.reader._planner._offsets.read(self.offset), 1 << 60, 1 << 60, 0.0)
        while len(self.reader._planner.lag._millis) < self.kinesis.number:
            await self.kinesis.clock.sleep(0.2)
            self.trigger()

    async def store_idle_offsets(self) -> tuple[float, float]:
        """Store the positions of idle shards, as is done once a minute; returns the time of that trigger and of the next, ms."""
        self.planner._advance._stored_idle_at = -1e9
        await self.kinesis.clock.sleep(TRIGGER_SECONDS["idle"])
        stored, _ = self.trigger()
        await self.kinesis.clock.sleep(TRIGGER_SECONDS["idle"])
        committed, _ = self.trigger()
        return stored, committed

    async def window(self, every: float, load: _Load) -> None:
        """Some seconds of triggers."""
        latest, partitions = [], []
        requests, sent = self.requests, self.sent
        clock = self.kinesis.clock
        begin = clock.monotonic()
        while clock.monotonic() < begin + WINDOW_SECONDS:
            await clock.sleep(every)
            took, planned = self.trigger()
            latest.append(took)
            partitions += planned
        latest.sort()
        load.latest.append(latest[len(latest) // 2])
        load.worst.append(latest[-1])
        if partitions:
            load.partitions.append(sorted(partitions)[len(partitions) // 2])
        seconds = clock.monotonic() - begin
        load.requests.append((self.requests - requests) / seconds * 60)
        load.sent.append((self.sent - sent) / seconds)

    def trigger(self) -> tuple[float, list[float]]:
        """A trigger, and the milliseconds that `latestOffset` takes of it, and `partitions`, if that is called."""
        # As Spark hands it over: it keeps JSON.
        start = msgspec.json.decode(msgspec.json.encode(self.offset))
        end, took = _timed(lambda: self.reader.latestOffset(start))
        if end == start:
            return took, []
        self.offset = msgspec.json.decode(msgspec.json.encode(end))
        _, planned = _timed(lambda: self.reader.partitions(start, self.offset))
        return took, [planned]

    async def lose_one(self) -> tuple[float, float]:
        """End a fetcher as by SIGKILL; returns the CPU time of sharing out anew, ms, and the seconds until all shards are read."""
        assert self.cluster is not None
        clock, cluster = self.kinesis.clock, self.cluster
        self._tasks[0].cancel()
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        (name,) = [each.request.name for each in cluster.assignments.members if each.request.place == 0]
        # Its socket tells that the connection broke.
        begin = clock.monotonic()
        _, took = _timed(lambda: self._dropped(name))
        while self._heard() < self.kinesis.number:
            await clock.sleep(0.05)
        return took, clock.monotonic() - begin

    def _dropped(self, name: str) -> None:
        work = self.cluster.assignments.dropped(name)
        if asyncio.iscoroutine(work):  # of earlier versions, it is no coroutine
            _now(work)

    def _heard(self) -> int:
        """The number of shards of which fetchers have told something."""
        if hasattr(self.cluster, "table"):
            return sum(row.is_heard for row in self.cluster.table.shared.values())
        return len(self.cluster.statuses())


def _address(place: int) -> FetcherAddress:
    return FetcherAddress("", 1 + place, (f"host{place}",))


class _Wire:
    """The way from a fetcher to the planner."""

    def __init__(self, run: _Run) -> None:
        assert run.cluster is not None
        self._run = run
        self._assignments = run.cluster.assignments

    async def work(self, request: WorkRequest) -> Work:
        """See `PlannerClient`."""
        return await self._call(self._assignments.work, request, Work)

    async def report(self, report: Report) -> ReportReply:
        """See `PlannerClient`."""
        return await self._call(self._assignments.report, report, ReportReply)

    async def _call(
        self, call: Callable[[Any], Coroutine[Any, Any, msgspec.Struct]], request: msgspec.Struct, answer: type[T]
    ) -> T:
        clock = self._run.kinesis.clock
        asked = msgspec.json.encode(request)
        await clock.sleep(WAY_SECONDS)
        said = msgspec.json.encode(await call(msgspec.json.decode(asked, type=type(request))))
        await clock.sleep(WAY_SECONDS)
        self._run.requests += 1
        self._run.sent += len(asked) + len(said)
        return msgspec.json.decode(said, type=answer)


def _at_once(call: Call[Any]) -> Call[Any]:
    """A call that does not wait: all is done in the run's own thread."""
    return replace(call, wait=0.0) if isinstance(call, Next | Plan) else call


def _now(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("the planner waits where it must not")


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    # The garbage collector would go through the objects of 32 fetchers and of Kinesis, which no planner's process has.
    gc.disable()
    begin = time.thread_time()
    result = call()
    took = time.thread_time() - begin
    gc.enable()
    return result, took * 1000
