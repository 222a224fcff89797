"""The reply to a poll: how far each shard may be read in the next micro-batch, and which shards begin and leave with it."""

from __future__ import annotations

import msgspec

from kinesis_efo.positions import Position, ShardKey


class ShardProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far one shard may be read in the next micro-batch.

    Attributes:
        key: The shard.
        through: Position up to which records are buffered and within the limits.
        records: Kinesis records up to there.
        bytes: Their bytes in the buffer.
        millis_behind: Milliseconds by which reading lags, by the last event; None before the first.
        last: The number of the last of these records; None if there are none or it is unknown.
        quiet: Seconds for which the shard seems to have no more records; 0 if it may have some, or that is unknown.
        data: Estimated bytes of the records' data.
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
    """The reply to a poll.

    Attributes:
        shards: The shards that can advance.
        starting: Children whose parents are read to their end with this micro-batch; they start at the trim horizon.
        finished: Ended shards that can leave the offset, since all their children are in it.
    """

    shards: list[ShardProgress]
    starting: list[ShardKey] = []
    finished: list[ShardKey] = []
