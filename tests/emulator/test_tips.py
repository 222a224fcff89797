"""Queries that read up to the tips in one micro-batch, beside another query of the same run."""

import asyncio
from functools import partial

from kinesis_efo.kinesis.polling import separate_pace
from kinesis_efo.positions import Mark, Offset, Position, ShardKey
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query as Planning
from tests.emulator.memory_world import MemoryWorld
from tests.emulator.query import NO_LIMIT, Query

KEY = ShardKey("orders", "shardId-000000000000")


async def test_continuation_is_not_logged_as_a_record() -> None:
    """After a change from EFO to polling, a shared buffer may end at a continuation. A task would wait for that record in vain."""
    world = MemoryWorld(buffer_bytes=128 << 20)
    world.put_some(30, size=900_000)
    async with asyncio.timeout(60), Query(world.application) as query:
        continuation = await query.begin()
        while not world.all_read or continuation[KEY].value == world.application.rows[-1].sequence:
            continuation = await query.batch(continuation)
    first, *others = (row.sequence for row in world.application.rows)
    world.application.polls = True
    # The query behind has not read up to the tip yet when the tip is found.
    world.application.pace = partial(separate_pace, 256 << 10)
    async with Query(world.application) as query:
        await query.planner.poll(continuation, NO_LIMIT, NO_LIMIT, 1.0)
        behind, begin = Planning(query.run, name="behind"), Offset({KEY: Position.after(first)})
        while (tips := await behind.tips(begin, 1.0)) is None:
            await query.planner.poll(continuation, NO_LIMIT, NO_LIMIT, 1.0)
        behind.plan(Offset(tips, tips.lasts, Mark("behind", 1)))
        (wanted,) = begin.ranges_to(tips)
        async with asyncio.timeout(300):
            payloads = [each async for some in query.run.serving.of("behind").read(wanted) for each in some]
    batches = decode(payloads, *wanted[:3], deaggregate=True)
    assert [int(number) for batch in batches for number in batch["sequenceNumber"].to_pylist()] == others
