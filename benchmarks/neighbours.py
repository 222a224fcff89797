"""The latency of three shards beside a fourth whose reader is stuck, from PutRecord to the reader in the fetcher.

Each shard has its own reader. The fourth shard has either nothing to read, or much more than the budget and a reader that
stops after one chunk. Both cases take turns, each with a new fetcher.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Final

from pybase64 import b64decode

from benchmarks.earlier import endless, fetcher_of
from benchmarks.figures import Figure, Goal
from benchmarks.machine import AwsProcess
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.run.whole_run import WholeRun
from kinesis_efo_local import Settings
from tests.support.fetching import reading
from tests.support.world import World, make_world, wait_until

SHARDS: Final = 4
RUNS: Final = 5
WARM_UP_SECONDS: Final = 3.0
RUN_SECONDS: Final = 4.0
PAUSE: Final = 0.01
BUFFER: Final = "16m"
STUCK_BYTES: Final = 48 << 20
EVER: Final = Position.after(10**60)


def run() -> list[Figure]:
    """Measure."""
    settings = Settings(consumer_creating_seconds=0.0, read_limit=False)
    tails: dict[bool, list[float]] = {False: [], True: []}
    with AwsProcess(settings=settings) as aws, tempfile.TemporaryDirectory() as place:
        for _ in range(RUNS):
            for stuck in (False, True):
                tails[stuck].append(_tail(make_world(aws, Path(place), {"orders": SHARDS}), stuck=stuck))
    free = Figure("one of 4 shards stuck", "p99, nothing stuck", "ms", tuple(tails[False]))
    goal = Goal(1.5, least=False, of_ratio=True)
    return [free, Figure.against(free, free.case, "p99, one stuck", tails[True], goal)]


def _tail(world: World, *, stuck: bool) -> float:
    """The 99th percentile of the latency of the other shards' records, milliseconds."""
    starts = [int(shard["HashKeyRange"]["StartingHashKey"]) for shard in world.shards()]
    ids = [shard["ShardId"] for shard in world.shards()]
    name = world.streams["orders"]
    if stuck:
        for _ in range(STUCK_BYTES >> 20):
            world.kinesis.put_record(
                StreamName=name, PartitionKey="k", ExplicitHashKey=str(starts[0]), Data=bytes((1 << 20) - 10)
            )
    ages: list[float] = []
    with reading(world, bufferBytes=BUFFER, leaseTimeout="10s") as r:
        r.poll()
        whole, loop = r.runtime.whole, r.runtime._loop
        fetcher = fetcher_of(whole)
        readers = [
            asyncio.run_coroutine_threadsafe(_read(whole, each, None if each == ids[0] else ages), loop) for each in ids
        ]
        if stuck:
            wait_until(lambda: fetcher.budget.used > fetcher.budget.limit // 2)
        begin = time.monotonic()
        while time.monotonic() < begin + WARM_UP_SECONDS + RUN_SECONDS:
            if time.monotonic() < begin + WARM_UP_SECONDS:
                ages.clear()
            for start in starts[1:]:
                world.kinesis.put_record(
                    StreamName=name, PartitionKey="k", ExplicitHashKey=str(start), Data=b"%17.6f" % time.time()
                )
            time.sleep(PAUSE)
        for reader in readers:
            reader.cancel()
    return quantiles(ages, n=100)[98] * 1000


async def _read(whole: WholeRun, shard: str, ages: list[float] | None) -> None:
    """Append the ages of records on arrival to `ages`; without a list, take the first chunk and get stuck."""
    async for payloads in endless(whole, ShardRange(ShardKey("orders", shard), TRIM_HORIZON, EVER, EVER.value)):
        if ages is None:
            await asyncio.Event().wait()
            return
        now = time.time()
        for payload in payloads:
            sent = [part[: part.index(b'"')] for part in payload.split(b'"Data":"')[1:]]
            ages += [now - float(b64decode(text)) for text in sent]
