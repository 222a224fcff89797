"""What a whole fetcher reads, counts and says, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.metrics import catalog as metrics
from tests.support.model_stream import ModelStream
from tests.support.modelled import Query, everything, expected, horizon, until_read
from tests.support.virtual_time import LoopClock, run


async def test_checkpoints_are_written_without_polls() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        stream.put(0, 30, arrived=LoopClock().time())
        begin = horizon(stream)
        while (tips := await query.planner.tips(begin, 1.0)) is None:
            pass
        for wanted in begin.ranges_to(tips):
            query.rows += await query.read(wanted)
        await asyncio.sleep(6)  # only the next event of the subscription gets as far as the tip
        await query.commit(tips)
    assert sorted(query.rows) == sorted(everything(stream))
    rows = {key: query.store.lease(f"orders:{key.shard}") for key in tips}
    assert {key: row.position for key, row in rows.items()} == dict(tips)
    assert [row.record for _, row in sorted(rows.items())] == [everything(stream)[0][1], None]


async def test_a_stalled_query_shows_in_the_metrics() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[1000] * 40)
    shard = (("stream", "orders"), ("shard", "shardId-000000000000"))
    async with Query(stream, buffer_bytes=10_000) as query:
        offset = horizon(stream)
        offset = await query.poll(offset)
        await asyncio.sleep(100)
        counted = {
            metric: value
            for (metric, attributes), value in query.counted(100).items()
            if set(shard) >= set(attributes[2:])
        }
        assert counted[metrics.WAITING] > 99
        assert 99 <= counted[metrics.BACKPRESSURE] <= 101
        assert counted[metrics.LAG] >= 80_000, "silence is lag"
        assert counted[metrics.OPEN] == 0, "closed on purpose"
        assert 0 < counted[metrics.RECORDS] < 40
        assert 0 < counted[metrics.BUFFERED] <= counted[metrics.BUFFER_LIMIT] == 10_000
        assert counted[metrics.LEASES_HELD] == counted[metrics.LEASES_WANTED] == 1
        await until_read(query, horizon(stream), 40, check=False)
        about = (("application", "lake"), ("environment", "dev"), ("stream", "orders"))
        assert query.counted(100)[metrics.PAUSED, about] >= 1


shapes = st.fixed_dictionaries(
    {
        "records": st.lists(st.lists(st.integers(0, 3000), max_size=15), min_size=1, max_size=3),
        "event_records": st.lists(st.integers(1, 4), min_size=1, max_size=4),
        "buffer_bytes": st.integers(600, 30_000),
        "max_bytes": st.integers(1, 40_000),
        "max_records": st.integers(1, 20),
        "seed": st.integers(0, 2**32),
    }
)


# Shows 5, 8.
@given(shapes)
def test_every_reader_gets_exactly_its_range_whatever_happens(shape: dict[str, Any]) -> None:
    async def main() -> None:
        random = Random(shape["seed"])
        stream = ModelStream(len(shape["records"]), shape["event_records"])
        for number, sizes in enumerate(shape["records"]):
            stream.put(number, *sizes)
        if random.random() < 0.5:
            stream.split(0)
            stream.put(len(shape["records"]), 100, 2000, 30)
        rows: list[tuple[str, int]] = []
        total = len(everything(stream))
        async with Query(stream, buffer_bytes=shape["buffer_bytes"]) as query:
            offset, previous = horizon(stream), None
            while len(rows) < total:
                end = await query.poll(offset, shape["max_bytes"], shape["max_records"])
                if previous is not None and random.random() < 0.7:
                    await query.commit(offset)
                ranges = offset.ranges_to(end)
                random.shuffle(ranges)
                for wanted in ranges:
                    if random.random() < 0.2:
                        await query.read(wanted, stop_after=random.randrange(3))
                if random.random() < 0.2:
                    results = [rows for wanted in ranges for rows in [await query.read(wanted)]]
                else:
                    attempts = [query.read(wanted, pause=random.choice([0.0, 0.0, 0.3])) for wanted in ranges]
                    results = list(await asyncio.gather(*attempts))
                if random.random() < 0.2:
                    assert results == list(await asyncio.gather(*map(query.read, ranges))), "a second action"
                for wanted, got in zip(ranges, results, strict=True):
                    assert got == expected(stream, wanted)
                    rows += got
                previous, offset = offset, end
                for shards in (0, 1, 100):
                    query.counted(shards)
            fetched = sum(value for (metric, _), value in query.counted(0).items() if metric is metrics.RECORDS)
            assert fetched >= total, "some are fetched again"
            most = max(
                (size // 3 * 4 + 100 for shard in stream.shards_by_id.values() for _, size in shard.records), default=0
            )
            assert query.most_used <= shape["buffer_bytes"] + len(stream.shards_by_id) * (4 * most + 700)
        assert sorted(rows) == sorted(everything(stream))

    run(asyncio.wait_for(main(), 50_000))
