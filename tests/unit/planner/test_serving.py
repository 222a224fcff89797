"""What the tasks of a query are served in the planner's process, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kinesis_efo.fetcher.work import WhereRequest
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.planner.test_query_fetching import fetching_of
from tests.unit.planner.test_several_queries import HOME, Program, horizon, key, scenario


@pytest.mark.parametrize("fetchers", [0, 2])
def test_a_task_asks_for_the_hash_range_of_its_shard(fetchers: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        async with Program(stream, fetchers=fetchers) as program:
            first = program.join(horizon(stream))
            await first.poll()
            assert await program.fetching.of(first.name).hash_range(key(0)) == stream[0].hashes

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_what_ranges_without_records_wait_for_is_read_at_once_for_a_query_that_is_alone() -> None:
    stream = ModelStream(shards=2)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await asyncio.sleep(1)
        serving, began = program.fetching.of(first.name), program.clock.monotonic()
        ranges = [ShardRange(key(number), TRIM_HORIZON, Position.after(2000)) for number in range(2)]
        assert serving.expect(ranges) == began
        await asyncio.sleep(1)
        assert len(stream.subscribed) == 2


@pytest.mark.parametrize("fetchers", [0, 2])
def test_what_ranges_without_records_wait_for_is_read_at_once_for_a_query_that_is_behind(fetchers: int) -> None:
    run(asyncio.wait_for(behind(fetchers), 3600))


async def behind(fetchers: int) -> None:
    stream = ModelStream(shards=3)
    async with Program(stream, fetchers=fetchers) as program:
        first = program.join(horizon(stream))
        for number in range(3):
            stream.put(number, *[30] * 20)
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        fetching_of(second).follow(second.offset)
        serving = program.fetching.of(second.name)
        end, number = first.offset[key(0)], stream[1].records[3][0]
        began = program.clock.monotonic()
        covered = ShardRange(key(0), end, end)
        known = ShardRange(key(1), TRIM_HORIZON, Position.after(number), number)
        closed = ShardRange(key(2), TRIM_HORIZON, SHARD_END)
        assert serving.expect([covered, known, closed]) == began
        await asyncio.sleep(1)
        assert not program.polled.opened
        early = Position.after(stream[1].records[0][0])
        assert serving.expect([ShardRange(key(1), TRIM_HORIZON, early)]) == began + 1
        await asyncio.sleep(1)
        assert [shard for _, shard, _ in program.polled.opened] == [key(1).shard]
        assert len(stream.subscribed) == 3


@scenario
async def test_a_task_of_a_query_that_is_behind_is_sent_to_the_planner_and_takes_the_shard_from_nobody() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 20)
    async with Program(stream, fetchers=1) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        await first.batch()
        second = program.join(horizon(stream))
        fetching_of(second).follow(second.offset)
        (host,) = program.hosts
        end = first.offset[key(0)]
        for reader, after, there in ((second, TRIM_HORIZON, HOME), (first, end, host.address)):
            request = WhereRequest.of([ShardRange(key(0), after, SHARD_END)], 60.0, reader.name)
            assert (await program.cluster.where(request)).fetchers == [there]
        assert program.cluster.assignments.address(key(0)) == host.address
