"""Runs that compete for one table on a network that does its worst, from a seed.

What must hold at every moment: no two runs believe that they hold one lease, and no checkpoint goes back. What must hold in the end,
once the trouble is over: one run holds every lease, and its last positions are in the table.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from random import Random

import pytest

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.checkpoints import Checkpoints
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.row import Item, Lease, LeaseInfo
from kinesis_efo.leases.run import LeaseListener, RunLease
from kinesis_efo.positions import Position, ShardKey
from tests.support.examples import seeds
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock, run

TIMEOUT = 10.0
STREAMS = ("clicks", "orders")
KEYS = LeaseKeys({stream: f"dev-{stream}" for stream in STREAMS})
SHARDS = tuple(ShardKey(stream, f"shardId-{number}") for stream in STREAMS for number in range(3))


class FreezableClock(LoopClock):
    """Time goes on while the process is stopped, but nobody wakes up."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._network.running.wait()


class Process(LeaseListener):
    """A run with its own way to the table. Has the world checked with every lease taken."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.failure.on_set(self._check_failure)
        self.name = name
        self.network = Network(world.store, Random(f"{world.seed} {name}"), late=0.5)
        self.dead = False
        self._world = world
        clock = FreezableClock(self.network)
        self.lease = RunLease(self.network, name, KEYS, Timing(TIMEOUT), clock, Random(f"{world.seed} {name} choices"))
        self.checkpoints = Checkpoints(
            self.network,
            KEYS,
            self.lease.epoch,
            StreamIdentity,
            25.0,
            clock,
            read_until=lambda _shard, _position: None,
            failure=self.failure,
        )

    async def start(self) -> None:
        await self.lease.start(self, f"grpc://{self.name}")
        self.checkpoints.start()
        self.checkpoints.want({shard: LeaseInfo() for shard in SHARDS})
        self.lease.want(STREAMS)

    async def stop(self) -> None:
        await self.checkpoints.stop()
        await self.lease.stop()

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        self.checkpoints.load(stream, rows)
        self._world.check(f"{self.name} took {stream}")

    def _check_failure(self) -> None:
        error = self.failure.error
        assert "already read by" in str(error) or "another run held the lease" in str(error), error


class World:
    """The table, the processes, and what must hold between them at every moment."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.processes: list[Process] = []
        self.numbers = itertools.count()
        self.overlaps: list[str] = []
        self.position = 0
        world = self

        class Watched(MemoryLeaseStore):
            def _store(self, key: str, item: Item | None) -> None:
                super()._store(key, item)
                world.check(f"write of {key}")

        self.store = Watched()

    def check(self, event: str) -> None:
        for stream in STREAMS:
            holders = [process.name for process in self.processes if process.lease.is_held(stream)]
            if len(holders) > 1:
                self.overlaps.append(f"{asyncio.get_running_loop().time():.2f} {event}: {stream} held by {holders}")

    async def begin(self) -> Process:
        process = Process(self, f"w{next(self.numbers)}")
        await process.start()
        self.processes.append(process)
        return process

    async def trouble(self) -> None:
        """One of the things that go wrong."""
        alive = [each for each in self.processes if not each.dead]
        if not alive:  # the next one is just starting
            return
        process = self.random.choice(alive)
        network = process.network
        duration = self.random.choice([1, 5, 12, 40]) * self.random.random()
        match self.random.choice(["stop", "cut", "throttle", "lossy", "slow", "crash"]):
            case "stop":
                network.running.clear()
                await asyncio.sleep(duration)
                if not process.dead:
                    network.running.set()
            case "cut":
                network.cut = True
                await asyncio.sleep(duration)
                network.cut = False
            case "throttle":
                network.throttled = True
                await asyncio.sleep(duration)
                network.throttled = False
            case "lossy":
                network.lose_answers = network.lose_requests = 0.3
                await asyncio.sleep(duration)
                network.lose_answers = network.lose_requests = 0.0
            case "slow":
                network.latency = 2.5
                await asyncio.sleep(duration)
                network.latency = 0.005
            case "crash":
                network.running.clear()
                process.dead = True
                await self.begin()

    async def read(self) -> None:
        """Move the checkpoints of what is held, all the time."""
        while True:
            self.position += 1
            for process in self.processes:
                for shard in SHARDS:
                    if process.lease.is_held(shard.stream):
                        process.checkpoints.update(shard, Position.after(self.position))
            self.check("now")
            await asyncio.sleep(0.1)

    async def begin_again(self) -> None:
        """A query that failed ends, and is started again."""
        for process in [each for each in self.processes if each.failure.error and not each.dead]:
            process.dead = True
            await process.stop()
            await self.begin()

    async def settle(self) -> Process:
        """Let one run live on until it holds everything."""
        *others, survivor = [process for process in self.processes if not process.dead]
        for process in others:
            process.dead = True
            await process.stop()
        for _ in range(4):
            await asyncio.sleep(40)
            if survivor.failure.error:  # by one of the others, before it stopped
                survivor.dead = True
                await survivor.stop()
                survivor = await self.begin()
        assert survivor.lease.held == set(STREAMS)
        return survivor

    async def end(self) -> None:
        for process in self.processes:
            process.network.running.set()
        await asyncio.gather(*(process.stop() for process in self.processes))
        for process in self.processes:
            for task in list(process.network.stragglers):
                task.cancel()

    def verify_trace(self) -> None:
        assert self.overlaps == []
        for key, before, after in self.store.writes:
            if before is None or after is None:
                continue
            old, new = Lease.from_item(before), Lease.from_item(after)
            assert old is not None
            assert new is not None
            assert new.counter == old.counter + 1, f"{key}: {old} -> {new}"
            assert new.epoch >= old.epoch, f"{key}: {old} -> {new}"
            if not old.is_run:
                assert old.position is not None
                assert new.position is not None
                assert new.position.reaches(old.position), f"{key}: {old} -> {new}"


# Shows 69.
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(6))
def test_one_run_after_the_other(seed: int) -> None:
    async def main() -> None:
        world = World(seed)
        reading = asyncio.create_task(world.read())
        await world.begin()
        for _ in range(8):
            await asyncio.gather(*(world.trouble() for _ in range(world.random.randint(1, 3))))
            await world.begin_again()
            await asyncio.sleep(world.random.choice([0, 2, 15]))
        survivor = await world.settle()
        reading.cancel()
        last = world.position
        await world.end()
        world.verify_trace()
        rows = [world.store.lease(KEYS.encode(shard)) for shard in SHARDS]
        assert all(row.position is not None and row.position.reaches(Position.after(last - 1)) for row in rows)
        assert {row.owner for row in map(world.store.lease, world.store.items)} == {None}
        assert survivor.failure.error is None

    run(main())


# Shows 69.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [100 + seed for seed in seeds(5)])
def test_runs_that_compete(seed: int) -> None:
    async def main() -> None:
        world = World(seed)
        reading = asyncio.create_task(world.read())
        for _ in range(world.random.randint(2, 3)):
            await world.begin()
            await asyncio.sleep(world.random.choice([0, 0, 20]))
        for _ in range(6):
            await asyncio.gather(*(world.trouble() for _ in range(2)))
            await world.begin_again()
        await world.settle()
        reading.cancel()
        await world.end()
        world.verify_trace()

    run(main())
