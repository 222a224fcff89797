"""How far all queries of a run have come in each shard: that is what the lease table says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kinesis_efo.planner.shared import lowest
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey


@dataclass(slots=True)
class _Query:
    """How far a query has come, with the shards that it has ended, and the shards in which it has come as far as the table."""

    done: dict[ShardKey, Position] = field(default_factory=dict)
    counts: set[ShardKey] = field(default_factory=set)


class Processed:
    """The lowest positions of all queries, forwards only.

    A query that begins behind what the table says does not take it back: it counts once it has come as far. A shard that a query has
    still before it, because it reads a parent, counts as not begun.

    Args:
        ancestors: The parents of a shard, their parents, and so on, as far as known.
        stored: What the table says of a shard; None if it has no row.
    """

    def __init__(
        self, ancestors: Callable[[ShardKey], Collection[ShardKey]], stored: Callable[[ShardKey], Position | None]
    ) -> None:
        self._ancestors = ancestors
        self._stored = stored
        self._queries: dict[object, _Query] = {}

    def join(self, query: object) -> None:
        """Count a query in."""
        self._queries[query] = _Query()

    def leave(self, query: object) -> dict[ShardKey, Position]:
        """Count a query out; returns where others are further than the table may have said."""
        gone = self._queries.pop(query, None)
        return {} if gone is None else self._lowest(gone.done)

    def begin(self, query: object, offset: Mapping[ShardKey, Position]) -> None:
        """Take note of where a query goes on. It has processed everything up to there."""
        known = self._queries[query]
        if not known.done:
            known.done = dict(offset)

    def commit(self, query: object, offset: Offset, before: Offset | None) -> dict[ShardKey, Position]:
        """Take note of how far a query has come.

        Args:
            query: The query.
            offset: Positions up to which it has processed everything.
            before: Those of its call before; None for the first one.

        Returns:
            The shards in which all queries may have come further now, with how far.
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
        """How far a query has come in a shard; None if it does not count there."""
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
