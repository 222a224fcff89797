"""A whole fetcher while the lease table is throttled, cut off, emptied, or served late: nothing lost, nothing twice.

In virtual time. Records keep coming and Spark keeps asking; the leases run out and come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from kinesis_efo.errors import TableUnavailableError
from kinesis_efo.positions import TRIM_HORIZON, ShardRange
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.fetcher.test_fetcher import Query, everything, expected, horizon, until_read

OUTAGE = 60.0
Spoil = Callable[[Network], None]


def throttle(network: Network) -> None:
    network.throttled = True


def cut(network: Network) -> None:
    network.cut = True


def lose_half(network: Network) -> None:
    network.lose_requests = network.lose_answers = 0.5


def crawl(network: Network) -> None:
    network.latency = 4.0


def mend(network: Network) -> None:
    network.throttled = network.cut = False
    network.lose_requests = network.lose_answers = 0.0
    network.latency = 0.005


async def put_for(stream: ModelStream, seconds: float) -> None:
    """Two records a second into each shard."""
    for _ in range(int(seconds)):
        for number in range(3):
            stream.put(number, 30, 30)
        await asyncio.sleep(1)


@pytest.mark.parametrize("spoil", [throttle, cut, lose_half, crawl])
def test_a_table_out_of_reach_for_a_minute(spoil: Spoil) -> None:
    async def main() -> None:
        stream = ModelStream(shards=3)
        network = Network(MemoryLeaseStore(), Random(7))
        loop = asyncio.get_running_loop()
        async with Query(stream, network) as query:  # type: ignore[arg-type]
            held = ["orders"]
            stream.put(0, 30)
            offset = await until_read(query, horizon(stream), 1)
            await query.leases.wait_held(held)
            putting = asyncio.create_task(put_for(stream, OUTAGE + 20))
            offset = await until_read(query, offset, 30)
            spoil(network)
            await asyncio.sleep(OUTAGE)
            if spoil in (throttle, cut):
                assert not any(map(query.leases.is_held, held))
                assert not any(stream.open.values()), "read without a lease"
            mend(network)
            mended = loop.time()
            await query.leases.wait_held(held)
            assert loop.time() - mended < 15
            await putting
            offset = await until_read(query, offset, len(everything(stream)))
            assert sorted(query.rows) == sorted(everything(stream)), "lost or doubled"
            await asyncio.sleep(10)
            assert {key: network.inner.lease(f"orders:{key.shard}").position for key in offset} == dict(offset)
        for task in list(network.stragglers):
            task.cancel()

    run(asyncio.wait_for(main(), 3600))


def test_a_task_that_reads_waits_for_minutes_until_the_table_is_back() -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        network = Network(MemoryLeaseStore(), Random(7))
        async with Query(stream, network) as query:  # type: ignore[arg-type]
            stream.put(0, 30, 30)
            begin = horizon(stream)
            while (end := await query.poll(begin)) == begin:
                pass
            [wanted] = begin.ranges_to(end)
            throttle(network)
            await asyncio.sleep(OUTAGE)
            assert not query.leases.is_held("orders")
            reading = asyncio.create_task(query.read(wanted))
            await asyncio.sleep(500)
            assert not reading.done()
            mend(network)
            assert await reading == expected(stream, wanted)

    run(asyncio.wait_for(main(), 3600))


def test_a_task_that_reads_fails_with_the_run_when_the_table_stays_away() -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        network = Network(MemoryLeaseStore(), Random(7))
        async with Query(stream, network) as query:  # type: ignore[arg-type]
            stream.put(0, 30)
            offset = await until_read(query, horizon(stream), 1)
            throttle(network)
            await asyncio.sleep(OUTAGE)
            [key] = offset
            with pytest.raises(TableUnavailableError, match=r"could not be used for 60\d s, given up"):
                await query.read(ShardRange(key, TRIM_HORIZON, offset[key]))

    run(asyncio.wait_for(main(), 3600))


def test_rows_deleted_while_they_are_in_use_are_written_again_where_they_stood() -> None:
    async def main() -> None:
        stream = ModelStream(shards=3)
        async with Query(stream) as query:
            putting = asyncio.create_task(put_for(stream, 60))
            offset = await until_read(query, horizon(stream), 30)
            for _ in range(5):
                await asyncio.sleep(10)
                query.store.items.clear()
                offset = await until_read(query, offset, len(query.rows) + 30)
            await putting
            offset = await until_read(query, offset, len(everything(stream)))
            assert sorted(query.rows) == sorted(everything(stream))
            await asyncio.sleep(10)
            assert {key: query.store.lease(f"orders:{key.shard}").position for key in offset} == dict(offset)

    run(asyncio.wait_for(main(), 3600))


def test_a_lease_that_comes_back_while_the_query_stops_begins_nothing() -> None:
    """Reading stops first. Then the last checkpoints are written, which may take as long as it takes to lose a lease and take it."""

    async def main() -> None:
        stream = ModelStream(shards=3)
        network = Network(MemoryLeaseStore(), Random(7))
        async with Query(stream, network) as query:  # type: ignore[arg-type]
            stream.put(0, 30)
            offset = await until_read(query, horizon(stream), 1)
            network.latency = 2.0
            await query.commit(offset)
            stopping = asyncio.create_task(query.run.stop())
            await asyncio.sleep(1)
            assert not list(query.fetcher.feeds)
            query.run.lease_lost("orders", None)
            query.run.lease_taken("orders", {})
            assert not stopping.done()
            await stopping
            assert not list(query.fetcher.feeds)
            assert not any(stream.open.values())

    run(main())
