"""A whole fetcher in virtual time that polls, and queries that move between GetRecords and SubscribeToShard."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.positions import Offset
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import ModelStream
from tests.support.modelled import Query, everything, expected, horizon
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock, run


def polled(stream: ModelStream, **options: Any) -> Query:
    return Query(stream, polled=PolledClient(stream, LoopClock()), **options)


shapes = st.fixed_dictionaries(
    {
        "records": st.lists(st.lists(st.integers(0, 3000), max_size=15), min_size=1, max_size=3),
        "event_records": st.lists(st.integers(1, 4), min_size=1, max_size=4),
        "buffer_bytes": st.integers(600, 30_000),
        "max_records": st.integers(1, 20),
        "modes": st.lists(st.booleans(), min_size=2, max_size=6),
        "seed": st.integers(0, 2**32),
    }
)


@pytest.mark.slow
@given(shapes)
def test_read_mode_changes_lose_and_repeat_nothing(shape: dict[str, Any]) -> None:
    """Each run goes on from the offset of the one before, reading first the micro-batch it had planned and not done."""

    async def main() -> None:
        random = Random(shape["seed"])
        stream = ModelStream(len(shape["records"]), shape["event_records"])
        for number, sizes in enumerate(shape["records"]):
            stream.put(number, *sizes)
        store, rows = MemoryLeaseStore(), []
        offset = horizon(stream)
        planned: Offset | None = None
        modes = shape["modes"]
        for run_number, polls in enumerate(modes):
            client = PolledClient(stream, LoopClock())
            client.end_with_records = random.random() < 0.5
            client.faults = _flaky(random)
            last_run = run_number == len(modes) - 1
            async with Query(stream, store, shape["buffer_bytes"], polled=client if polls else None) as query:
                steps = 0
                if planned is not None:
                    query.planner.begin(offset, planned)
                while steps < 4 or (last_run and len(rows) < len(everything(stream))):
                    end = planned or await query.poll(offset, max_records=shape["max_records"])
                    for wanted in offset.ranges_to(end):
                        got = await query.read(wanted)
                        assert got == expected(stream, wanted)
                        rows += got
                    await query.commit(end)
                    offset, planned, steps = end, None, steps + 1
                    await asyncio.sleep(random.choice([0, 0, 7]))
                planned = await query.poll(offset) if random.random() < 0.7 else None
                assert not client.refused, "within the limits of a shard"
            if not last_run:
                _change(stream, random)
        assert sorted(rows) == sorted(everything(stream))

    run(asyncio.wait_for(main(), 50_000))


def _flaky(random: Random) -> Any:
    def fault(_: str) -> None:
        if random.random() < 0.05:
            raise random.choice([ConnectionResetError, TimeoutError])

    return fault


def _change(stream: ModelStream, random: Random) -> None:
    open_shards = [number for number in range(len(stream.shards_by_id)) if stream[number].last is None]
    number = random.choice(open_shards)
    if random.random() < 0.3:
        stream.split(number)
    else:
        stream.put(number, *[random.randrange(2000)] * random.randrange(5))
