"""Where a query stands, and what that means for the rows of the lease table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kinesis_efo.marks import Mark
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, lowest


class Progress:
    """Where one query stands. It only moves forward: offsets are ordered by their marks, and the first ones of an old checkpoint have none.

    Attributes:
        finished: Everything up to this offset is processed; None if not known yet.
        planned: The ends that Spark may have logged after it, at most two: that of the present micro-batch, and the next one.
    """

    def __init__(self) -> None:
        self.finished: Offset | None = None
        self.planned: list[Offset] = []

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint's id; None if it is not known yet."""
        known = (*self.planned, *((self.finished,) if self.finished is not None else ()))
        return next((each.mark.checkpoint for each in known if each.mark is not None), None)

    def has_finished(self, mark: Mark) -> bool:
        """Whether the last finished micro-batch is the one with this mark."""
        return self.finished is not None and self.finished.mark == mark

    def begin(self, finished: Offset, end: Offset | None = None) -> None:
        """Continue where Spark continues, unless the query is further. `end` is the end of a micro-batch that is possibly unfinished."""
        known = self.finished
        if known is None or known.mark == finished.mark or _follows(finished, known):
            self.finished = finished
            self.planned = [each for each in self.planned if _follows(each, finished)] if end is None else [end]

    def plan(self, end: Offset) -> None:
        """Add an end that Spark may log. It replaces an earlier one with the same mark."""
        if self.finished is None or _follows(end, self.finished):
            before = [each for each in self.planned if each.mark != end.mark and _follows(end, each)]
            self.planned = [*before[-1:], end]

    def finish(self, mark: Mark | None) -> bool:
        """Finish the micro-batch whose end has this mark. Returns False if it is finished already, or unknown."""
        for number, end in enumerate(self.planned):
            if end.mark == mark:
                self.finished, self.planned = end, self.planned[number + 1 :]
                return True
        return False


def _follows(offset: Offset, other: Offset) -> bool:
    if other.mark is None or offset.mark is None:
        return other.mark is None
    return offset.mark.checkpoint == other.mark.checkpoint and offset.mark.moved > other.mark.moved


def lease_positions(
    shards: Iterable[ShardKey],
    queries: Collection[Offset],
    stored: Callable[[ShardKey], Position | None],
    ancestors: Callable[[ShardKey], Collection[ShardKey]],
) -> dict[ShardKey, Position]:
    """The positions that the lease table's rows of some shards should have: those of the slowest query that has reached the row.

    A row must not go back, so it does not wait for a query that is behind it. A query that reads an ancestor of a shard is at the shard's
    beginning. `queries` are the finished offsets of all queries. `stored` returns a row's position, None if there is no row.
    """

    def reaches_row(key: ShardKey, position: Position) -> bool:
        row = stored(key)
        # Two times are compared, too; `reaches` is faster for the usual kinds.
        return row is None or position.reaches(row) or lowest((row, position)) == row

    found = {}
    for key in shards:
        positions = [
            each.get(key, TRIM_HORIZON)
            for each in queries
            if key in each or any(before in each and reaches_row(before, each[before]) for before in ancestors(key))
        ]
        if reached := [each for each in positions if reaches_row(key, each)]:
            found[key] = lowest(reached)
    return found
