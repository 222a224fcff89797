"""What a poll answers: how far each shard may go in the next micro-batch, and which shards begin and leave with it."""

from __future__ import annotations

import msgspec

from kinesis_efo.positions import Position, ShardKey


class ShardProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far one shard may go in the next micro-batch.

    Attributes:
        key: The shard.
        through: Position up to which records are buffered and within the limits.
        records: Kinesis records up to there.
        bytes: What they occupy in the buffer.
        millis_behind: How far reading lags, by the last event, in milliseconds; None before the first.
        last: The number of the last of these records; None if there are none, or it is not known.
        quiet: For how long it is believed that nothing more is there, seconds; 0 if that is not believed, or not known.
        data: About how many bytes of data are in these records.
    """

    key: ShardKey
    through: Position
    records: int
    bytes: int
    millis_behind: int | None
    last: int | None = None
    quiet: float = 0.0
    data: int = 0


class PollReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a poll.

    Attributes:
        shards: The shards that may move on.
        starting: Children whose parents are read to their end with this micro-batch; they start at the trim horizon.
        finished: Ended shards that can leave the offset, since all their children are in it.
    """

    shards: list[ShardProgress]
    starting: list[ShardKey] = []
    finished: list[ShardKey] = []
