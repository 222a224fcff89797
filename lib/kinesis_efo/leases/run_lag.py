"""A run's lag in a few numbers, for its row in the lease table, where the command line reads it."""

from __future__ import annotations

from typing import NamedTuple


class Lag(NamedTuple):
    """A run's lag in one stream, as of the last renewal of its lease.

    Attributes:
        shards: Number of shards that are read.
        buffered: Bytes fetched from them and not yet processed.
        millis_behind: How far the slowest shard is behind its tip, including the time for which its fetched records wait to be processed;
            milliseconds. None if nothing was fetched yet.
        shard: Id of the slowest shard.
        records: Kinesis records fetched from all shards and not yet processed.
        at: When this was measured, epoch milliseconds by the run's own clock; None if not known.
    """

    shards: int
    buffered: int
    millis_behind: int | None = None
    shard: str | None = None
    records: int = 0
    at: int | None = None
