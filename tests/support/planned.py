"""What the stream reader does with a reply to a poll, for tests that drive a query without Spark."""

from kinesis_efo.decisions.planning import PollReply
from kinesis_efo.positions import TRIM_HORIZON, Offset
from kinesis_efo.run.query import Query


def planned(offset: Offset, reply: PollReply) -> Offset:
    """The end of the micro-batch that a reply allows.

    Raises:
        AssertionError: The reply steps back, begins a shard twice, or leaves one that has not ended.
    """
    moved, lasts = dict(offset), {}
    for shard in reply.shards:
        key, through = shard.key, shard.through
        assert through.reaches(moved[key]), f"{key}: the offset stepped back from {moved[key]} to {through}"
        assert shard.last is None or moved[key].precedes(shard.last), f"{key}: its last record lies before {moved[key]}"
        moved[key] = through
        if shard.last is not None:
            lasts[key] = shard.last
    for key in reply.starting:
        assert key not in moved, f"{key} was started twice"
        moved[key] = TRIM_HORIZON
    for key in reply.finished:
        assert moved.pop(key).is_end
    return offset.moved_to(moved, lasts)


def finish(query: Query, end: Offset) -> None:
    """Finish a micro-batch of a query that ends at `end`, as the next one begins there."""
    query.progress.plan(end)
    query.begin(end)
