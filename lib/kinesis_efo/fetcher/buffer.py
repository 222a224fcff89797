"""Buffers the fetched, uncommitted events of one shard, in order and without gaps.

A buffer belongs to the fetcher's event loop and is not thread-safe. While it waits for space, the shard's socket is not read. Dropped
events can be fetched from Kinesis again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Final, NamedTuple

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.quiet import Quiet
from kinesis_efo.decisions.rows import STARVING_SECONDS
from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import EVENT_OVERHEAD, Budget, ShardRoom
from kinesis_efo.positions import AFTER, LastRecord, Position, ShardKey, ShardRange
from kinesis_efo.records.events import Arrivals, Event, first_number, has_record, last_record, read_arrivals

logger = logging.getLogger(__name__)

YIELD_SECONDS: Final = 10.0
"""Once the next event has waited this many seconds for space, events needed only by queries without a reading task are dropped."""

CLAIM_SECONDS: Final = 30.0
"""Events are no longer retained for a task that makes no progress for this many seconds while another task waits for the next event."""


class NotCovered(Exception):
    """Raised if a buffer does not contain `left`, the unread rest of a range. The run then decides which buffer to read it from."""

    def __init__(self, left: ShardRange) -> None:
        super().__init__(str(left))
        self.left = left


_AT_END: Final = LastRecord(0)


class BufferedEvent(NamedTuple):
    """A buffered event as a fetcher reports it to the run, without its payload."""

    through: Position  # The position after the event
    size: int  # Bytes in the buffer
    records: int  # Number of Kinesis records
    # The last record. If its sequence number is that of `through`, `_AT_END` replaces it, which makes reports 10% smaller
    last: LastRecord | None
    arrivals: Sequence[Arrivals]  # When the records arrived in the stream; empty if not recorded
    age: int = 0  # Milliseconds since the last record arrived in the stream

    @classmethod
    def of(
        cls,
        through: Position,
        size: int,
        records: int,
        last: LastRecord | None,
        arrivals: Sequence[Arrivals],
        age: int = 0,
    ) -> BufferedEvent:
        is_at_end = last is not None and last == (through.value, 0) and through.kind is AFTER
        return cls(through, size, records, _AT_END if is_at_end else last, arrivals, age)

    @property
    def last_record(self) -> LastRecord | None:
        """The event's last record; None if unknown or without records."""
        return LastRecord(self.through.value) if self.last == _AT_END else self.last


class ShardBuffer(EventIndex):
    """The events of one shard between the positions `start` and `end`: an index of the events, and their payloads.

    `arrived` is called after each change. `arrival_step`: resolution of recorded arrival times in milliseconds; None disables recording.
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
        self.last_record: LastRecord | None = None  # The last record of the dropped events
        # The position up to which all queries have committed; None before the first commit
        self.committed: Position | None = None
        self._budget = budget
        self._account = budget.open_account(key)
        self.room = ShardRoom(self._account, self._begins_to_wait)
        self._waits_since: float | None = None
        self._exceeded = False
        self._extra = -1
        self._arrived = arrived
        self._arrival_step = arrival_step
        self._payloads: list[bytes | None] = []
        self._cursors: set[Cursor] = set()
        self._retained: Mapping[str, Position] = {}
        self.quiet = Quiet()  # Detects whether the shard has been read to its tip
        self.drops = 0
        self.touched_at = budget.now()
        self._closed = False

    @property
    def held(self) -> int:
        """Bytes of the budget that the buffer uses, including those reserved for the next event."""
        return self._account.held

    @property
    def waits(self) -> float | None:
        """Seconds for which the next event has been waiting for space; None if it is not waiting."""
        return self._budget.now() - self._waits_since if self._account.waits and self._waits_since is not None else None

    @property
    def is_read(self) -> bool:
        """Whether a task is reading from the buffer."""
        return bool(self._cursors)

    # -- adding events

    async def admit(self, event: Event, now: float) -> None:
        """Add the next event, received at `now` (monotonic seconds). May wait for space if none was reserved."""
        self.quiet.observe(event.head, now)
        if event.head.still:
            self.room.release()
            return
        # An event without records never waits for space, because it only advances the position of an idle shard.
        idle = not event.head.records and event.head.continuation is not None
        size = 0 if idle else EVENT_OVERHEAD + (len(event.payload) if event.head.records else 0)
        await self.room.occupy(size)
        if not self._closed:
            self._append(event, size, now)

    def _append(self, event: Event, size: int, now: float) -> None:
        head = event.head
        step = self._arrival_step
        arrivals = read_arrivals(event.payload, step) if step is not None and head.records else ()
        first = first_number(event.payload) if self.starts_unnumbered and not len(self) and head.records else None
        if self.append(
            head.continuation, size, head.records, now, arrivals, first=first, last=head.last, behind=head.millis_behind
        ):
            self._payloads.append(event.payload if head.records else None)
            self.touched_at = self._budget.now()
        if size and self.end == self.committed:
            self._evict(len(self))  # no later commit drops this event: all queries have already committed it
        self._drop_what_exceeds(self.end)
        self._arrived()

    def close(self) -> None:
        """Drop everything. The buffer then does not cover any position."""
        if not self._closed:
            self._closed = True
            self.room.close()
            self._arrived()

    # -- reporting to the run

    def covers(self, position: Position) -> bool | None:
        covered = not self._closed and super().covers(position)
        # If the shard seems to have been read to its tip, do not wait for the buffer's first event, which may never arrive.
        return False if covered is None and self.quiet.is_at_tip() else covered

    def entries_since(self, reported: int) -> tuple[list[BufferedEvent], int]:
        """Return the events that were added since the last call, and the total number of events so far.

        `reported` is the total that the last call returned, or 0. If the newest event has no records, it is returned again, because its
        position may have advanced.
        """
        first = max(0, min(reported - self.compacted, len(self) - int(self.idle)))
        entries, now = [], self._budget.now()
        for slot in range(first, len(self)):
            payload, number = self._payloads[slot], self.last_of(slot)
            # Report the last record even if the event was already dropped, so that the run does not end a range before this record.
            last = last_record(payload) if payload is not None else None if number is None else LastRecord(number)
            entries.append(
                BufferedEvent.of(self.end_of(slot), *self.sizes(slot), last, self._arrivals[slot], self.age(slot, now))
            )
        return entries, self.compacted + len(self)

    # -- reading and dropping events

    @contextmanager
    def reading(
        self, after: Position, through: Position, last: int | None = None, asked_at: float = -inf, query: str = ""
    ) -> Iterator[Cursor]:
        """Open a cursor for the range `(after, through]` of a query. While it is open, events after its position are retained.

        Args:
            last: The sequence number of the range's last record; None if unknown.
            asked_at: When the range was requested, monotonic seconds.
        """
        cursor = Cursor(self, after, through, last, asked_at, query)
        self._cursors.add(cursor)
        try:
            yield cursor
        finally:
            self._cursors.remove(cursor)
            self._drop_what_exceeds(cursor.position)
            self._exceed_if_starving()

    def drop_before(self, position: Position, retained: Mapping[str, Position]) -> None:
        """Drop the events before the covered `position`, which no query needs. `retained`: from which position each query needs events."""
        self._retained, self.committed = retained, position
        self._evict(len(self._ends) if position == self.end else self.index_after(position))

    def drop_unread(self, stop: int | None = None) -> None:
        """Drop the events before index `stop` (None: all events), even uncommitted ones, and report that to the run."""
        if (stop := len(self) if stop is None else stop) > self.gone:
            self.drops += 1
            self._evict(stop)
            self._arrived()

    def exceed(self) -> None:
        """Reserve space for the event that is waiting for it, even if the budget is full."""
        self._account.exceed()

    def last_up_to(self, through: Position, after: Position) -> int | None:
        """Return the sequence number of the last record in `(after, through]`; None if it is unknown or there are no records."""
        index = self.index_after(through)
        payload = self._payloads[index] if index < len(self._payloads) and not through.is_end else None
        if payload is None or (first := first_number(payload)) is None:
            return super().last_up_to(through, after)
        inside = last_record(payload, through.value) if first <= through.value else None
        last = self.last_before(index, after) if inside is None else inside.number
        return last if last is not None and after.precedes(last) else None

    def last_record_up_to(self, position: Position) -> LastRecord | None:
        """Return the last record up to a committed position; None if it is unknown or there are no records."""
        last, start = self.last_record, self.start
        if last is not None and last.number > position.value:
            last = None  # later records were dropped, too: the last record up to `position` is unknown
        between = position.kind is start.kind is AFTER and position.value <= start.value
        if position == start or (last is not None and between):
            return last  # there are no records between a dropped event's last record and the event's end
        index = self.index_after(position)
        if position.kind is not AFTER or index != self.gone or index == len(self):
            return None
        payload = self._payloads[index]
        inside = None if payload is None else last_record(payload, position.value)
        return inside or last

    def _columns(self) -> tuple[list[Any], ...]:
        return *super()._columns(), self._payloads

    def _is_at_end(self, position: Position) -> bool:
        return self.index_after(position) == len(self)

    def _begins_to_wait(self) -> None:
        self._waits_since = self._budget.now()
        self.quiet.interrupt()
        self._exceed_if_starving()
        self._arrived()

    def _exceed_if_starving(self) -> None:
        if (waited := self.waits) is None:
            return
        # Ignore tasks that have read their whole range but whose cursors are still open.
        unfinished = [cursor for cursor in self._cursors if not cursor.done]
        waiting = [cursor for cursor in unfinished if self._is_at_end(cursor.position)]
        if not waiting:
            return
        now = self._budget.now()
        passed = [cursor.position for cursor in unfinished if cursor not in waiting and not cursor.lags(now)]
        if waited < YIELD_SECONDS:
            # Until `YIELD_SECONDS` have passed, also retain events that are needed by queries without a task that reads this buffer.
            readers = {cursor.query for cursor in self._cursors}
            passed += [at for query, at in self._retained.items() if query not in readers and self.covers(at)]
        self.drop_unread(min((self.index_after(at) for at in passed), default=len(self)))
        if self.waits is None:
            return
        if self.gone < len(self):
            if self._holds_extra or max(waited, *(cursor.waited(now) for cursor in waiting)) < STARVING_SECONDS:
                return
            self._extra = self.compacted + len(self)
        self.exceed()
        self._exceeded = True

    @property
    def _holds_extra(self) -> bool:
        """Whether the buffer still has the event that was admitted beyond the budget."""
        return self.gone <= self._extra - self.compacted < len(self)

    def _drop_what_exceeds(self, read: Position) -> None:
        # Drop the events that exceed the budget once they have been read. Otherwise, the budget could stay full and block the next task.
        if self._exceeded and all(cursor.given_up for cursor in self._cursors):
            self._exceeded = False
            self.drop_unread(self.index_after(read))

    def _evict(self, stop: int) -> None:
        gone = self.gone
        if stop <= gone:
            return
        if self.held:
            last = next((payload for payload in reversed(self._payloads[gone:stop]) if payload is not None), None)
            if last is not None:
                self.last_record = last_record(last) or self.last_record
            # Free the payloads now, but keep their slots in the list: removing slots is slow, so `drop` removes many at once.
            self._payloads[gone:stop] = [None] * (stop - gone)
        if freed := self.drop(stop):
            self._account.release(freed)


class Cursor:
    """Reads a range from a buffer for one task of `query`. `position` is the end of the last event that the task has read."""

    __slots__ = (
        "_asked_at",
        "_buffer",
        "_found",
        "_holds_up_since",
        "_last",
        "_through",
        "_waits_since",
        "beyond",
        "given_up",
        "position",
        "query",
        "settled",
    )

    def __init__(
        self,
        buffer: ShardBuffer,
        position: Position,
        through: Position,
        last: int | None,
        asked_at: float,
        query: str = "",
    ) -> None:
        self.query = query
        self._buffer = buffer
        self._through = through
        self._last = last
        self._asked_at = asked_at
        self._found = last is not None and not position.precedes(last)
        self._waits_since: float | None = None
        self._holds_up_since: float | None = None
        self.position = self.settled = position  # `settled`: the end of the last event with records that was read
        # Set if an event ends at or after the range's last record without containing it: the event's payload; [] if it has no records
        self.beyond: list[bytes] | None = None
        # Whether events are no longer retained for this task, because it made no progress while another task was waiting
        self.given_up = False

    def waited(self, now: float) -> float:
        """Return for how many seconds the task has been waiting for new events."""
        return 0.0 if self._waits_since is None else now - self._waits_since

    def lags(self, now: float) -> bool:
        """Whether the task has made no progress for `CLAIM_SECONDS`. Call this only while another task is waiting for the next event."""
        if self._holds_up_since is None:
            self._holds_up_since = now
        if not self.given_up and now - self._holds_up_since >= CLAIM_SECONDS:
            self.given_up = True
            logger.warning(
                "shard %s: a task has not read its range for %.0f s, at %s, while another task waits: its events are no longer buffered, "
                "and are fetched from Kinesis again if it continues",
                self._buffer.key,
                now - self._holds_up_since,
                self.position,
            )
        return self.given_up

    @property
    def done(self) -> bool:
        """Whether the task has received its whole range.

        A range with a known last record is complete once this record was read. Any other range is complete once its end position or the
        shard's tip was reached. The tip is sufficient: the end position lies in the past, so no more records will arrive before it, and
        an event that ends exactly there may never arrive.
        """
        if self._last is not None:
            return self._found
        if self.position.reaches(self._through):
            return True
        # Reaching the tip is not sufficient if the range ends at the shard's end, or if the buffer may lack records after `position`.
        buffer = self._buffer
        believed = not self._through.is_end and buffer.quiet.is_at_tip(self._asked_at)
        return believed and buffer._is_at_end(self.position) and bool(buffer.covers(self.position))

    def read(self, max_bytes: int) -> list[bytes]:
        """Return the next payloads, up to the event that ends the range or exceeds `max_bytes`; empty if nothing has arrived yet.

        Raises `FetcherError` if the buffer does not cover the position.
        """
        buffer = self._buffer
        if buffer.covers(self.position) is False:
            raise FetcherError(f"shard {buffer.key}: the buffer does not cover {self.position} any more")
        payloads: list[bytes] = []
        size = 0
        buffer.touched_at = buffer._budget.now()
        index = buffer.index_after(self.position)
        while index < len(buffer) and size < max_bytes and not self.done:
            payload, end = buffer._payloads[index], buffer.end_of(index)
            if self._last is not None and not end.precedes(self._last):
                self._found = payload is not None and has_record(payload, self._last)
                if not self._found:
                    self.beyond = [] if payload is None else [payload]
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
