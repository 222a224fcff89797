"""What the queries of a run hold of its buffers and of its budget, and what is given back when one leaves, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kinesis_efo.positions import TRIM_HORIZON, Offset
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_several_queries import NO_LIMIT, Program, horizon, key, scenario


@scenario
async def test_a_query_may_leave_before_another_one_has_polled() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Program(stream) as program:
        first, second = program.join(horizon(stream)), program.join(horizon(stream))
        await second.batch()
        await second.leave()
        await first.until(lambda: first.has_all)


@pytest.mark.parametrize("fetchers", [0, 2])
@pytest.mark.parametrize("others", [1, 2])
def test_a_shard_that_only_a_query_reads_which_leaves_is_not_read_any_more(others: int, fetchers: int) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1, event_records=(8,))
        stream.put(0, *[1000] * 1000)
        stream.split(0)
        async with Program(stream, 32 << 10, fetchers=fetchers) as program:
            for each in [program.join(horizon(stream)) for _ in range(others)]:
                await each.until(lambda each=each: each.has_all and key(0) not in each.offset)  # type: ignore[misc]
                await each.batch()
            second = program.join(horizon(stream))
            await second.until(lambda: bool(second.rows))
            assert stream.open[key(0).shard]
            await second.leave()
            await asyncio.sleep(1)
            assert not stream.open[key(0).shard]
            assert stream.open[key(1).shard]

    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_only_the_slowest_goes_apart_when_another_one_finds_no_room() -> None:
    stream = ModelStream(shards=1, event_records=(4,))
    stream.put(0, *[1000] * 400)
    async with Program(stream, buffer_bytes=64 << 10) as program:
        fast, middle, slow = (program.join(horizon(stream)) for _ in range(3))
        await slow.poll()
        middle.max_records = 8
        await middle.batch()
        got = len(fast.rows)
        # Nobody else commits anything meanwhile.
        await fast.until(lambda: slow.query.reads_apart, 30)
        got = len(fast.rows)
        await fast.until(lambda: len(fast.rows) > got, 5)
        assert not middle.query.reads_apart
        await fast.until(lambda: fast.has_all, 60)
        for query in (middle, slow):
            query.max_records = NO_LIMIT
            await query.until(lambda query=query: query.has_all)  # type: ignore[misc]
            query.check()


@scenario
async def test_query_that_starves_gets_room_within_one_poll() -> None:
    stream = ModelStream(shards=1, event_records=(8,))
    stream.put(0, *[1000] * 400)
    stream.split(0)
    for child in (1, 2):
        stream.put(child, *[1000] * 400)
    async with Program(stream, buffer_bytes=64 << 10) as program:
        await program.join(horizon(stream)).poll()
        starves = program.join(Offset({key(1): TRIM_HORIZON, key(2): TRIM_HORIZON}))
        reply = await starves.query.poll(starves.offset, NO_LIMIT, NO_LIMIT, 60.0)
        assert any(shard.records for shard in reply.shards)


# -- what the lease table is told
