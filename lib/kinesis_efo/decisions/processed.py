"""Computes up to which position all queries of a run have processed each shard. The lease table stores these positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, lowest


@dataclass(slots=True)
class _Query:
    """A query: its positions, also in ended shards, and the shards in which it has reached the lease table's position."""

    done: dict[ShardKey, Position] = field(default_factory=dict)
    counts: set[ShardKey] = field(default_factory=set)


class Processed:
    """Computes the lowest position of all queries in each shard. The positions in the lease table must not go back.

    So a query that starts before the table's position counts only once it has reached that position. While a query still reads the
    parent of a shard, the query counts as being at the start of the shard.

    `ancestors` returns all known ancestors of a shard; `stored`, the table's position of a shard, or None if it has no row.
    """

    def __init__(
        self, ancestors: Callable[[ShardKey], Collection[ShardKey]], stored: Callable[[ShardKey], Position | None]
    ) -> None:
        self._ancestors = ancestors
        self._stored = stored
        self._queries: dict[object, _Query] = {}

    def join(self, query: object) -> None:
        """Add a query."""
        self._queries[query] = _Query()

    def leave(self, query: object) -> dict[ShardKey, Position]:
        """Remove a query. Returns the lowest positions of the others in its shards, which may have advanced."""
        gone = self._queries.pop(query, None)
        return {} if gone is None else self._lowest(gone.done)

    def begin(self, query: object, offset: Mapping[ShardKey, Position]) -> None:
        """Set where a query starts, unless it has positions already. The query counts as having processed everything up to there."""
        known = self._queries[query]
        if not known.done:
            known.done = dict(offset)

    def commit(self, query: object, offset: Offset, before: Offset | None) -> dict[ShardKey, Position]:
        """Set how far a query has processed its shards. `before` is the offset that it committed before this one; None if this is its first.

        Returns the lowest positions of all queries that may have advanced.
        """
        known, moved = self._queries[query], offset.changes_since(before)
        known.done |= moved
        if len(self._queries) == 1:
            return moved
        return self._lowest(moved)

    def _lowest(self, shards: Iterable[ShardKey]) -> dict[ShardKey, Position]:
        found = {}
        for key in shards:
            positions = [at for query in self._queries.values() if (at := self._counted(query, key)) is not None]
            if positions:
                found[key] = lowest(positions)
        return found

    def _counted(self, query: _Query, key: ShardKey) -> Position | None:
        """The position up to which a query has processed a shard; None if the shard's position does not depend on this query."""
        position = query.done.get(key)
        if position is None:
            before = [each for each in self._ancestors(key) if each in query.done and self._counts(query, each)]
            return TRIM_HORIZON if before else None
        return position if self._counts(query, key) else None

    def _counts(self, query: _Query, key: ShardKey) -> bool:
        if key not in query.counts:
            stored = self._stored(key)
            if stored is None or query.done[key].reaches(stored):
                query.counts.add(key)
        return key in query.counts
