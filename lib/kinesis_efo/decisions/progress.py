"""The progress of a query, and the positions in the lease table that follow from the progress of all queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kinesis_efo.errors import FetcherError
from kinesis_efo.positions import TRIM_HORIZON, Mark, Offset, Position, ShardKey, lowest


class Progress:
    """The offsets that one query has finished and planned, ordered by their marks. The first offsets of an old checkpoint lack a mark."""

    def __init__(self) -> None:
        # Everything up to this offset is processed, and the next micro-batch begins here; None if unknown
        self.finished: Offset | None = None
        # Planned ends that Spark may already have logged: at most two, of the current micro-batch and of the next
        self.planned: list[Offset] = []

    @property
    def reach(self) -> Offset | None:
        """The end of the last planned micro-batch, or the finished offset if no micro-batch is planned. None if unknown."""
        return self.planned[-1] if self.planned else self.finished

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint's id; None if unknown."""
        known = (*self.planned, *((self.finished,) if self.finished is not None else ()))
        return next((each.mark.checkpoint for each in known if each.mark is not None), None)

    def reads(self, key: ShardKey) -> bool:
        """Whether the query reads a shard. A shard that was read to its end leaves the offset."""
        return any(key in each for each in (self.finished or (), *self.planned))

    def has_finished(self, mark: Mark) -> bool:
        """Whether the micro-batch that ends at the offset with this mark is finished."""
        known = None if self.finished is None else self.finished.mark
        return known is not None and known.checkpoint == mark.checkpoint and known.moved >= mark.moved

    def begin(self, offset: Offset, end: Offset | None = None) -> bool:
        """Record that Spark has processed everything up to `offset`. Return whether this finishes a micro-batch.

        `end` is the end of the micro-batch that begins there, if known. Raises FetcherError if the query is already past `offset`.
        """
        known = self.finished
        if known is not None and offset.mark is not None and _is_before(offset, known):
            raise FetcherError(
                f"a micro-batch begins at {offset.mark}, but everything up to {known.mark} is processed: the call is outdated, or the "
                "checkpoint was replaced while the query ran; restart the query"
            )
        ends = any(_is_same(each, offset) for each in self.planned) or (
            known is not None and not _is_same(known, offset)
        )
        self.finished = offset
        self.planned = [each for each in self.planned if _is_before(offset, each)] or ([] if end is None else [end])
        return ends

    def plan(self, end: Offset) -> None:
        """Add the end offset of a planned micro-batch, which Spark may write to its log. Replaces an end offset with the same mark."""
        if self.finished is None or not (_is_same(end, self.finished) or _is_before(end, self.finished)):
            self.planned = [*[each for each in self.planned if _is_before(each, end)][-1:], end]

    def finish(self, mark: Mark) -> bool:
        """Finish the micro-batch whose end has this mark. Return False if it is already finished or was not planned."""
        for number, end in enumerate(self.planned):
            if end.mark == mark:
                self.finished, self.planned = end, self.planned[number + 1 :]
                return True
        return False


def _is_same(offset: Offset, other: Offset) -> bool:
    return offset.mark == other.mark and (offset.mark is not None or offset == other)


def _is_before(offset: Offset, other: Offset) -> bool:
    if offset.mark is None or other.mark is None:
        return offset.mark is None and other.mark is not None
    return offset.mark.checkpoint == other.mark.checkpoint and offset.mark.moved < other.mark.moved


def lease_positions(
    shards: Iterable[ShardKey],
    queries: Collection[Offset],
    stored: Callable[[ShardKey], Position | None],
    ancestors: Callable[[ShardKey], Collection[ShardKey]],
) -> dict[ShardKey, Position]:
    """Return the positions to write to lease rows: for each shard, the position of the slowest query.

    A row never moves back, so queries that have not reached its position are ignored. A query that still reads an ancestor of a shard
    counts as being at the shard's beginning.

    Args:
        shards: The shards whose positions to compute.
        queries: The finished offsets of all queries.
        stored: Returns the position in a shard's lease row; None if the row does not exist.
        ancestors: Returns the ancestors of a shard.
    """

    def reaches_row(key: ShardKey, position: Position) -> bool:
        row = stored(key)
        # `lowest` can also compare two timestamps; `reaches` is faster for the usual positions.
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
