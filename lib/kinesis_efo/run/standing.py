"""Computes a run's status for tools: the status of its queries, the slowest query of each shard, and the run's lag."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kinesis_efo.decisions.planning import NO_LIMIT
from kinesis_efo.fetcher.status import QueryShard, QueryStatus, ShardStatus
from kinesis_efo.leases.lag import Lag
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, lowest

if TYPE_CHECKING:
    from kinesis_efo.run.table import QueryRows, Table


def shard_status(table: Table, query: QueryRows, key: ShardKey, done: Position, now: float) -> QueryShard:
    """Return the status of a query in one shard, which it has processed up to `done`. `now` is monotonic seconds."""
    shared, own = table.shared.get(key), table.separate(query.name, key)
    kept = None if shared is None else shared.retained.get(query.name)
    held = 0 if shared is None or kept is None else shared.index.portion(kept, NO_LIMIT, NO_LIMIT).bytes
    row = shared if own is None else own
    if done.is_end or row is None:
        return QueryShard(*key, str(done), 0, 0, 0 if done.is_end else None, held, own is not None)
    oldest, behind = row.index.lag(done, now), row.behind_now(now)
    unread = row.index.portion(done, NO_LIMIT, NO_LIMIT)
    lag = behind if oldest is None else max(oldest, behind or 0)
    return QueryShard(*key, str(done), unread.records, unread.bytes, lag, held, own is not None)


def with_totals(query: QueryStatus, shards: Iterable[QueryShard], *, each: bool) -> QueryStatus:
    """Add the totals of all shards to a query's status. With `each`, also add the status of each shard."""
    known = list(shards)
    worst = max(
        (shard for shard in known if shard.millis is not None), key=lambda shard: shard.millis or 0, default=None
    )
    return replace(
        query,
        millis=None if worst is None else worst.millis,
        stream=None if worst is None else worst.stream,
        shard=None if worst is None else worst.shard,
        records=sum(shard.records for shard in known),
        bytes=sum(shard.bytes for shard in known),
        held=sum(shard.held for shard in known),
        apart=sum(shard.apart for shard in known),
        shards=known if each else None,
    )


def slowest_queries(
    queries: Mapping[int, Mapping[ShardKey, Position]], ancestors: Callable[[ShardKey], Collection[ShardKey]]
) -> dict[ShardKey, tuple[int, Position]]:
    """Return the `Query.number` and position of each shard's slowest query. A query that still reads an ancestor is at `TRIM_HORIZON`."""
    found = {}
    for key in {key for done in queries.values() for key in done}:
        at = {number: done[key] for number, done in queries.items() if key in done}
        if len(at) < len(queries):
            before = ancestors(key)
            at |= {
                number: TRIM_HORIZON
                for number, done in queries.items()
                if number not in at and any(each in done for each in before)
            }
        position = lowest(at.values())
        found[key] = next(number for number, each in at.items() if each == position), position
    return found


def lag_of(shards: Iterable[ShardStatus], at: int | None = None, queries: Iterable[QueryStatus] = ()) -> Lag:
    """Return the lag of a run in a stream, for the lease table.

    Args:
        at: The current time in epoch milliseconds.
        queries: The status of each query, if a query may be further behind than the shared buffers.

    >>> lag_of([
    ...     ShardStatus("orders", "s-1", "AFTER:7", 0, 0, None, 0), ShardStatus("orders", "s-2", "AFTER:7", 5_000, 10, 1.5, 200)
    ... ])
    Lag(shards=2, buffered=5000, millis_behind=1700, shard='s-2', records=10, at=None)
    """
    known = list(shards)
    behind = [(each.millis, each.shard) for each in known if each.millis is not None]
    behind += [(each.millis, each.shard or "") for each in queries if each.millis is not None]
    worst, shard = max(behind, default=(None, None))
    return Lag(len(known), sum(each.buffered for each in known), worst, shard, sum(each.records for each in known), at)
