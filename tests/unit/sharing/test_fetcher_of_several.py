"""A fetcher that several queries share, or that reads apart for one of them, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from kinesis_efo.errors import AccessRefusedError, DataLossError
from kinesis_efo.fetcher.buffer import NotBufferedError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_query_fetching import busy_stream, far_behind, fetching_of, numbers_of
from tests.unit.sharing.test_several_queries import Program, horizon, key, scenario


@scenario
async def test_a_fetcher_elsewhere_does_not_begin_a_shard_anew_for_a_task_of_one_of_several_queries() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 20)
    async with Program(stream, fetchers=1) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        for query in (first, second):
            await query.until(lambda query=query: query.has_all)  # type: ignore[misc]
        await asyncio.sleep(10)
        (host,) = program.hosts
        numbers, calls = numbers_of(stream), len(stream.subscribed)
        host.fetcher.expect([ShardRange(key(0), TRIM_HORIZON, Position.after(numbers[0]))])
        with pytest.raises(NotBufferedError):
            async for _ in host.fetcher.read(
                ShardRange(key(0), TRIM_HORIZON, Position.after(numbers[-1]), numbers[-1])
            ):
                pass
        await asyncio.sleep(10)
        assert len(stream.subscribed) == calls


@scenario
async def test_for_a_query_that_is_alone_a_shard_begins_anew_for_a_range_without_records() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 20)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        number = numbers_of(stream)[0]
        for wanted in (
            ShardRange(key(0), TRIM_HORIZON, Position.after(number), number),
            ShardRange(key(0), TRIM_HORIZON, SHARD_END),
        ):
            program.fetcher.expect([wanted])
            await asyncio.sleep(10)
            assert len(stream.subscribed) == 1, "it begins when it is read"
        program.fetcher.expect([ShardRange(key(0), TRIM_HORIZON, Position.after(number))])
        await asyncio.sleep(10)
        assert len(stream.subscribed) == 2


@scenario
async def test_the_subscription_does_not_go_back_under_a_task_that_reads() -> None:
    stream = busy_stream()
    async with Program(stream, 64 << 10) as program:
        program.fetching.sharing.forbid_apart(AccessRefusedError("GetRecords is not allowed"))
        first = program.join(horizon(stream))
        first.max_records = 100
        await first.batch()
        await first.poll()
        second = program.join(horizon(stream))
        last = numbers_of(stream)[-1]
        serving: Any = program.fetching.of(first.name)  # type: ignore[union-attr]
        async with aclosing(
            serving.read(ShardRange(key(0), first.offset[key(0)], Position.after(last), last))
        ) as chunks:
            await anext(chunks)
            calls = len(stream.subscribed)
            for _ in range(20):
                await second.poll()
            assert len(stream.subscribed) == calls
        await second.until(lambda: bool(second.rows))


@scenario
async def test_how_a_shard_is_read_is_told_of_its_subscription_or_of_what_is_read_apart() -> None:
    async with Program(busy_stream()) as program:
        _, second = await far_behind(program)
        (shared,) = program.fetching.statuses()
        (apart,) = fetching_of(second)._apart.fetcher.statuses()
        assert shared.subscription is not None
        assert apart.subscription is not None
        assert shared.subscription != apart.subscription


@scenario
async def test_a_range_is_not_given_up_while_records_come() -> None:
    stream = ModelStream(shards=1)
    async with Program(stream) as program:
        first = program.join(horizon(stream))
        await first.poll()
        never = 1 << 60
        wanted = ShardRange(key(0), TRIM_HORIZON, Position.after(never), never)
        task = asyncio.create_task(program.payloads(first.name, wanted))
        for _ in range(4):
            await asyncio.sleep(400)
            stream.put(0, 30)
        await asyncio.sleep(500)
        assert not task.done()
        await asyncio.sleep(200)
        assert task.exception() is not None


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 2])
def test_a_record_that_was_passed_over_is_asked_for_apart_if_others_use_the_subscription(queries: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, *[30] * 20)
        async with Program(stream) as program:
            readers = [program.join(horizon(stream)) for _ in range(queries)]
            for reader in readers:
                await reader.poll()
            gone = numbers_of(stream)[9] + 5
            with pytest.raises(DataLossError):
                await program.payloads(readers[0].name, ShardRange(key(0), TRIM_HORIZON, Position.after(gone), gone))
            assert (len(stream.subscribed) == 1) == (queries == 2)
            assert bool(program.polled.opened) == (queries == 2)

    run(asyncio.wait_for(main(), 3600))
