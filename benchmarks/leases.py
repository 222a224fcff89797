"""What a run asks of DynamoDB: writes per minute while its shards are idle or busy, and the time until all is written at a stop.

In virtual time, with the table's rules in memory: the figures are counts, and the same on every machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Final

from benchmarks.figures import Figure, Goal
from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.checkpoints import Checkpoints
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.run import LeaseListener, RunLease
from kinesis_efo.positions import Position, ShardKey
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.virtual_time import LoopClock
from tests.support.virtual_time import run as in_virtual_time

SHARDS: Final = (1, 100, 1000, 8000)
MINUTES: Final = 5
IDLE_SECONDS: Final = 60.0
"""An idle shard's position moves with `idleCheckpointInterval`."""

_RENEWALS: Final = 18
_MOST: Final = Goal(25.0 * 60 + _RENEWALS, least=False)
_AS_BEFORE: Final = Goal(_RENEWALS + 1, least=False)
_AT_STOP: Final = Goal(4.0, least=False)


def run() -> list[Figure]:
    """Measure."""
    figures = []
    for shards in SHARDS:
        case = f"{shards:,} shard{'s' if shards > 1 else ''}"
        idle, _ = in_virtual_time(_measured(shards, IDLE_SECONDS))
        busy, stop = in_virtual_time(_measured(shards, 1.0))
        figures += [
            Figure(case, "idle", "writes a minute", idle, goal=_AS_BEFORE if shards == 1 else _MOST),
            Figure(case, "busy", "writes a minute", busy, goal=_MOST),
            Figure(case, "last checkpoints, at a stop", "s", (stop,), goal=_AT_STOP),
        ]
    return figures


class _Reader(LeaseListener):
    checkpoints: Checkpoints

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        self.checkpoints.load(stream, rows)


async def _measured(shards: int, every: float) -> tuple[tuple[float, ...], float]:
    """Writes in each minute, and the seconds of the stop."""
    table, clock, keys = MemoryLeaseStore(), LoopClock(), LeaseKeys({"orders": "orders"})
    network = Network(table, Random(1))
    lease, reader = RunLease(network, "run", keys, Timing(10.0), clock, Random(1)), _Reader()
    reader.checkpoints = Checkpoints(
        network,
        keys,
        lease.epoch,
        StreamIdentity,
        25.0,
        clock,
        read_until=lambda _shard, _position: None,
        failure=reader.failure,
    )
    read = [ShardKey("orders", f"shardId-{number:012}") for number in range(shards)]
    await lease.start(reader, "grpc://here")
    reader.checkpoints.start()
    lease.request(["orders"])
    await lease.wait_held(["orders"])
    reader.checkpoints.request({shard: LeaseInfo() for shard in read})
    await asyncio.sleep(60 + shards / 25.0)
    assert len(table.items) == shards + 1
    counts = []
    moves = 0
    for _ in range(MINUTES):
        before = len(table.writes)
        for _ in range(round(60 / every)):
            moves += 1
            for shard in read:
                reader.checkpoints.update(shard, Position.after(moves))
            await asyncio.sleep(every)
        counts.append(float(len(table.writes) - before))
    began = clock.monotonic()
    await reader.checkpoints.stop()
    took = clock.monotonic() - began
    await lease.stop()
    reader.failure.raise_if_set()
    return tuple(counts), took
