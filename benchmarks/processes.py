"""What a query's processes take: the planner's, and those of its fetchers; compared with one that fetches in the planner's process.

Kinesis is simulated in the process of whoever subscribes, and the lease table in the planner's; everything else is real, Arrow
calls over loopback included. The fetchers share one process, so that 32 of them fit on a small machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Final

import psutil

from benchmarks.earlier import service_of
from benchmarks.figures import Figure, Goal
from benchmarks.machine import anonymous_memory, process_of
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
from kinesis_efo.calls.address import FetcherAddress, Listening
from kinesis_efo.clock import SystemClock
from kinesis_efo.cluster.remote import PlannerLink
from kinesis_efo.cluster.remote_fetcher import FetcherIdentity, RemoteFetcher
from kinesis_efo.run.access import Call
from kinesis_efo.run.query_planner import QueryPlanner

CASES: Final = {256: 2, 8000: 32}
"""The number of fetchers, by the number of shards."""
LEASE_SECONDS: Final = 60.0
"""One process opens the subscriptions of all fetchers at once here, and may be busy for some seconds."""
WINDOWS: Final = 3
WINDOW_SECONDS: Final = 5.0
BATCH_SECONDS: Final = 0.4
"""What Spark takes for a small micro-batch."""
ALL_IDLE_PERCENT: Final = {256: 5.0}
SECRET: Final = "the benchmark's"


def run() -> list[Figure]:
    """Measure. MB are 2^20 bytes; memory is anonymous memory."""
    figures = []
    for shards, fetchers in CASES.items():
        alone = _measured(shards, 0)
        shared = _measured(shards, fetchers)
        goal = Goal(ALL_IDLE_PERCENT[shards], least=False) if shards in ALL_IDLE_PERCENT else None
        case = f"{shards:,} shards, {fetchers} fetchers"
        for load in ("idle", "busy"):
            driver = Figure(
                case,
                f"{load}: fetchers=driver",
                "% of a core",
                alone[load, "planner"],
                goal=goal if load == "idle" else None,
            )
            both = [sum(pair) for pair in zip(shared[load, "planner"], shared[load, "fetchers"], strict=True)]
            figures += [
                driver,
                Figure.against(driver, case, f"  fetchers={fetchers}, planner", list(shared[load, "planner"])),
                Figure.against(driver, case, "  with its fetchers", both, goal if load == "idle" else None),
            ]
        figures += [
            Figure(case, "memory of the shards, fetchers=driver", "MB", alone["memory", "planner"]),
            Figure(case, "  in the planner", "MB", shared["memory", "planner"]),
            Figure(case, "  in its fetchers", "MB", shared["memory", "fetchers"]),
        ]
    return figures


def _measured(shards: int, fetchers: int) -> dict[tuple[str, str], tuple[float, ...]]:
    """Per cent of a core by load, and MB, of each process."""
    with contextlib.ExitStack() as stack:
        pipes = {"planner": stack.enter_context(process_of(_plan, shards, fetchers))}
        address = pipes["planner"].recv()
        if fetchers:
            pipes["fetchers"] = stack.enter_context(process_of(_fetch, shards, fetchers, address))
            pipes["fetchers"].recv()
        processes = {name: psutil.Process(pipe.pid) for name, pipe in pipes.items()}
        empty = {name: anonymous_memory(process.pid) for name, process in processes.items()}
        for pipe in pipes.values():
            pipe.send("begin")
        pipes["planner"].recv()
        found: dict[tuple[str, str], tuple[float, ...]] = {}
        for load in ("idle", "busy"):
            for pipe in pipes.values():
                pipe.send(load)
            time.sleep(WINDOW_SECONDS)
            for name, percents in percent_of_a_core(processes).items():
                found[load, name] = percents
            if load == "idle":
                for name, process in processes.items():
                    found["memory", name] = ((anonymous_memory(process.pid) - empty[name]) / 2**20,)
        return found


def percent_of_a_core(processes: dict[str, psutil.Process]) -> dict[str, tuple[float, ...]]:
    """What processes take, window by window."""
    found: dict[str, list[float]] = {name: [] for name in processes}
    for _ in range(WINDOWS):
        began, before = time.monotonic(), {name: cpu_seconds(process) for name, process in processes.items()}
        time.sleep(WINDOW_SECONDS)
        for name, process in processes.items():
            found[name].append((cpu_seconds(process) - before[name]) / (time.monotonic() - began) * 100)
    return {name: tuple(percents) for name, percents in found.items()}


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


# -- the planner's process


def _plan(pipe: Connection, shards: int, fetchers: int) -> None:
    asyncio.run(_planning(pipe, shards, fetchers))


async def _planning(pipe: Connection, shards: int, fetchers: int) -> None:
    clock, loop = SystemClock(), asyncio.get_running_loop()
    kinesis = SimulatedKinesis(shards, clock, Random(shards))
    lease, streams = lease_of(clock, LEASE_SECONDS), streams_of(kinesis)
    if fetchers:
        run, query, cluster = query_of(streams, fetcher_of(kinesis, streams), lease, clock, _never)
        address = service_of(cluster, loop, SECRET, Listening()).address
    else:
        run, query, _ = query_of(streams, fetcher_of(kinesis, streams), lease, clock)
        address = None
    await run.start(str(address))
    pipe.send(address)
    await asyncio.to_thread(pipe.recv)
    spark = asyncio.create_task(asyncio.to_thread(_spark, _Asking(planner_of(query, clock), loop), kinesis, pipe))
    await _follow(pipe, kinesis)
    await spark


class _Asking:
    """Makes calls to a query from another thread; see `RunAccess`."""

    def __init__(self, planner: QueryPlanner, loop: asyncio.AbstractEventLoop) -> None:
        self._planner = planner
        self._loop = loop

    def __call__(self, call: Call[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(self._planner.answer(call), self._loop).result()


def _spark(ask: _Asking, kinesis: SimulatedKinesis, pipe: Connection) -> None:
    """Calls the stream reader as Spark does."""
    reader = reader_of(ask)
    start, heard = kinesis.horizon.to_dict(), False
    while True:
        end = reader.latestOffset(start)
        if end != start:
            reader.partitions(start, end)
            start = end
            time.sleep(BATCH_SECONDS)
        if not heard and len(reader._planner.lag._millis) == kinesis.number:
            heard = True
            pipe.send("settled")


async def _never(_address: FetcherAddress) -> bool:
    return False


async def _follow(pipe: Connection, kinesis: SimulatedKinesis) -> None:
    while True:
        load = await asyncio.to_thread(pipe.recv)
        kinesis.events = BUSY_EVENTS if load == "busy" else 0.0


# -- the process of the fetchers


def _fetch(pipe: Connection, shards: int, fetchers: int, planner: FetcherAddress) -> None:
    asyncio.run(_fetching(pipe, shards, fetchers, planner))


async def _fetching(pipe: Connection, shards: int, fetchers: int, planner: FetcherAddress) -> None:
    kinesis = SimulatedKinesis(shards, SystemClock(), Random(shards))
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    await asyncio.gather(_follow(pipe, kinesis), *(_remote(kinesis, place, planner) for place in range(fetchers)))


async def _remote(kinesis: SimulatedKinesis, place: int, planner: FetcherAddress) -> None:
    streams = streams_of(kinesis)
    identity = FetcherIdentity(place, f"host{place}", FetcherAddress("", 1 + place, (f"host{place}",)))
    fetcher, link = fetcher_of(kinesis, streams), PlannerLink(planner, SECRET)
    await RemoteFetcher(
        identity, fetcher, streams, link, kinesis.clock, lambda: f"{place}", 60.0, lambda ref: streams.stream(ref.name)
    ).run()
