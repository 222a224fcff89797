"""ListShards over real HTTP: pages, filters, times, and where a query starts."""

import time
from collections.abc import Callable

import pytest

from kinesis_efo.kinesis.topology import Topology, starting_positions
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo_local import AwsError, NoFaults, Request

from .conftest import Bench

SHARD = "shardId-000000000000"
Local = Callable[..., Bench]


@pytest.fixture
def carried_by() -> str:
    return "http1"  # Nothing is subscribed to.


async def test_every_page_is_read(local: Local) -> None:
    bench = local()
    stream = bench.stream(shards=2100)
    async with bench.client() as client:
        topology = Topology(client)
        shards = await topology.shards(stream.stream_arn)
        assert [shard.shard_id for shard in shards] == [f"shardId-{number:012}" for number in range(2100)]
        assert len(await topology.shards_open_at(stream.stream_arn, int(time.time() * 1000)) or []) == 2100
    assert sum(call.operation == "ListShards" for call in bench.aws.kinesis.trace) == 6


# Shows 83.
async def test_a_time_before_retention_becomes_the_horizon(local: Local) -> None:
    class Refuses(NoFaults):
        """As the real service does for times before retention; the local one moves them to the horizon."""

        async def before(self, request: Request) -> None:
            if "ShardFilter" in request.params:
                raise AwsError("InvalidArgumentException", "Timestamp is older than retention")

    bench = local(Refuses())
    stream = bench.stream(shards=2)
    async with bench.client() as client:
        topology = Topology(client)
        assert await topology.shards_open_at(stream.stream_arn, 1000) is None
        found = await starting_positions(topology, stream.stream_arn, Position.at_timestamp(1000))
        assert {shard.shard_id for shard in found} == {SHARD, "shardId-000000000001"}
        assert set(found.values()) == {TRIM_HORIZON}
