"""How far a run is behind, in a few numbers: what its row tells the command line, however many shards there are."""

from __future__ import annotations

from typing import NamedTuple


class Lag(NamedTuple):
    """How far a run is behind in one stream. It is as old as the renewal of the lease that it came with.

    Attributes:
        shards: Shards that are read.
        buffered: Bytes fetched of them and not yet processed.
        millis_behind: How far behind the tip the shard is that is furthest behind, with the time for which what was fetched of it waits
            to be processed; milliseconds. None if nothing has come of any.
        shard: That shard's id.
        records: Kinesis records fetched of them all and not yet processed.
        at: When that was so, epoch milliseconds by the run's own clock; None if it is not known.
    """

    shards: int
    buffered: int
    millis_behind: int | None = None
    shard: str | None = None
    records: int = 0
    at: int | None = None
