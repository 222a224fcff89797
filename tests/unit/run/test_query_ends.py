"""Where a query ends, from the list of shards alone."""

from types import SimpleNamespace
from typing import Any

from kinesis_efo.decisions.lineage import Lineage, Shard
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.options import Bounds
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.run.query_ends import Ends
from tests.support.answers import FixedClock

UNTIL = Position.at_timestamp(1_700_000_000_000)


def test_end_time_is_inherited_through_many_reshards() -> None:
    """Each merge and split doubles the number of ways back to the first shard."""
    shards = [Shard("shardId-0000", (), (0, 9), first=0, last=1)]
    for number in range(1, 121, 3):
        merged, left, right = (f"shardId-{number + each:04d}" for each in range(3))
        shards += [
            Shard(merged, tuple(each.shard_id for each in shards[-2:]), (0, 9), first=number, last=number + 1),
            Shard(left, (merged,), (0, 4), first=number + 1, last=number + 2),
            Shard(right, (merged,), (5, 9), first=number + 1, last=number + 2),
        ]
    lineage = Lineage(shards)
    stream: Any = SimpleNamespace(lineage=lineage, with_descendants=lambda _: [lineage[right]])
    last = ShardKey("orders", right)
    bounds = Bounds(shards={ShardKey("orders", "shardId-0000"): UNTIL})
    assert Ends(bounds, Streams({"orders": stream}), {last: TRIM_HORIZON}, FixedClock(2e9)).pending == [last]
