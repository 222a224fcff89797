"""What a query reads apart from others: when that begins, when it is over, and what ends it, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kinesis_efo.decisions.losses import Known
from kinesis_efo.errors import FetcherError, FetcherUnreachableError, KinesisEfoError, LeaseTableError
from kinesis_efo.failure import Failure
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.sharing.apart_reading import ApartReading
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_query_fetching import busy_stream, far_behind, fetching_of, numbers_of
from tests.unit.sharing.test_several_queries import NO_LIMIT, Program, horizon, key, scenario, together


def test_what_is_to_be_read_apart_is_not_known_before_it_is() -> None:
    unused: Any = None
    apart = ApartReading(unused, unused, unused)
    apart.claims[key(0)] = None
    for shard in (key(0), key(1)):
        assert apart.found(shard) is None
        assert apart.plans(shard) is None
    assert not apart.reading


@scenario
async def test_what_is_read_apart_is_known_of_its_shards_only() -> None:
    stream = ModelStream(shards=2)
    for number in range(2):
        stream.put(number, *[30] * 20)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        await second.poll()
        await asyncio.sleep(1)
        for number in range(2):
            last = stream[number].records[-1][0]
            wanted = ShardRange(key(number), TRIM_HORIZON, Position.after(last))
            assert second.query.last_records([wanted]) == {key(number): last}
        assert second.query.last_records([ShardRange(key(3), TRIM_HORIZON, SHARD_END)]) == {}


@scenario
async def test_a_query_that_has_read_a_shard_apart_to_its_end_may_be_alone_again() -> None:
    stream = busy_stream()
    async with Program(stream) as program:
        first, second = await far_behind(program)
        stream.split(0)
        second.max_records = NO_LIMIT
        await together(first, second)
        await second.until(lambda: key(0) not in second.offset)
        await second.batch()
        assert not fetching_of(second).is_apart
        await first.leave()
        assert program.fetching.sharing.alone


@scenario
async def test_what_only_tasks_have_read_apart_is_over_with_the_commit() -> None:
    stream = busy_stream()
    async with Program(stream, 4 << 20) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        # Spark's log has a micro-batch that was not committed.
        second.planned = first.offset
        await second.again()
        await second.batch()
        assert second.has_all
        await together(first, second)
        await first.batch()
        await second.batch()
        assert program.polled.opened
        assert not fetching_of(second).is_apart
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls


@scenario
async def test_a_task_that_reads_apart_fails_with_the_run() -> None:
    stream = busy_stream()
    async with Program(stream) as program:
        _, second = await far_behind(program)
        last = 1 << 60
        wanted = ShardRange(key(0), Position.after(numbers_of(stream)[-1] - 1), Position.after(last), last)
        task = asyncio.create_task(program.payloads(second.name, wanted))
        await asyncio.sleep(5)
        assert not task.done()
        program.run.failure.set(LeaseTableError("the table is gone"))
        with pytest.raises(LeaseTableError):
            await asyncio.wait_for(task, 5)


class Started:
    """In place of a fetcher and of the run."""

    def __init__(self) -> None:
        self.coordinator: Any = self
        self.failure = Failure()
        self.refused: Any = None

    def fetch_apart(self) -> Started:
        return self

    def start(self, coordinator: Any, listener: Any) -> None:
        self.started_with = coordinator

    def forbid_apart(self, why: Any) -> None: ...

    def may_read(self, shard: ShardKey) -> bool:
        return shard == key(0)

    def refusal(self, shard: ShardKey, seconds: float) -> FetcherError:
        return FetcherError(f"{shard} {seconds}")

    def known(self, shard: ShardKey, position: Position) -> Known:
        return Known(77.0 + position.value)


def test_what_reads_apart_asks_the_run() -> None:
    rules: Any = Started()
    failed: list[KinesisEfoError] = []
    assert ApartReading(rules, rules, failed.append).fetcher is rules
    asked = rules.started_with
    assert (asked.may_read(key(0)), asked.may_read(key(1))) == (True, False)
    assert str(asked.refusal(key(0), 5.0)) == f"{key(0)} 5.0"
    assert asked.known(key(0), Position.after(3)) == Known(80.0)
    error = LeaseTableError("the table is gone")
    rules.failure.adopt(error)
    assert asked.failure.error is error


@pytest.mark.parametrize("others", [1, 2])
def test_nothing_is_fetched_for_a_task_whose_query_has_left(others: int) -> None:
    async def main() -> None:
        stream = busy_stream()
        async with Program(stream, 256 << 10) as program:
            first, *_ = (program.join(horizon(stream)) for _ in range(others))
            await first.poll()
            second = program.join(horizon(stream))
            await second.poll()
            serving: Any = program.fetching.of(second.name)  # type: ignore[union-attr]
            last = numbers_of(stream)[-1]
            chunks = serving.read(ShardRange(key(0), TRIM_HORIZON, Position.after(last), last))
            await anext(chunks)
            await second.leave()
            await first.until(lambda: first.has_all)
            calls = len(stream.subscribed), len(program.polled.opened)
            with pytest.raises(FetcherUnreachableError):
                async for _ in chunks:
                    pass
            assert (len(stream.subscribed), len(program.polled.opened)) == calls
            assert program.budget.limit == 256 << 10

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_a_query_may_leave_a_run_that_has_stopped() -> None:
    async with Program(busy_stream()) as program:
        first, second = await far_behind(program)
    await second.leave()
    await first.leave()
