"""What the tasks of a query are served in the planner's process, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kinesis_efo.errors import DataLossError
from kinesis_efo.fetcher.work import WhereRequest
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_query_fetching import busy_stream, fetching_of, one_in_front
from tests.unit.sharing.test_several_queries import HOME, Program, Reader, horizon, key, scenario


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


async def _logged(program: Program) -> tuple[Reader, Reader, ShardRange]:
    """A query that has everything, one that has yet to repeat a micro-batch of as much, and its range."""
    first, second = program.join(horizon(program.stream)), program.join(horizon(program.stream))
    await second.query.check_replay(second.offset, ())
    await first.until(lambda: first.has_all)
    (wanted,) = second.offset.ranges_to(first.offset)
    return first, second, wanted


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_the_loss_of_a_range_fails_its_task_and_no_other_query(apart: bool) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, *[30] * 10)
        async with Program(stream, apart=apart) as program:
            _, second, wanted = await _logged(program)
            lost = ShardRange(wanted.key, wanted.after, wanted.through, wanted.through.value - 1)
            with pytest.raises(DataLossError):
                await second.read(lost)
            assert program.run.failure.error is None

    run(asyncio.wait_for(main(), 3600))


@pytest.mark.slow
@scenario
async def test_a_range_whose_last_record_is_gone_fails_its_task_with_fetchers_elsewhere_too() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 10)
    async with Program(stream, fetchers=2) as program:
        _, second, wanted = await _logged(program)
        with pytest.raises(DataLossError):
            await second.read(ShardRange(wanted.key, wanted.after, wanted.through, wanted.through.value - 1))


@scenario
async def test_a_task_ahead_of_what_its_fetcher_reads_is_sent_to_the_run() -> None:
    stream = busy_stream()
    async with Program(stream, fetchers=1) as program:
        behind, front = await one_in_front(program, 17)
        fetching_of(front).follow(front.offset)
        request = WhereRequest.of([ShardRange(key(0), front.offset[key(0)], SHARD_END)], 60.0, front.name)
        program.cluster.begin_at(key(0), TRIM_HORIZON)
        await behind.until(lambda: bool(behind.rows))
        assert (await program.cluster.where(request)).fetchers == [HOME]
