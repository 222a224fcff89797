"""A shard that brings much, or whose reader is stuck, does not slow the others. In virtual time, in which only waiting takes time."""

import asyncio
import json
from random import Random
from statistics import quantiles

import pytest

from kinesis_efo.kinesis.stats import State
from kinesis_efo.positions import Mark, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.query import Query as Planning
from tests.emulator.memory_world import STREAM, MemoryWorld
from tests.emulator.query import NO_LIMIT, Query
from tests.support.planned import finish, planned

EVER = Position.after(10**60)


async def neighbours_latencies(
    shards: int, buffer_bytes: int, *, pause: float, before: int = 0, each: int = 0, rounds: int = 30
) -> tuple[list[float], State]:
    """Latencies from put to reader, seconds, of all shards but one, and the state of that one's subscription in the end.

    Args:
        shards: How many shards there are; up to 100 of them are read.
        buffer_bytes: The budget.
        pause: What the reader of the one takes for a chunk, seconds.
        before: How many large records it gets first.
        each: How many large records it gets in each round.
        rounds: How often the others get a record.
    """
    world = MemoryWorld(Random(1), shards=shards, settings={"read_limit": False}, buffer_bytes=buffer_bytes)
    stream = world.kinesis.state.streams[STREAM]
    keys = {stream.shard_for(f"k{number}", None).id: f"k{number}" for number in range(100)}
    hot, *others = sorted(keys)
    latencies: list[float] = []
    loop = asyncio.get_running_loop()

    async with Query(world.application) as query:
        offset = await query.begin()
        await query.planner.poll(offset, NO_LIMIT, NO_LIMIT, 1.0)
        query.planner.plan(Offset(dict.fromkeys(offset, EVER), mark=Mark("query", 1)))
        sent, stats = 0.0, query.streams["orders"].subscriptions.stats

        async def read(shard: str) -> None:
            wanted = ShardRange(ShardKey("orders", shard), offset[ShardKey("orders", shard)], EVER, EVER.value)
            async for chunk in query.run.serving.of("query").read(wanted):
                if shard == hot:
                    await asyncio.sleep(pause)
                else:
                    latencies.extend([loop.time() - sent] * len(chunk))

        readers = [asyncio.create_task(read(shard)) for shard in keys]
        for _ in range(before):
            world.put(keys[hot], 500_000)
        await asyncio.sleep(60)
        assert before or all(each.state is State.STREAMING for each in stats.values())
        for _ in range(rounds):
            for _ in range(each):
                world.put(keys[hot], 900_000)
            sent = loop.time()
            for shard in others:
                world.put(keys[shard], 1_000)
            await asyncio.sleep(1.0)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert query.fetcher.budget.used <= buffer_bytes
        assert len(latencies) == rounds * len(others)
        return latencies, stats[hot].state


async def test_stuck_shard_does_not_delay_the_others() -> None:
    free, _ = await neighbours_latencies(4, 2 << 20, pause=0.0, rounds=300)
    blocked, state = await neighbours_latencies(4, 2 << 20, pause=1e9, before=30, rounds=300)
    assert quantiles(blocked, n=100)[98] <= 1.5 * quantiles(free, n=100)[98] + 1e-6
    assert state is State.PAUSED, "closed for want of capacity, instead of open and idle"


@pytest.mark.long
async def test_one_hot_shard_of_a_thousand_hardly_delays_others() -> None:
    latencies, _ = await neighbours_latencies(1000, 64 << 20, pause=1.0, each=4)
    assert max(latencies) <= 2.0


async def read_on(query: Query, planner: Planning, name: str, offset: Offset) -> None:
    """Plan and read, without an end."""
    planner.begin(offset)
    while True:
        finish(planner, offset)
        end = planned(offset, await planner.poll(offset, NO_LIMIT, NO_LIMIT, 1.0))
        for wanted in offset.ranges_to(end):
            async for _ in query.run.serving.of(name).read(wanted):
                pass
        offset = end


# Both rows are for one subscription, which Kinesis moves every five seconds: each first event moved it away again.
async def test_queries_without_getrecords_give_each_other_time_to_plan() -> None:
    world = MemoryWorld(shards=1)
    world.put_some(30)
    async with Query(world.application) as query:
        begin = await query.begin()
        (key,) = begin
        reply = await query.planner.poll(begin, NO_LIMIT, 10, 60.0)
        behind = Offset(planned(begin, reply))
    ahead = Offset({key: Position.at_timestamp(int(1000 * world.clock.time()))})
    world.put_some(30)
    async with Query(world.application) as query:
        planners = query.planner, Planning(query.run, name="behind")
        given = zip(planners, ("query", "behind"), (ahead, behind), strict=True)
        reading = [asyncio.create_task(read_on(query, *each)) for each in given]
        begun = ahead[key], behind[key]
        async with asyncio.timeout(120):
            while any((each.progress.finished or ahead)[key] in begun for each in planners):  # noqa: ASYNC110
                await asyncio.sleep(1)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_second_query_at_latest_skips_no_new_record() -> None:
    world = MemoryWorld(shards=1)
    world.put_some(5)
    async with Query(world.application) as query:
        offset = await query.begin()
        reading = asyncio.create_task(read_on(query, query.planner, "query", offset))
        await asyncio.sleep(2)
        (key,) = offset
        late, now = Planning(query.run, name="late"), world.clock.time()
        asking = asyncio.create_task(late.start_at_latest(Offset({key: Position.at_timestamp(int(1000 * now))})))
        while not asking.done():
            world.put("k")
            await asyncio.sleep(1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    records = world.kinesis.state.streams[STREAM].shards[key.shard].keep().records
    first = next(json.loads(record.json)["SequenceNumber"] for record in records if record.arrival > now)
    assert asking.result()[key].precedes(int(first))


async def test_latest_does_not_begin_at_an_old_end_that_seemed_the_tip() -> None:
    wrong = {"wrong_answers": "quiet", "wrong_answers_rate": 0.9, "wrong_answers_in_a_row": 1}
    world = MemoryWorld(shards=1, settings=wrong)
    world.put_some(30)
    await asyncio.sleep(600)
    world.put("k")
    async with Query(world.application) as query:
        offset = await query.begin()
        reading = asyncio.create_task(read_on(query, query.planner, "query", offset))
        await asyncio.sleep(1)
        (key,) = offset
        late, now = Planning(query.run, name="late"), int(1000 * world.clock.time())
        begin = await late.start_at_latest(Offset({key: Position.at_timestamp(now)}))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert begin[key] == Position.at_timestamp(now)
