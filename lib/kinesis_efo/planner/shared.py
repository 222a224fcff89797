"""What the queries of a run share: buffers, in this process or told by others; as those see them who decide who reads what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from kinesis_efo.fetcher.event_index import EventIndex
from kinesis_efo.fetcher.micro_batches import Buffers
from kinesis_efo.positions import LastRecord, Position, PositionKind, ShardKey, ShardRange

_RANKS: Final = {
    PositionKind.TRIM_HORIZON: 0,
    PositionKind.AT_TIMESTAMP: 1,
    PositionKind.INSIDE: 2,
    PositionKind.AFTER: 2,
    PositionKind.SHARD_END: 3,
}


class SharedBuffers(Buffers, Protocol):
    """The buffers of all shards of a run."""

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        """See `Buffers`. If a shard is read from somewhere else, that begins anew where the position says."""

    def found(self, key: ShardKey) -> EventIndex | None:
        """What is buffered of a shard, wherever it begins; None while it is not read."""

    def begin_at(self, key: ShardKey, position: Position) -> EventIndex | None:
        """Read a shard anew from a position on; None if that takes a while."""

    @property
    def withholds(self) -> bool:
        """Whether shards were let go of that nobody has asked for since."""

    def expect(self, positions: Mapping[ShardKey, Position]) -> None:
        """Begin to read shards from these positions on, as far as nobody reads them yet."""

    def follow(self, positions: Mapping[ShardKey, Position]) -> None:
        """Take note of which shards are read, with where a query is in each: not at the end, unless all of them are."""

    def commit(self, positions: Mapping[ShardKey, Position]) -> Mapping[ShardKey, LastRecord]:
        """Drop what no query asks for any more.

        Args:
            positions: From where on each shard is kept.

        Returns:
            For shards whose position has changed: the last record up to there, if it is known.
        """

    def last_record(self, wanted: ShardRange) -> int | None:
        """The number of the last record of a range; None if it has none, or it is not known."""

    def is_read(self, key: ShardKey) -> bool:
        """Whether a task reads a range of a shard from the buffer at this moment."""

    def wants_room(self, seconds: float) -> bool:
        """Whether a shard has waited for room for this long."""

    def tip(self, key: ShardKey) -> Position | None:
        """Where a shard ended when it was begun to be read; None while that is not known."""

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        """The end of what is buffered of a shard, if everything lies before it that had arrived by some time; else None.

        Args:
            key: The shard.
            since: The time, monotonic seconds.
        """

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """Close the subscriptions of shards, until somebody asks for them again."""


class Choice(Enum):
    """How a query reads a shard from a position on: from the buffer that queries share, or catching up from one of its own."""

    SHARED = "as the buffer is"
    BEGIN = "the buffer begins anew at the position: no other query uses it"
    FORWARD = "the subscription moves forward to the position; the other queries catch up"
    BACK = "the subscription moves back to the position: Kinesis lets no query catch up"
    APART = "catching up"


def choose(
    position: Position, buffer: EventIndex | None, *, others: bool, apart: bool, may_read_apart: bool, has_waited: bool
) -> Choice:
    """Decide how a query reads a shard, for planning and for tasks alike.

    While another query uses the subscription, it goes back only if no query may catch up, and forward only for a query that has
    waited: so two queries do not take it from each other.

    Args:
        position: Where the query is.
        buffer: The shared buffer; None while the shard is not read.
        others: Whether another query uses that buffer.
        apart: Whether the query is catching up in the shard.
        may_read_apart: Whether Kinesis allows that.
        has_waited: Whether the query has waited in front of the buffer for long.
    """
    covers = buffer is not None and buffer.may_cover(position)
    if buffer is None or not (others or covers):
        return Choice.BEGIN
    if covers and has_waited:
        return Choice.FORWARD
    # A query that catches up claims nothing of a buffer that it is in front of: it would take the subscription to and fro.
    if covers and not (apart and lies_in_front(position, buffer)):
        return Choice.SHARED
    return Choice.APART if may_read_apart else Choice.BACK


def lowest(positions: Iterable[Position]) -> Position:
    """The one of some positions from which on everything behind all of them can be read.

    A time counts as lower than any number: the two cannot be compared.

    >>> str(lowest([Position.after(12), Position.parse("SHARD_END"), Position.after(9)]))
    'AFTER:9'
    """
    return min(positions, key=lambda each: (_RANKS[each.kind], each.value, each.kind is PositionKind.AFTER))


def lies_in_front(position: Position, buffer: EventIndex) -> bool:
    """Whether a position lies behind all that a buffer has. That cannot be told of times."""
    known = buffer.end.kind in (PositionKind.AFTER, PositionKind.TRIM_HORIZON)
    return known and not buffer.end.reaches(position)
