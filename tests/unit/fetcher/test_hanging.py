"""A reader that hangs in the middle of its range takes nobody with it, however full the budget is. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import pytest

from kinesis_efo.fetcher import fetcher as module
from kinesis_efo.fetcher.buffer import CLAIM_SECONDS, STARVING_SECONDS
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import LoopClock, run
from tests.unit.fetcher.test_fetcher import Query, expected, horizon

KEY = ShardKey("orders", "shardId-000000000000")
LIMIT = 20_000
EVENT = 4_700
"""A little more than an event of one record of 3,000 bytes occupies."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_CHUNK_BYTES", 1)


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
    reader = query.fetcher.read(wanted)
    for _ in range(events):
        assert await anext(reader)
    return reader


async def until_full(query: Query) -> None:
    await query.poll(horizon(query.stream))
    await asyncio.sleep(5)
    assert all(query.fetcher.budget.waited(feed.key) for feed in query.fetcher.feeds)


def read_again(stream: ModelStream) -> bool:
    """Whether a subscription began at a position that another one had passed."""
    starts = [Position.parse(start) for _, start in stream.subscribed]
    return any(before.reaches(after) for before, after in pairwise(starts))


def test_a_second_attempt_reads_on_beside_one_that_hangs() -> None:
    async def main() -> None:
        stream = stream_of(40)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            reader = await hung(query, whole(stream), 2)
            began = LoopClock().monotonic()
            times = []
            async for _ in query.fetcher.read(whole(stream)):
                times.append(LoopClock().monotonic() - began)
                assert query.fetcher.budget.used <= LIMIT + EVENT
            assert len(times) == 40
            beyond = next(after for after in times if after > 1)
            assert STARVING_SECONDS <= beyond <= STARVING_SECONDS + 1.5, "one event beyond the budget"
            assert CLAIM_SECONDS <= times[-1] <= CLAIM_SECONDS + 4
            assert not read_again(stream), "a subscription only paused"
            await reader.aclose()

    run(asyncio.wait_for(main(), 600))


def test_other_shards_with_a_backlog_do_not_keep_a_second_attempt_waiting() -> None:
    async def main() -> None:
        stream = stream_of(40, shards=3)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            stuck = await hung(query, whole(stream), 1)
            began = LoopClock().monotonic()
            assert await query.read(whole(stream)) == expected(stream, whole(stream))
            assert LoopClock().monotonic() - began <= CLAIM_SECONDS + 10
            assert query.most_used <= LIMIT + 3 * EVENT
            await stuck.aclose()

    run(asyncio.wait_for(main(), 600))


@pytest.mark.parametrize("pause", [5.0, 100.0])
def test_one_that_goes_on_after_all_gets_exactly_its_range(pause: float, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stream = stream_of(40)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            reader = query.fetcher.read(whole(stream))
            payloads = list(await anext(reader))
            second = asyncio.create_task(query.read(whole(stream)))
            await asyncio.sleep(pause)
            async for chunk in reader:
                payloads += chunk
            assert await second == expected(stream, whole(stream))
            batches = decode(payloads, *whole(stream)[:3], deaggregate=True)
            numbers = [int(number.as_py()) for batch in batches for number in batch.column(2)]
            assert numbers == [number for number, _ in stream[0].records]
            assert read_again(stream) == (pause > CLAIM_SECONDS)

    caplog.set_level("WARNING")
    run(asyncio.wait_for(main(), 600))
    said = [line for line in caplog.messages if "has taken nothing of its range for 3" in line]
    assert len(said) == (1 if pause > CLAIM_SECONDS else 0)


def test_one_that_is_slow_keeps_what_it_has_not_read() -> None:
    async def main() -> None:
        stream = stream_of(12)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            slow = asyncio.create_task(query.read(whole(stream), pause=CLAIM_SECONDS - 2))
            fast = asyncio.create_task(query.read(whole(stream)))
            assert await fast == await slow == expected(stream, whole(stream))
            assert not read_again(stream)
            assert query.most_used <= LIMIT + EVENT

    run(asyncio.wait_for(main(), 3600))


def test_one_that_waits_alone_keeps_what_it_has_not_read() -> None:
    async def main() -> None:
        stream = stream_of(40)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            reader = await hung(query, whole(stream), 1)
            await asyncio.sleep(10 * CLAIM_SECONDS)
            assert query.fetcher.budget.used <= LIMIT
            rest = [chunk async for chunk in reader]
            assert len(rest) == 39

    run(asyncio.wait_for(main(), 3600))


def test_a_task_that_hangs_does_not_keep_a_query_from_ending() -> None:
    async def main() -> None:
        stream = stream_of(40)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            assert not query.fetcher.reading
            reader = await hung(query, whole(stream), 1)
            await asyncio.sleep(CLAIM_SECONDS - 1)
            assert query.fetcher.reading, "it may only be slow"
            await asyncio.sleep(2)
            assert not query.fetcher.reading
            assert await anext(reader)
            assert query.fetcher.reading
            never = ShardRange(KEY, TRIM_HORIZON, Position.after(10**60), last=10**60)
            waiting = asyncio.create_task(query.read(never))
            await asyncio.sleep(10 * CLAIM_SECONDS)
            assert query.fetcher.reading, "one that waits for records is not one that hangs"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert not query.fetcher.reading
            await reader.aclose()
            assert not query.fetcher.reading

    run(asyncio.wait_for(main(), 3600))


@pytest.mark.slow
def test_one_that_was_frozen_for_longer_than_ranges_are_waited_for_reads_on() -> None:
    async def main() -> None:
        stream = stream_of(40)
        async with Query(stream, buffer_bytes=LIMIT) as query:
            await until_full(query)
            reader = await hung(query, whole(stream), 1)
            second = asyncio.create_task(query.read(whole(stream)))
            await asyncio.sleep(3000)
            assert await second == expected(stream, whole(stream))
            assert len([chunk async for chunk in reader]) >= 39

    run(asyncio.wait_for(main(), 5000))
