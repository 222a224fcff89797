"""Buffers the events of one shard that were fetched and not yet committed, in order and without gaps.

Lives in the fetcher's event loop and is not thread-safe. Its room is the back-pressure: while that waits for the budget, the
shard's socket is not read. What is dropped here can always be read from Kinesis again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final, NamedTuple

from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.event_index import EventIndex
from kinesis_efo.fetcher.room import EVENT_OVERHEAD, ShardRoom
from kinesis_efo.kinesis.arrivals import Mark, read_marks
from kinesis_efo.kinesis.events import Event, first_number, has_record, last_record
from kinesis_efo.kinesis.quiet import Quiet
from kinesis_efo.positions import LastRecord, Position, PositionKind, ShardKey

logger = logging.getLogger(__name__)

STARVING_SECONDS: Final = 2.0
"""A reader that has waited this long for an event which finds no room gets it, although another reader is still behind."""

CLAIM_SECONDS: Final = 30.0
"""A reader that takes nothing for this long while another one waits does not keep events in the buffer any more."""


class BufferedEvent(NamedTuple):
    """What a buffer tells of an event.

    Attributes:
        through: The position behind it.
        size: Bytes that it occupies.
        records: Kinesis records in it.
        last: Its last record, if it has one and the payload is still here.
        marks: When its records arrived in the stream, if that is noted.
    """

    through: Position
    size: int
    records: int
    last: LastRecord | None
    marks: Sequence[Mark]


class ShardBuffer(EventIndex):
    """The events of one shard between `start` and `end`: an index of them, and their payloads.

    Args:
        key: The shard.
        start: Position that the subscription feeding this buffer started from.
        budget: Shared with all other shards of the fetcher.
        arrived: Called whenever the buffer grew or was closed.
        arrival_step: How exactly it is noted when records arrived in the stream, milliseconds; None: not at all.

    Attributes:
        room: Room for the next events.
        last_record: The last record before `start` that this buffer has held; None if there was none.
        quiet: The newest answers, as far as they brought no record.
    """

    def __init__(
        self,
        key: ShardKey,
        start: Position,
        budget: Budget,
        arrived: Callable[[], None],
        arrival_step: int | None = None,
    ) -> None:
        super().__init__(start)
        self.key = key
        self.last_record: LastRecord | None = None
        self._budget = budget
        self._account = budget.join(key)
        self.room = ShardRoom(self._account, self._exceed_if_starving)
        self._exceeded = False
        self._extra = -1
        self._arrived = arrived
        self._arrival_step = arrival_step
        self._payloads: list[bytes | None] = []
        self._cursors: set[Cursor] = set()
        self.quiet = Quiet()
        self._closed = False

    @property
    def held(self) -> int:
        """Bytes of the budget that it holds, with what is reserved for the next event."""
        return self._account.held

    # -- filling

    async def admit(self, event: Event, now: float) -> None:
        """Add the subscription's next event. It uses the room that was reserved for it; a small one reserves it here.

        Args:
            event: The next event.
            now: When it arrived, seconds on the monotonic clock.
        """
        self.quiet.heard(event.head, now)
        if event.head.still:
            self.room.release()
            return
        # An event without records needs no room, and must not wait for any: it keeps the offsets of idle shards moving.
        idle = not event.head.records and event.head.continuation is not None
        size = 0 if idle else EVENT_OVERHEAD + (len(event.payload) if event.head.records else 0)
        await self.room.occupy(size)
        if not self._closed:
            self._append(event, size, now)

    def _append(self, event: Event, size: int, now: float) -> None:
        head = event.head
        step = self._arrival_step
        marks = read_marks(event.payload, step) if step is not None and head.records else ()
        first = first_number(event.payload) if self.is_open_below and head.records else None
        if self.append(head.continuation, size, head.records, now, marks, first=first, last=head.last):
            self._payloads.append(event.payload if head.records else None)
        self._drop_what_exceeds(self.end)
        self._arrived()

    def close(self) -> None:
        """Drop everything. Readers find that the buffer covers no position any more."""
        if not self._closed:
            self._closed = True
            self.room.close()
            self._arrived()

    # -- planning

    def covers(self, position: Position) -> bool:
        """Whether everything behind `position` is here or still to come, without a gap."""
        return not self._closed and super().covers(position)

    def may_cover(self, position: Position) -> bool:
        """Whether the buffer covers a position, or it shows only with the first event whether it does."""
        return not self._closed and super().may_cover(position)

    def entries_since(self, told: int) -> tuple[list[BufferedEvent], int]:
        """The events after number `told`. The last one is repeated if it is idle, because its position may have grown.

        Args:
            told: The number that the last call returned; 0 at first.

        Returns:
            The events, and the number of events so far.
        """
        first = max(0, min(told - self.compacted, len(self) - int(self.idle)))
        entries = []
        for slot in range(first, len(self)):
            payload = self._payloads[slot]
            last = last_record(payload) if payload is not None else None
            entries.append(BufferedEvent(self.end_of(slot), *self.sizes(slot), last, self.marks(slot)))
        return entries, self.compacted + len(self)

    # -- reading

    @contextmanager
    def reading(
        self, after: Position, through: Position, last: int | None = None, asked_at: float = -inf
    ) -> Iterator[Cursor]:
        """Open a cursor for a range; what lies behind the cursor is kept while it is open.

        Args:
            after: Its start; exclusive.
            through: Its end; inclusive.
            last: The number of its last record, if it is known.
            asked_at: When it was asked for, monotonic seconds.
        """
        cursor = Cursor(self, after, through, last, asked_at)
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
            self._evict(self.index_after(position))

    def last_up_to(self, through: Position, after: Position) -> int | None:
        """The number of the last record of a range; None if it has none, or it is not known."""
        index = self.index_after(through)
        payload = self._payloads[index] if index < len(self._payloads) and not through.is_end else None
        if payload is None or (first := first_number(payload)) is None:
            return super().last_up_to(through, after)
        inside = last_record(payload, through.value) if first <= through.value else None
        last = self.last_before(index, after) if inside is None else inside.number
        return last if last is not None and after.precedes(last) else None

    def last_record_up_to(self, position: Position) -> LastRecord | None:
        """The last record up to a position that was committed; None if none came, or it is not known.

        Args:
            position: A position at which an event ends, or one in the middle, as the end of a stream at some time may be.
        """
        if position == self.start:
            return self.last_record
        index = self.index_after(position)
        if position.kind is not PositionKind.AFTER or index != self.gone or index == len(self):
            return None
        payload = self._payloads[index]
        inside = None if payload is None else last_record(payload, position.value)
        return inside or self.last_record

    # -- helpers

    def _is_at_end(self, position: Position) -> bool:
        return self.index_after(position) == len(self)

    def _exceed_if_starving(self) -> None:
        if not self._account.waits:
            return
        # A reader that is done waits for nothing, and needs nothing: another action or attempt may read the same again.
        unfinished = [cursor for cursor in self._cursors if not cursor.done]
        waiting = [cursor for cursor in unfinished if self._is_at_end(cursor.position)]
        if not waiting:
            return
        now = self._budget.now()
        behind = [cursor for cursor in unfinished if cursor not in waiting and not cursor.lags(now)]
        if behind:
            starving = max(cursor.waited(now) for cursor in waiting) >= STARVING_SECONDS
            if self._holds_extra or not starving:
                return
            self._extra = self.compacted + len(self)
        else:
            self._evict(len(self))
        self._account.exceed()
        self._exceeded = True

    @property
    def _holds_extra(self) -> bool:
        """Whether an event that came beside what others have not read is still here."""
        return self.gone <= self._extra - self.compacted < len(self)

    def _drop_what_exceeds(self, read: Position) -> None:
        # What came while the budget was full makes room once it is read: it may stand in the way of the next reader.
        if self._exceeded and all(cursor.given_up for cursor in self._cursors):
            self._exceeded = False
            self._evict(self.index_after(read))

    def _evict(self, stop: int) -> None:
        gone = self.gone
        if stop <= gone:
            return
        last = next((payload for payload in reversed(self._payloads[gone:stop]) if payload is not None), None)
        if last is not None:
            self.last_record = last_record(last) or self.last_record
        self._account.give_back(self.drop(stop))
        # Payloads are freed at once, their slots only now and then.
        self._payloads[gone:stop] = [None] * (stop - gone)
        del self._payloads[: self.compact()]


class Cursor:
    """The place of one reader in a buffer.

    Attributes:
        position: Behind the last event that the reader took.
        settled: Behind the last event with records that it took.
        astray: Whether the next event lies behind the last record of the range without having it: the record was passed over.
        given_up: Whether nothing is kept for the reader any more, because it did not move while others waited.
    """

    __slots__ = (
        "_asked_at",
        "_buffer",
        "_found",
        "_holds_up_since",
        "_last",
        "_through",
        "_waits_since",
        "astray",
        "given_up",
        "position",
        "settled",
    )

    def __init__(
        self, buffer: ShardBuffer, position: Position, through: Position, last: int | None, asked_at: float
    ) -> None:
        self._buffer = buffer
        self._through = through
        self._last = last
        self._asked_at = asked_at
        self._found = last is not None and not position.precedes(last)
        self._waits_since: float | None = None
        self._holds_up_since: float | None = None
        self.position = self.settled = position
        self.astray = False
        self.given_up = False

    def waited(self, now: float) -> float:
        """Seconds since the reader found nothing to take."""
        return 0.0 if self._waits_since is None else now - self._waits_since

    def lags(self, now: float) -> bool:
        """Whether the reader has held others up for too long, which wait now, without taking anything."""
        if self._holds_up_since is None:
            self._holds_up_since = now
        if not self.given_up and now - self._holds_up_since >= CLAIM_SECONDS:
            self.given_up = True
            logger.warning(
                "shard %s: a task has taken nothing of its range for %.0f s, at %s, while another waits: nothing is buffered for it any more, "
                "and it reads from Kinesis again if it goes on",
                self._buffer.key,
                now - self._holds_up_since,
                self.position,
            )
        return self.given_up

    @property
    def done(self) -> bool:
        """Whether the reader has all of its range.

        A range that was planned up to a record is complete once that was read, whatever else is answered. One without ends at its position.
        No answer need ever name that: GetRecords tells no positions without records, and those of SubscribeToShard are of the server's
        choice. But the end of the range is in the past, so it is complete, too, once it is believed that nothing more is there right now.
        """
        if self._last is not None:
            return self._found
        if self.position.reaches(self._through):
            return True
        # A shard is over where Kinesis says so, and not because nothing comes.
        return not self._through.is_end and self.nothing_more

    @property
    def nothing_more(self) -> bool:
        """Whether it is believed that nothing lies behind the reader for now."""
        return self._buffer.quiet.believed(self._asked_at) and self._buffer._is_at_end(self.position)

    def passed_over(self) -> list[bytes]:
        """The event that lies behind the last record without having it, if the reader is astray: it may have others of the range."""
        buffer = self._buffer
        payload = buffer._payloads[buffer.index_after(self.position)] if self.astray else None
        return [] if payload is None else [payload]

    def take(self, max_bytes: int) -> list[bytes]:
        """The next payloads, up to and including the event that ends the range; none if nothing has arrived yet.

        Args:
            max_bytes: Stop after the event that exceeds this.

        Raises:
            FetcherError: The buffer does not hold what lies behind the cursor (any more).
        """
        buffer = self._buffer
        if not buffer.covers(self.position) and buffer.may_cover(self.position):
            return []
        if not buffer.covers(self.position):
            raise FetcherError(f"shard {buffer.key}: the buffer does not cover {self.position} any more")
        payloads: list[bytes] = []
        size = 0
        index = buffer.index_after(self.position)
        while index < len(buffer) and size < max_bytes and not self.done:
            payload, end = buffer._payloads[index], buffer.end_of(index)
            if self._last is not None and not end.precedes(self._last):
                self._found = payload is not None and has_record(payload, self._last)
                self.astray = not self._found
                if self.astray:
                    break
            if payload is not None:
                payloads.append(payload)
                size += len(payload)
                self.settled = end
            self.position = end
            self._waits_since = self._holds_up_since = None
            self.given_up = False
            index += 1
        if not payloads and self._waits_since is None:
            self._waits_since = buffer._budget.now()
        buffer._exceed_if_starving()
        return payloads
