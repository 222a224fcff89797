"""Finds where the last records of a shard begin. Kinesis reads forward only, so it looks from further and further back."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from kinesis_efo.clock import Clock
from kinesis_efo.operate.backlog import CALL_SECONDS, iterator_at
from kinesis_efo.positions import TRIM_HORIZON, Position

_LOOK_BACK: Final = (5, 60, 600, 3_600, 21_600, 86_400)
"""Seconds before now: from there on, records are looked for, one after the other; then from the oldest record."""


async def before_last(kinesis: Any, clock: Clock, stream_arn: str, shard_id: str, count: int) -> Position:
    """The position behind which a shard has its last records, as of now.

    Args:
        kinesis: An aiobotocore client.
        clock: Time.
        stream_arn: The stream.
        shard_id: The shard.
        count: Number of Kinesis records, at least 1; an aggregate counts once. The shard may have fewer.

    Raises:
        ClientError: Kinesis refused; botocore's exception.
    """
    now = clock.time()
    for seconds in _LOOK_BACK:
        start = Position.at_timestamp(round((now - seconds) * 1000))
        last = await _last(kinesis, clock, stream_arn, shard_id, start, count + 1)
        if len(last) > count:
            return Position.after(last[0])
        if len(last) == count:
            return start
    last = await _last(kinesis, clock, stream_arn, shard_id, TRIM_HORIZON, count + 1)
    return Position.after(last[0]) if len(last) > count else TRIM_HORIZON


async def _last(kinesis: Any, clock: Clock, stream_arn: str, shard_id: str, start: Position, count: int) -> deque[int]:
    """The sequence numbers of the last records behind a position."""
    found: deque[int] = deque(maxlen=count)
    iterator = await iterator_at(kinesis, stream_arn, shard_id, start)
    while True:
        page = await kinesis.get_records(StreamARN=stream_arn, ShardIterator=iterator)
        found.extend(int(record["SequenceNumber"]) for record in page["Records"])
        iterator = page.get("NextShardIterator")
        if iterator is None or page["MillisBehindLatest"] == 0:
            return found
        await clock.sleep(CALL_SECONDS)
