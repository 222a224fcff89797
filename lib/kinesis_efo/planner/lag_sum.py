"""Sums up how far a run is behind in a stream, for the row of the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kinesis_efo.fetcher.status import QueryStatus, ShardStatus
from kinesis_efo.leases.run_lag import Lag


def summed_up(shards: Iterable[ShardStatus], at: int | None = None, queries: Iterable[QueryStatus] = ()) -> Lag:
    """How far a run is behind in a stream, for the run's row.

    Args:
        shards: The stream's shards.
        at: The time, epoch milliseconds.
        queries: How several queries do in this stream: the slowest of them may be further behind than what they share.

    >>> summed_up([
    ...     ShardStatus("orders", "s-1", "AFTER:7", 0, 0, None, 0), ShardStatus("orders", "s-2", "AFTER:7", 5_000, 10, 1.5, 200)
    ... ])
    Lag(shards=2, buffered=5000, millis_behind=1700, shard='s-2', records=10, at=None)
    """
    known = list(shards)
    behind = [(each.millis, each.shard) for each in known if each.millis is not None]
    behind += [(each.millis, each.shard or "") for each in queries if each.millis is not None]
    worst, shard = max(behind, default=(None, None))
    return Lag(len(known), sum(each.buffered for each in known), worst, shard, sum(each.records for each in known), at)
