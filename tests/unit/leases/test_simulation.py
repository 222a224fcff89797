"""Several workers, one table, and a network that does its worst, from a seed.

What must hold at every moment: no two workers believe that they hold one lease, and no checkpoint goes back. What must
hold in the end, once the trouble is over: every lease is held, evenly.
"""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pytest

from kinesis_efo.errors import LeaseError
from kinesis_efo.leases import LeaseInfo, LeaseLoop, SilentListener, Timing, Worker
from kinesis_efo.leases.row import Item, Lease
from kinesis_efo.positions import Position
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock, run

TIMEOUT = 10.0
KEYS = tuple(f"shard-{i}" for i in range(7))


class FreezableClock(LoopClock):
    """Time goes on while the process is stopped, but nobody wakes up."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._network.running.wait()


class Process:
    """A worker with its own way to the table."""

    def __init__(self, world: World, name: str, run_id: str) -> None:
        self.name = name
        self.run_id = run_id
        self.network = Network(world.store, Random(f"{world.seed} {name}"), late=0.5)
        self.dead = False
        self.loop = LeaseLoop(
            self.network,
            Worker(name, run_id),
            Timing(TIMEOUT),
            FreezableClock(self.network),
            Random(f"{world.seed} {name} choices"),
        )


class Listener(SilentListener):
    """Has the world checked with every lease taken."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def lease_taken(self, key: str) -> None:
        self._world.check(f"{self._name} took {key}")

    def failed(self, error: LeaseError) -> None:
        assert "already read by" in str(error), error
        self._world.refused.append(self._name)


class World:
    """The table, the processes, and what must hold between them at every moment."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.processes: list[Process] = []
        self.numbers = itertools.count()
        self.refused: list[str] = []
        self.overlaps: list[str] = []
        self.position = 0
        world = self

        class Watched(MemoryLeaseStore):
            def _store(self, key: str, item: Item | None) -> None:
                super()._store(key, item)
                world.check(f"write of {key}")

        self.store = Watched()

    def check(self, event: str) -> None:
        for key in KEYS:
            holders = [process.name for process in self.processes if process.loop.is_held(key)]
            if len(holders) > 1:
                self.overlaps.append(f"{asyncio.get_running_loop().time():.2f} {event}: {key} held by {holders}")

    async def begin(self, run_id: str) -> Process:
        process = Process(self, f"w{next(self.numbers)}", run_id)
        await process.loop.start(Listener(self, process.name), f"grpc://{process.name}")
        self.processes.append(process)
        process.loop.want({key: LeaseInfo() for key in KEYS})
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
                await self.begin(process.run_id)

    async def read(self) -> None:
        """Move the checkpoints of what is held, all the time."""
        while True:
            self.position += 1
            for process in self.processes:
                for key in process.loop.held:
                    process.loop.checkpoint(key, Position.after(self.position))
            self.check("now")
            await asyncio.sleep(0.1)

    async def end(self) -> None:
        for process in self.processes:
            process.network.running.set()
        await asyncio.gather(*(process.loop.stop() for process in self.processes))
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
            assert old.checkpoint is not None
            assert new.checkpoint is not None
            assert new.checkpoint.reaches(old.checkpoint), f"{key}: {old} -> {new}"
            asked = old.handover_to != new.handover_to and new.handover_to is not None
            assert new.counter == old.counter + (not asked), f"{key}: {old} -> {new}"


@pytest.mark.parametrize("seed", range(20))
def test_one_run_with_several_workers(seed: int) -> None:
    async def main() -> None:
        world = World(seed)
        reading = asyncio.create_task(world.read())
        for _ in range(world.random.randint(1, 4)):
            await world.begin("run")
            await asyncio.sleep(world.random.choice([0, 3]))
        for _ in range(8):
            troubles = [world.trouble() for _ in range(world.random.randint(1, 3))]
            await asyncio.gather(*troubles)
            await asyncio.sleep(world.random.choice([0, 2, 15]))
        await asyncio.sleep(150)
        alive = [process for process in world.processes if not process.dead]
        counts = sorted(len(process.loop.held) for process in alive)
        assert sum(counts) == len(KEYS), counts
        assert counts[-1] - counts[0] <= 1, counts
        reading.cancel()
        last = world.position
        await world.end()
        world.verify_trace()
        assert world.refused == []
        rows = [world.store.lease(key) for key in KEYS]
        assert {row.owner for row in rows} == {None}
        assert all(row.checkpoint is not None and row.checkpoint.reaches(Position.after(last - 1)) for row in rows)

    run(main())


@pytest.mark.parametrize("seed", range(100, 115))
def test_runs_that_compete(seed: int) -> None:
    async def main() -> None:
        world = World(seed)
        reading = asyncio.create_task(world.read())
        for i in range(world.random.randint(2, 3)):
            await world.begin(f"run {i}")
            await asyncio.sleep(world.random.choice([0, 0, 20]))
        for i in range(6):
            await asyncio.gather(*(world.trouble() for _ in range(2)))
            for process in [each for each in world.processes if each.loop.failure and not each.dead]:
                process.dead = True  # a refused query ends, and is started again
                await process.loop.stop()
                await world.begin(f"{process.run_id} again {i}")
        *others, survivor = [process for process in world.processes if not process.dead]
        for process in others:
            await process.loop.stop()
        for _ in range(3):
            await asyncio.sleep(40)
            if survivor.loop.failure:  # by one of the others, before it stopped
                await survivor.loop.stop()
                survivor = await world.begin("the last run")
        assert len(survivor.loop.held) == len(KEYS)
        reading.cancel()
        await world.end()
        world.verify_trace()

    run(main())
