"""How one query of several comes to its records: from what all share, apart from them, and from one to the other, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from kinesis_efo.errors import AccessRefusedError, DataLossError, FetcherUnreachableError, RetriesExhaustedError
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardRange
from kinesis_efo.sharing.query_fetching import QueryFetching
from tests.support.model_stream import ModelStream
from tests.support.transports import refused
from tests.support.virtual_time import LoopClock, run
from tests.unit.sharing.test_several_queries import (
    NO_LIMIT,
    Program,
    Reader,
    horizon,
    key,
    refuse_get_records,
    scenario,
    together,
)

WHOLE = 1 << 20


def fetching_of(query: Reader) -> QueryFetching:
    return query.program.fetching.sharing.named(query.name)


async def far_behind(program: Program) -> tuple[Reader, Reader]:
    """A query that has everything, and one that has just begun to read apart."""
    first = program.join(horizon(program.stream))
    await first.until(lambda: first.has_all)
    second = program.join(horizon(program.stream))
    second.max_records = 10
    await second.until(lambda: bool(second.rows))
    assert second.query.reads_apart
    return first, second


async def one_in_front(program: Program, records: int) -> tuple[Reader, Reader]:
    """A query at the beginning, for which the subscription is open, and one in front of it: as many records before the end."""
    behind = program.join(horizon(program.stream))
    await behind.poll()
    return behind, program.join(Offset({key(0): Position.after(numbers_of(program.stream)[-records])}))


def busy_stream() -> ModelStream:
    stream = ModelStream(shards=1, event_records=(8,))
    stream.put(0, *[1000] * 2000)
    return stream


def numbers_of(stream: ModelStream) -> list[int]:
    return [number for number, _ in stream[0].records]


@scenario
async def test_nothing_is_read_apart_for_a_query_that_has_left_and_its_calls_fail() -> None:
    async with Program(busy_stream(), 16 * WHOLE) as program:
        _, second = await far_behind(program)
        waiting = asyncio.create_task(second.query.poll(second.offset, NO_LIMIT, NO_LIMIT, 3000.0))
        await second.leave()
        with pytest.raises(FetcherUnreachableError):
            await second.query.poll(second.offset, NO_LIMIT, NO_LIMIT, 3000.0)
        await asyncio.gather(waiting, return_exceptions=True)
        assert program.budget.limit == 16 * WHOLE
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls


# -- the lease


@pytest.mark.parametrize("fetchers", [0, 2])
def test_what_a_query_reads_stops_with_the_lease_and_goes_on_with_it(fetchers: int) -> None:
    run(asyncio.wait_for(without_the_lease(fetchers), 3600))


async def without_the_lease(fetchers: int) -> None:
    stream = busy_stream()
    async with Program(stream, 16 * WHOLE, fetchers=fetchers) as program:
        first, second = await far_behind(program)
        await first.batch()
        await second.poll()
        program.run.lease_lost("orders", None)
        program.run.leases.is_held = lambda _: False  # type: ignore[method-assign]
        await asyncio.sleep(1)
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls
        assert not stream.open[key(0).shard]
        del program.run.leases.is_held  # type: ignore[method-assign]
        program.run.lease_taken("orders", {})
        # Nobody polls yet.
        await asyncio.sleep(3)
        assert stream.open[key(0).shard]
        # While a fetcher elsewhere has told nothing of its new buffer, nobody is behind it.
        assert fetchers or len(program.polled.limits_asked) > calls
        second.max_records = NO_LIMIT
        await together(first, second)


def range_of(query: Reader, last: int) -> ShardRange:
    return ShardRange(key(0), query.offset[key(0)], Position.after(last), last)


# -- where a query begins that begins now


# -- where a query ends that reads what is there


@pytest.mark.parametrize("fetchers", [0, 2])
def test_shared_subscription_proves_a_tip_with_several_events(fetchers: int) -> None:
    run(asyncio.wait_for(sent_since(fetchers), 3600))


async def sent_since(fetchers: int) -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Program(stream, fetchers=fetchers) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(first.offset)
        await second.poll()
        fetching = fetching_of(second)
        last = stream[0].records[-1][0]
        finding, began = asyncio.create_task(fetching.make_way([key(0)])), LoopClock().monotonic()
        while not finding.done():
            stream.put(0, 30)
            await asyncio.sleep(1)
        # What came within two seconds may have been sent before, and one answer proves nothing.
        assert 4 <= LoopClock().monotonic() - began <= 7
        assert finding.result()[key(0)].reaches(Position.after(last))
        assert len(stream.subscribed) == 1


# -- what others starve for


@scenario
async def test_a_task_that_reads_apart_is_told() -> None:
    async with Program(busy_stream(), 256 << 10) as program:
        _, second = await far_behind(program)
        assert not program.fetching.reading
        serving: Any = program.fetching.of(second.name)  # type: ignore[union-attr]
        wanted = range_of(second, program.stream[0].records[-1][0])
        async with aclosing(serving.read(wanted)) as chunks:
            async for _ in chunks:
                assert program.fetching.reading
                break
        assert not program.fetching.reading


@scenario
async def test_a_query_waits_in_front_for_some_seconds_each_time_before_the_subscription_goes_to_it() -> None:
    stream = busy_stream()
    numbers = numbers_of(stream)
    async with Program(stream, 32 << 10) as program:
        _, front = await one_in_front(program, 10)
        fetching = fetching_of(front)
        fetching.follow(front.offset)
        for seconds in (3.0, 3.0):
            fetching.buffers.buffered(key(0), front.offset[key(0)])
            await asyncio.sleep(seconds)
            fetching.buffers.buffered(key(0), Position.after(numbers[1]))
        fetching.buffers.buffered(key(0), front.offset[key(0)])
        await asyncio.sleep(4.9)
        assert len(stream.subscribed) == 1
        await asyncio.sleep(0.1)
        fetching.buffers.buffered(key(0), front.offset[key(0)])
        await asyncio.sleep(0.1)
        assert len(stream.subscribed) == 2
        # The others take it back.
        program.fetching.sharing.shared.begin_at(key(0), TRIM_HORIZON)  # type: ignore[union-attr]
        fetching.buffers.buffered(key(0), front.offset[key(0)])
        buffer = program.fetching.sharing.shared.found(key(0))  # type: ignore[union-attr]
        assert buffer is not None
        assert buffer.start == TRIM_HORIZON


@scenario
async def test_the_buffer_is_kept_for_a_query_from_the_micro_batch_on_that_reaches_it() -> None:
    stream = busy_stream()
    async with Program(stream, 16 * WHOLE) as program:
        first, second = await far_behind(program)
        fetching = fetching_of(second)
        await second.batch()
        assert fetching.claim(key(0)) is None
        second.max_records = NO_LIMIT
        end = second.offset
        while fetching.claim(key(0)) is None:
            await asyncio.sleep(1)
            end = await second.poll()
        buffer = program.fetching.sharing.shared.found(key(0))
        assert buffer is not None
        kept = buffer.start
        assert end[key(0)].reaches(kept)
        assert fetching.claim(key(0)) == kept
        stream.put(0, 30)
        await first.until(lambda: first.has_all)
        assert buffer.start == kept, "it would not meet what moves on"
        await together(first, second)
        assert not second.query.reads_apart


@scenario
async def test_where_the_subscription_goes_back_nothing_is_told_to_be_read_apart_any_more() -> None:
    stream = ModelStream(shards=1)
    async with Program(stream) as program:
        first = program.join(Offset({key(0): Position.at_timestamp(1_700_001_000_000)}))
        for _ in range(100):
            await first.batch()
        second = program.join(horizon(stream))
        while len(stream.subscribed) < 2:
            await second.poll()
        assert not second.query.reads_apart


@scenario
async def test_once_get_records_is_refused_nothing_is_read_apart_any_more() -> None:
    async with Program(busy_stream(), 16 * WHOLE) as program:
        first, second = await far_behind(program)
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) > calls + 10
        program.fetching.sharing.forbid_apart(AccessRefusedError("GetRecords is not allowed"))
        assert not fetching_of(second).is_apart
        calls = len(program.polled.limits_asked)
        await asyncio.sleep(60)
        assert len(program.polled.limits_asked) == calls
        second.max_records = NO_LIMIT
        await together(first, second)


@scenario
async def test_without_get_records_two_queries_may_begin_behind_the_others_at_once() -> None:
    stream = busy_stream()
    async with Program(stream) as program:
        refuse_get_records(program)
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        await together(first, program.join(horizon(stream)), program.join(horizon(stream)))


@scenario
async def test_without_get_records_the_subscription_goes_back_once_no_task_reads() -> None:
    stream = busy_stream()
    numbers = numbers_of(stream)
    async with Program(stream, apart=False) as program:
        first = program.join(Offset({key(0): Position.after(numbers[999])}))
        second = program.join(horizon(stream))
        await first.poll()
        serving: Any = program.fetching.of(first.name)  # type: ignore[union-attr]
        async with aclosing(serving.read(range_of(first, numbers[-1]))) as chunks:
            await anext(chunks)
            for _ in range(50):
                assert await second.poll() == second.offset
            assert len(stream.subscribed) == 1, "the task would get nothing more"
        await second.until(lambda: bool(second.rows), 20)
        assert len(stream.subscribed) == 2
        await together(first, second)


@scenario
async def test_a_query_may_read_one_shard_apart_and_share_another_one() -> None:
    stream = ModelStream(shards=2, event_records=(8,))
    stream.put(0, *[1000] * 500)
    stream.put(1, 30)
    async with Program(stream, WHOLE) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(Offset({key(0): TRIM_HORIZON, key(1): first.offset[key(1)]}))
        await second.batch()
        fetching = fetching_of(second)
        budgets = [(set(keys), limit) for keys, limit in fetching.buffers.budgets([key(0), key(1)])]
        assert budgets == [({key(0)}, WHOLE // 4), ({key(1)}, WHOLE * 3 // 4)]
        own, shared = fetching.reads(key(0)), fetching.reads(key(1))
        assert (own.apart, shared.apart) == (True, False)
        for number, reads in enumerate((own, shared)):
            assert reads.buffer is not None
            by: Any = reads.by
            until = fetching.buffers.read_until(key(number), reads.buffer.end)
            assert until == by.read_until(key(number), reads.buffer.end)
        await asyncio.sleep(20)
        assert shared.buffer is not None
        assert fetching.buffers.read_until(key(1), shared.buffer.end) is not None


# -- its tasks


@pytest.mark.parametrize("queries", [1, 2])
def test_a_task_that_loses_a_record_fails_the_run_only_if_its_query_is_alone(queries: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, 30)
        async with Program(stream) as program:
            readers = [program.join(horizon(stream)) for _ in range(queries)]
            for reader in readers:
                await reader.poll()
            last = stream[0].records[0][0] + 1
            wanted = ShardRange(key(0), TRIM_HORIZON, Position.after(last), last)
            with pytest.raises(DataLossError):
                await program.payloads(readers[0].name, wanted)
            assert (program.run.failure.error is not None) == (queries == 1)

    run(asyncio.wait_for(main(), 3600))


@pytest.mark.parametrize("fetchers", [0, 2])
def test_without_get_records_the_subscription_goes_back_for_a_task(fetchers: int) -> None:
    async def main() -> None:
        stream = busy_stream()
        async with Program(stream, fetchers=fetchers) as program:
            first = program.join(horizon(stream))
            await first.until(lambda: first.has_all)
            program.fetching.sharing.forbid_apart(AccessRefusedError("GetRecords is not allowed"))
            second = program.join(horizon(stream))
            # Until the fetchers know that there are two.
            await asyncio.sleep(30)
            last = numbers_of(stream)[-1]
            wanted = ShardRange(key(0), TRIM_HORIZON, Position.after(last), last)
            assert len(await asyncio.wait_for(program.payloads(second.name, wanted), 60)) == 250
            assert not program.polled.opened

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_a_query_fails_alone_if_what_it_reads_apart_cannot_be_read() -> None:
    async with Program(busy_stream()) as program:
        first, second = await far_behind(program)

        def fail(_: str) -> None:
            raise refused("InternalFailure", "try again", operation="GetRecords")

        program.polled.faults = fail
        second.offset = Offset({key(0): Position.after(numbers_of(program.stream)[999])})
        waiting = asyncio.create_task(second.query.poll(second.offset, NO_LIMIT, NO_LIMIT, 3000.0))
        await asyncio.wait({waiting}, timeout=1000)
        assert isinstance(waiting.exception(), RetriesExhaustedError)
        with pytest.raises(RetriesExhaustedError):
            await second.poll()
        await first.poll()
