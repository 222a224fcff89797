"""A fetcher that several queries share, or that reads apart for one of them, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kinesis_efo.errors import DataLossError
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.sharing.test_query_fetching import numbers_of
from tests.unit.sharing.test_several_queries import Program, horizon, key


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
