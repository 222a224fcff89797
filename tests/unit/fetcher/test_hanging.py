"""A reader that hangs in the middle of its range takes nobody with it, however full the budget is. In virtual time."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.fetcher.test_fetcher import Query, expected, horizon

LIMIT = 20_000
"""A little more than an event of one record of 3,000 bytes occupies."""


def stream_of(records: int, shards: int = 1) -> ModelStream:
    stream = ModelStream(shards=shards, event_records=(1,))
    for number in range(shards):
        stream.put(number, *[3000] * records)
    return stream


def whole(stream: ModelStream, number: int = 0) -> ShardRange:
    shard = stream[number]
    return ShardRange(ShardKey("orders", shard.shard_id), TRIM_HORIZON, Position.after(shard.records[-1][0]))


async def hung(query: Query, wanted: ShardRange, events: int) -> AsyncGenerator[list[bytes], None]:
    """An attempt that has taken so many events and takes no more."""
    reader = query.run.serving.of("query").read(wanted)
    for _ in range(events):
        assert await anext(reader)
    return reader


async def until_full(query: Query) -> None:
    await query.poll(horizon(query.stream))
    await asyncio.sleep(5)
    assert all(query.fetcher.budget.seconds_waited(feed.key) for feed in query.fetcher)


@pytest.mark.slow
def test_fetcher_frozen_beyond_the_patience_of_ranges_continues() -> None:
    async def main() -> None:
        stream = stream_of(40)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            query.fetcher.read_chunk_bytes = 1
            await until_full(query)
            reader = await hung(query, whole(stream), 1)
            second = asyncio.create_task(query.read(whole(stream)))
            await asyncio.sleep(3000)
            assert await second == expected(stream, whole(stream))
            assert len([chunk async for chunk in reader]) >= 39

    run(asyncio.wait_for(main(), 5000))
