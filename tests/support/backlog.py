"""Backlogs of very different sizes in the shards of one stream, over the same stretch of time."""

from collections.abc import Sequence

from tests.support.world import World

EVERY_SECONDS = 30


def backlog(world: World, sizes: Sequence[int], seconds: int = 1200, stream: str = "orders") -> int:
    """Put what would have arrived in the last `seconds` seconds, up to now.

    Args:
        world: Where; its stream has as many shards as there are sizes.
        sizes: Records of each shard in half a minute; 0: none.
        seconds: How long ago the first ones arrived.
        stream: Logical name of the stream.

    Returns:
        The number of records.
    """
    name = world.streams[stream]
    width = 2**128 // len(sizes)
    puts = 0
    for ago in range(seconds, 0, -EVERY_SECONDS):
        world.aws.backdate(name, ago)
        records = [
            {"PartitionKey": f"{shard}", "ExplicitHashKey": str(shard * width), "Data": b"%d:%d:%d" % (shard, ago, n)}
            for shard, size in enumerate(sizes)
            for n in range(size)
        ]
        for first in range(0, len(records), 500):
            answer = world.kinesis.put_records(StreamName=name, Records=records[first : first + 500])
            assert answer["FailedRecordCount"] == 0, answer
        puts += len(records)
    world.aws.backdate(name, 0)
    return puts
