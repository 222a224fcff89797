"""Buffers the events of one shard that were fetched and not yet committed, in order and without gaps.

Lives in the fetcher's event loop and is not thread-safe. `wait` is the back-pressure: while it waits for the budget, the
shard's socket is not read. What is dropped here can always be read from Kinesis again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.kinesis.events import Event, last_record
from kinesis_efo.positions import SHARD_END, Position, PositionKind, ShardKey

EVENT_OVERHEAD: Final = 512
"""Bytes charged for an event besides its payload: the objects that hold it."""

QUIET_ANSWERS: Final = 2
"""So many answers of GetRecords in a row must say that there is no more before that is believed."""

_COMPACT_AFTER: Final = 1024
_BEHIND_ALL: Final = 10**400


class Portion(NamedTuple):
    """The next events behind a position.

    Attributes:
        through: Position behind the last of them.
        bytes: What they occupy.
        records: Kinesis records in them.
    """

    through: Position
    bytes: int
    records: int


class ShardBuffer:
    """The events of one shard between `start` and `end`.

    Args:
        key: The shard.
        start: Position that the subscription feeding this buffer started from.
        budget: Shared with all other shards of the fetcher.
        arrived: Called whenever the buffer grew or was closed.

    Attributes:
        waiting_since: When the oldest records in the buffer arrived, seconds on the monotonic clock; None where it has none.
        last_record: Sequence number of the last record before `start` that this buffer has held; None where there was none.
    """

    def __init__(self, key: ShardKey, start: Position, budget: Budget, arrived: Callable[[], None]) -> None:
        self.key = key
        self.start = start
        self.end = start
        self.waiting_since: float | None = None
        self.last_record: int | None = None
        self._budget = budget
        self._account = budget.join(key)
        self._reserved = 0
        self._exceeded = False
        self._arrived = arrived
        # Parallel columns, bisected by planning and reading. Evictions do not reset the sums; their first element is the
        # sum before the first event.
        self._ends: list[int] = []
        self._payloads: list[bytes | None] = []
        self._since: list[float] = []
        self._bytes_through = [0]
        self._records_through = [0]
        self._gone = 0
        self._cursors: set[Cursor] = set()
        self._quiet = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._ends) - self._gone

    @property
    def idle(self) -> bool:
        """Whether the newest event only moved the position: it brought no records."""
        return len(self) > 0 and self._payloads[-1] is None and self._ends[-1] != _BEHIND_ALL

    @property
    def caught_up(self) -> bool:
        """Whether GetRecords says that nothing lies behind the newest event right now; it gives no position for that."""
        return self._quiet >= QUIET_ANSWERS

    # -- filling

    @property
    def share(self) -> int:
        """Bytes that may be in hand without room: the budget keeps so much free for each shard."""
        return self._budget.share

    def take(self, size: int) -> bool:
        """Take room for the next event before it is read, if there is some.

        Args:
            size: Bytes of its payload, at most.
        """
        missing = size + EVENT_OVERHEAD - self._reserved
        if self._closed or missing <= 0:
            return True
        if self._account.take(missing):
            self._reserved += missing
            return True
        return False

    async def wait(self, size: int) -> None:
        """Wait in line for the room that `take` did not find.

        Where all readers of this shard wait for this very event, everything before it is dropped, and it gets its room whatever
        its size.

        Args:
            size: Bytes of its payload, at most.
        """
        # Who waits holds nothing: two that wait for each other's part would wait for ever.
        self.release()
        waiting = self._account.wait(size + EVENT_OVERHEAD)
        self._exceed_if_starving()
        await waiting
        self._reserved = size + EVENT_OVERHEAD

    def release(self) -> None:
        """Give back the room of an event that will not come."""
        self._account.give_back(self._reserved)
        self._reserved = 0

    async def admit(self, event: Event, now: float) -> None:
        """Add the subscription's next event. It uses the room that was reserved for it; a small one reserves it here.

        Args:
            event: The next event.
            now: When it arrived, seconds on the monotonic clock.
        """
        if event.head.still:
            self._quiet = 0 if event.head.millis_behind else self._quiet + 1
            self.release()
            return
        # An event without records needs no room, and must not wait for any: it keeps the offsets of idle shards moving.
        idle = not event.head.records and event.head.continuation is not None
        size = 0 if idle else EVENT_OVERHEAD + (len(event.payload) if event.head.records else 0)
        if size > self._reserved and not self.take(len(event.payload)):
            await self.wait(len(event.payload))
        if not self._closed:
            self._account.give_back(self._reserved - size)
            self._reserved = 0
            self._append(event, size, now)

    def _append(self, event: Event, size: int, now: float) -> None:
        head = event.head
        end = _BEHIND_ALL if head.continuation is None else head.continuation
        if self.end.kind is PositionKind.AFTER:
            # Positions only grow, whatever an idle event says: an offset must never step back.
            end = max(end, self.end.value)
        if not size and len(self) and self._payloads[-1] is None:
            # An idle shard sends an event without records every few seconds: one entry holds the newest position.
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._payloads.append(event.payload if head.records else None)
            self._since.append(now)
            self._bytes_through.append(self._bytes_through[-1] + size)
            self._records_through.append(self._records_through[-1] + head.records)
            if head.records and self.waiting_since is None:
                self.waiting_since = now
        self.end = _position(end)
        self._quiet = 0
        self._drop_what_exceeds(self.end)
        self._arrived()

    def close(self) -> None:
        """Drop everything. Readers find that the buffer covers no position any more."""
        if not self._closed:
            self._closed = True
            self._account.leave()
            self._arrived()

    # -- planning

    def covers(self, position: Position) -> bool:
        """Whether everything behind `position` is here or still to come, without a gap."""
        if self._closed:
            return False
        if position == self.start or position.is_end:
            return True
        if position.kind is not PositionKind.AFTER:
            return False
        # A query reads a shard from its start, so that a buffer from the start on covers every number that the query knows.
        # Two readers far apart therefore share the buffer of the one behind. If each started its own, they would take the
        # subscription from each other for ever.
        return self.start.kind is not PositionKind.AFTER or position.value >= self.start.value

    def news_since(self, after: Position) -> float | None:
        """When the first event behind a position arrived that has records or ends the shard; None where there is no such event."""
        news = self._first_news(self._index_after(after))
        return self._since[news] if news < len(self._ends) else None

    def portion(self, after: Position, max_bytes: int, max_records: int, *, some: bool = False) -> Portion:
        """As many whole events behind a position as stay within both limits.

        Args:
            after: A position that the buffer covers.
            max_bytes: Most bytes.
            max_records: Most records.
            some: Include the first event with records, where there is one, whatever its size.
        """
        first = self._index_after(after)
        by_bytes = bisect_right(self._bytes_through, self._bytes_through[first] + max_bytes, first + 1)
        by_records = bisect_right(self._records_through, self._records_through[first] + max_records, first + 1)
        last = min(by_bytes, by_records) - 1
        if some:
            last = max(last, min(self._first_news(first) + 1, len(self._ends)))
        if last == first:
            return Portion(after, 0, 0)
        return Portion(
            _position(self._ends[last - 1]),
            self._bytes_through[last] - self._bytes_through[first],
            self._records_through[last] - self._records_through[first],
        )

    # -- reading

    @contextmanager
    def reading(self, after: Position, through: Position) -> Iterator[Cursor]:
        """Open a cursor for the range `(after, through]`; what lies behind the cursor is kept while it is open."""
        cursor = Cursor(self, after, through)
        self._cursors.add(cursor)
        try:
            yield cursor
        finally:
            self._cursors.remove(cursor)
            self._drop_what_exceeds(cursor.position)
            self._exceed_if_starving()

    def commit(self, position: Position) -> None:
        """Drop what lies before a position: Spark will not ask for it again."""
        if self.covers(position):
            self._evict(self._index_after(position))

    # -- helpers

    def _index_after(self, position: Position) -> int:
        if position.is_end:
            return len(self._ends)
        if position.kind is not PositionKind.AFTER:
            return self._gone
        return bisect_right(self._ends, position.value, self._gone)

    def _first_news(self, first: int) -> int:
        index = bisect_right(self._records_through, self._records_through[first], first + 1) - 1
        if index == len(self._ends) > first and self._ends[-1] == _BEHIND_ALL:
            return index - 1
        return index

    def _starving(self) -> bool:
        # A reader that is done waits for nothing: another action or attempt may read the same again.
        return bool(self._cursors) and all(
            not cursor.done and self._is_at_end(cursor.position) for cursor in self._cursors
        )

    def _is_at_end(self, position: Position) -> bool:
        return self._index_after(position) == len(self._ends)

    def _exceed_if_starving(self) -> None:
        if self._account.waits and self._starving():
            self._evict(len(self._ends))
            self._account.exceed()
            self._exceeded = True

    def _drop_what_exceeds(self, read: Position) -> None:
        # What came while the budget was full makes room once it is read: it may stand in the way of the next reader.
        if self._exceeded and not self._cursors:
            self._exceeded = False
            self._evict(self._index_after(read))

    def _evict(self, stop: int) -> None:
        if stop <= self._gone:
            return
        self.start = _position(self._ends[stop - 1])
        freed = self._bytes_through[stop] - self._bytes_through[self._gone]
        last = next((payload for payload in reversed(self._payloads[self._gone : stop]) if payload is not None), None)
        if last is not None:
            self.last_record = last_record(last) or self.last_record
        # Payloads are freed at once, their slots only now and then: deleting from the front moves the rest.
        self._payloads[self._gone : stop] = [None] * (stop - self._gone)
        self._gone = stop
        if self._gone > _COMPACT_AFTER and self._gone * 2 > len(self._ends):
            del self._ends[: self._gone]
            del self._payloads[: self._gone]
            del self._since[: self._gone]
            del self._bytes_through[: self._gone]
            del self._records_through[: self._gone]
            self._gone = 0
        self.waiting_since = self.news_since(self.start)
        self._account.give_back(freed)


class Cursor:
    """The place of one reader in a buffer.

    Attributes:
        position: Behind the last event that the reader took.
    """

    __slots__ = ("_buffer", "_through", "position")

    def __init__(self, buffer: ShardBuffer, position: Position, through: Position) -> None:
        self._buffer = buffer
        self._through = through
        self.position = position

    @property
    def done(self) -> bool:
        """Whether the reader has all of its range.

        A range that was planned from SubscribeToShard may end behind the last record, at a position that GetRecords never
        reports. But the end of the range is in the past, so the range is complete once there is nothing more right now.
        """
        if self.position.reaches(self._through):
            return True
        return self._buffer.caught_up and self._buffer._is_at_end(self.position)

    def take(self, max_bytes: int) -> list[bytes]:
        """The next payloads, up to and including the event that ends the range; none where nothing has arrived yet.

        Args:
            max_bytes: Stop after the event that exceeds this.

        Raises:
            FetcherError: The buffer does not hold what lies behind the cursor (any more).
        """
        buffer = self._buffer
        if not buffer.covers(self.position):
            raise FetcherError(f"shard {buffer.key}: the buffer does not cover {self.position} any more")
        payloads: list[bytes] = []
        size = 0
        index = buffer._index_after(self.position)
        while index < len(buffer._ends) and size < max_bytes and not self.done:
            if (payload := buffer._payloads[index]) is not None:
                payloads.append(payload)
                size += len(payload)
            self.position = _position(buffer._ends[index])
            index += 1
        buffer._exceed_if_starving()
        return payloads


def _position(end: int) -> Position:
    return SHARD_END if end == _BEHIND_ALL else Position.after(end)
