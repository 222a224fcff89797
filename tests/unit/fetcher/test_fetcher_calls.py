"""What a fetcher answers to its planner about each shard, and which feeds it keeps: call by call, in virtual time."""

import asyncio

from kinesis_efo.errors import DataLossError
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, ShardRange
from tests.support.model_stream import ModelStream
from tests.unit.fetcher.test_fetcher import Query, horizon, scenario

FIRST, SECOND = (ShardKey("orders", f"shardId-00000000000{number}") for number in range(2))


@scenario
async def test_processing_time_of_a_task_is_no_waiting_time() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Query(stream) as query:
        begin = horizon(stream)
        while await query.poll(begin) == begin:
            pass
        reader = query.run.serving.of("query").read(ShardRange(FIRST, TRIM_HORIZON, Position.after(10**9), 10**9))
        await anext(reader)
        await asyncio.sleep(400)
        going_on = asyncio.create_task(anext(reader))  # type: ignore[arg-type]
        await asyncio.sleep(300)
        assert not going_on.done(), "ten minutes without progress have not passed"
        await asyncio.sleep(310)
        assert isinstance(going_on.exception(), DataLossError)
