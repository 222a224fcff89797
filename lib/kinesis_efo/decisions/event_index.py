"""Indexes the ends, sizes and times of one shard's buffered events, for planning.

The run also has such an index for a shard that is buffered in another process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from kinesis_efo.positions import AFTER, SHARD_END, TRIM_HORIZON, LastRecord, Position, PositionKind
from kinesis_efo.records.events import Arrivals

_COMPACT_AFTER: Final = 8
"""Slots of dropped events are removed in groups larger than this, since each removal moves all later slots."""
_BEHIND_ALL: Final = 10**400


class Portion(NamedTuple):
    """The events of one shard that a micro-batch reads."""

    through: Position  # The end of the last event
    bytes: int
    records: int
    last: int | None = None  # The sequence number of the last record; None if unknown or without records
    events: int = 0  # An upper bound for the number of events with records


@dataclass(slots=True, eq=False, repr=False)
class EventIndex:
    """The events of one shard after the position `start`, in order and without gaps."""

    start: Position
    end: Position = field(init=False)
    # The original `start`, which the index covers until an event with records is dropped; then None
    _origin: Position | None = field(init=False)
    # When the oldest buffered records were received, monotonic seconds; None without records
    waiting_since: float | None = field(default=None, init=False)
    # The latest arrival time of all records that were ever added, epoch milliseconds; `-inf` if unknown
    newest: float = field(default=-inf, init=False)
    # Lists with one slot per event, for bisection. The running totals of bytes and records have one more slot, and include dropped events.
    _ends: list[int] = field(default_factory=list, init=False)
    _since: list[float] = field(default_factory=list, init=False)
    _behind: list[int] = field(default_factory=list, init=False)
    _bytes_through: list[int] = field(default_factory=lambda: [0], init=False)
    _records_through: list[int] = field(default_factory=lambda: [0], init=False)
    _arrivals: list[Sequence[Arrivals]] = field(default_factory=list, init=False)
    _newest_through: list[float] = field(default_factory=list, init=False)
    _last_through: list[int] = field(default_factory=list, init=False)
    # The index has all events after this sequence number; None if unknown
    lowest: int | None = field(init=False)
    gone: int = field(default=0, init=False)  # Dropped events that still have a slot
    compacted: int = field(default=0, init=False)  # Dropped events whose slots were removed
    # When the last event with records was received, and by how many milliseconds it was behind the tip
    _last_lag: tuple[float, int] = field(default=(-inf, 0), init=False)

    def __post_init__(self) -> None:
        self.end = self._origin = self.start
        self.lowest = _BEHIND_ALL if self.start.is_end else self.start.sequence_number

    def __len__(self) -> int:
        """Return the number of events, including dropped events that still have a slot."""
        return len(self._ends)

    @property
    def ended(self) -> bool:
        """Whether the newest event is the end of the shard."""
        return bool(self._ends) and self._ends[-1] == _BEHIND_ALL

    @property
    def idle(self) -> bool:
        """Whether the newest event is empty and does not end the shard."""
        return self.gone < len(self._ends) and self._records_through[-1] == self._records_through[-2] and not self.ended

    @property
    def held(self) -> int:
        """Bytes of the retained events."""
        return self._bytes_through[-1] - self._bytes_through[self.gone]

    @property
    def records(self) -> int:
        """Kinesis records in the retained events."""
        return self._records_through[-1] - self._records_through[self.gone]

    def append(
        self,
        continuation: int | None,
        size: int,
        records: int,
        now: float,
        arrivals: Sequence[Arrivals] = (),
        *,
        first: int | None = None,
        last: int | None = None,
        behind: int = 0,
    ) -> bool:
        """Append an event. Return whether it got a new slot: successive events without records share a slot.

        Args:
            continuation: The sequence number to continue after; None at the end of the shard.
            size: Bytes in the buffer; 0 for an event without records that does not end the shard.
            records: The number of Kinesis records.
            now: When the event was received, monotonic seconds.
            arrivals: When the records arrived in the stream.
            first: Sequence number of the first record; required for the first event if `starts_unnumbered`.
            last: Sequence number of the last record.
            behind: The event's lag in milliseconds (`MillisBehindLatest`).
        """
        end = _BEHIND_ALL if continuation is None else continuation
        if self.starts_unnumbered and not self._ends:
            self.extend_coverage(end if first is None else first)
        # An event without records may have a lower position than the previous event. Ignore that position: an offset must not move back.
        if self.end.kind is AFTER:
            end = max(end, self.end.value)
        elif self.end.kind is PositionKind.INSIDE and end < self.end.value and not records:
            return False
        self.end = _position(end)
        if not size and self.idle:
            # An idle shard sends an empty event every few seconds: retain only the newest position.
            self._ends[-1] = end
            return False
        self._ends.append(end)
        self._since.append(now)
        self._behind.append(behind)
        self._bytes_through.append(self._bytes_through[-1] + size)
        self._records_through.append(self._records_through[-1] + records)
        self.newest = max(self.newest, _newest(arrivals))
        self._arrivals.append(arrivals)
        self._newest_through.append(self.newest)
        if last is None and arrivals:
            last = arrivals[-1].through
        before = self._last_through[-1] if self._last_through else 0
        self._last_through.append(before if not records else 0 if last is None else max(last, before))
        if records:
            self._last_lag = now, behind
            if self.waiting_since is None:
                self.waiting_since = now
        return True

    @property
    def starts_unnumbered(self) -> bool:
        """Whether the index starts at a time or the trim horizon. The sequence numbers it covers are then unknown until the first event."""
        return self.start.kind in (PositionKind.AT_TIMESTAMP, PositionKind.TRIM_HORIZON)

    def covers(self, position: Position) -> bool | None:
        """Whether the buffer has, or will receive, all events after a position without gaps; None if unknown until the first event."""
        numbered = position.kind is AFTER
        if numbered and self.lowest is not None and position.value >= self.lowest:
            return True
        if position in (self.start, self._origin) or position.is_end:
            return True
        return None if numbered and self.starts_unnumbered and not self._ends else False

    def ends_before(self, position: Position) -> bool:
        """Whether a position is certainly after the end of this index; False if the two cannot be compared."""
        return not self.end.reaches(position) and (self.end.kind is AFTER or self.end == TRIM_HORIZON)

    def extend_coverage(self, number: int) -> None:
        """Record that an index which starts at a time or the trim horizon covers all events after the sequence number `number`.

        A reader at `number` can then use the buffer. Otherwise, two readers could move the subscription back and forth forever.
        """
        if self.starts_unnumbered and (self.lowest is None or number < self.lowest):
            self.lowest = number

    def end_of(self, index: int) -> Position:
        """Return the position after the event at `index`."""
        return self.end if index == len(self._ends) - 1 else _position(self._ends[index])

    def index_after(self, position: Position) -> int:
        """Return the index of the first event after the covered `position`. An event counts as read once its last record was read."""
        ends, number = self._ends, position.value
        if position.kind is not AFTER:
            return len(ends) if position.is_end else self.gone
        index = bisect_right(ends, number, self.gone)
        passed = index < len(ends) and 0 < self._last_through[index] <= number and self.sizes(index)[1]
        return index + 1 if passed and ends[index] != _BEHIND_ALL else index

    def news_since(self, after: Position) -> float | None:
        """Return the receive time (monotonic seconds) of the first event after `after` with records or the shard's end; None if none."""
        news = self._first_news(self.index_after(after))
        return self._since[news] if news < len(self._ends) else None

    def has_nothing_after(self, position: Position) -> bool:
        """Whether the index covers `position`, and all its records are at or before it."""
        return position == self.end or (self.covers(position) is True and self.news_since(position) is None)

    def lag(self, after: Position, now: float) -> int | None:
        """Return the age in milliseconds of the first event after `after` that has records or ends the shard; None if there is none."""
        news = self._first_news(self.index_after(after))
        return self.age(news, now) if news < len(self._ends) else None

    def age(self, index: int, now: float) -> int:
        """Return the milliseconds from the arrival of an event's last record in the stream to `now` (monotonic seconds)."""
        return self._behind[index] + max(0, round(1000 * (now - self._since[index])))

    def lag_since(self, since: float) -> int:
        """Return by how many milliseconds the last event with records was behind the tip; 0 if it was received before `since`."""
        at, lag = self._last_lag
        return lag if at >= since else 0

    def portion(
        self, after: Position, max_bytes: int, max_records: int, horizon: float | None = None, *, some: bool = False
    ) -> Portion:
        """Return the whole events after `after` that fit the limits. With `some`, the first event with records may exceed the limits.

        With `horizon` (epoch milliseconds), omit records that arrived later, even if this divides an event.
        """
        if horizon is not None:
            return self._portion_before(after, max_bytes, max_records, horizon, some=some)
        first = self.index_after(after)
        by_bytes = bisect_right(self._bytes_through, self._bytes_through[first] + max_bytes, first + 1)
        by_records = bisect_right(self._records_through, self._records_through[first] + max_records, first + 1)
        last = min(by_bytes, by_records) - 1
        if some:
            last = max(last, min(self._first_news(first) + 1, len(self._ends)))
        if last == first:
            return Portion(after, 0, 0)
        records = self._records_through[last] - self._records_through[first]
        return Portion(
            self.end_of(last - 1),
            self._bytes_through[last] - self._bytes_through[first],
            records,
            self.last_before(last, after),
            min(last - first, records),
        )

    def last_up_to(self, through: Position, after: Position) -> int | None:
        """Return the sequence number of the last record in `(after, through]`; None without records, or if `through` is within an event."""
        if not self.end.reaches(through):
            return None
        stop = self.index_after(through)
        begins_there = stop > self.gone and through == self.end_of(stop - 1)
        cut = stop < len(self._ends) and self.sizes(stop)[1] > 0 and not begins_there
        return None if cut else self.last_before(stop, after)

    def last_record_up_to(self, position: Position) -> LastRecord | None:  # noqa: ARG002
        """Return the last record up to `position`, if it is known. This base class returns None; subclasses override the method."""
        return None

    def last_before(self, stop: int, after: Position) -> int | None:
        """Return the sequence number of the last record after `after` in the events before index `stop`; None if none or unknown."""
        last = self._last_through[stop - 1] if stop > self.gone else 0
        return last if last and after.precedes(last) else None

    def last_of(self, index: int) -> int | None:
        """Return the sequence number of an event's last record; None if unknown or without records. The event may have been dropped."""
        records = self._records_through[index + 1] - self._records_through[index]
        return (self._last_through[index] or None) if records else None

    def arrival_after(self, after: Position) -> float | None:
        """Return the arrival time (epoch milliseconds) of the first record after the covered position `after`; None if there is none."""
        number = after.value if after.kind is AFTER else -1
        for arrivals in islice(self._arrivals, self.index_after(after), None):
            for group in arrivals:
                if group.through > number:
                    return group.earliest
        return None

    def _portion_before(
        self, after: Position, max_bytes: int, max_records: int, horizon: float, *, some: bool
    ) -> Portion:
        """Return records after `after` that fit the limits and arrived by `horizon` (epoch milliseconds). The index must cover `after`.

        The portion may end within an event. With `some`, its first group of `Arrivals` may exceed the limits, but not `horizon`.
        """
        first = self.index_after(after)
        whole = self.portion(after, max_bytes, max_records)
        stop = self._stop_before(horizon, first, self.index_after(whole.through))
        size = self._bytes_through[stop] - self._bytes_through[first]
        records = self._records_through[stop] - self._records_through[first]
        number = after.value if after.kind is AFTER else -1
        if stop < len(self._ends) and (arrivals := [group for group in self._arrivals[stop] if group.through > number]):
            event_size, event_records = self.sizes(stop)
            taken, through = 0, 0
            for group in arrivals:
                more = taken + group.records
                # Assume that the event's records are of equal size.
                fits = records + more <= max_records and size + event_size * more // event_records <= max_bytes
                if group.latest > horizon or not (fits or (some and not records and not taken)):
                    break
                taken, through = more, group.through
            if taken:
                return Portion(
                    Position.after(through),
                    size + max(1, event_size * taken // event_records),
                    records + taken,
                    through,
                    min(stop + 1 - first, records + taken),
                )
        elif some and not records:
            # The next event lacks arrival times or ends the shard, so it cannot be split.
            return self.portion(after, max_bytes, max_records, some=True)
        end = self.end_of(stop - 1) if stop > first else after
        last = self.last_before(stop, after) if records else None
        return Portion(end, size, records, last, min(stop - first, records))

    def _stop_before(self, horizon: float, first: int, last: int) -> int:
        """Return the index of the first event in `[first, last)` with a record that arrived after `horizon`; `last` if there is none."""
        index = bisect_right(self._newest_through, horizon, first, last)
        # Check each event: records may have arrived out of order.
        while index < last and _newest(self._arrivals[index]) <= horizon:
            index += 1
        return index

    def sizes(self, index: int) -> tuple[int, int]:
        return (
            self._bytes_through[index + 1] - self._bytes_through[index],
            self._records_through[index + 1] - self._records_through[index],
        )

    def drop(self, stop: int) -> int:
        """Drop the events before index `stop`, and return their size in bytes. The indexes of the other events may change."""
        freed = self._bytes_through[stop] - self._bytes_through[self.gone]
        self.start = self.end_of(stop - 1)
        if freed or self.start.is_end:
            self._origin = None
            # Cover all positions from the last dropped record on: no record lies between that record and the new start.
            self.lowest = _BEHIND_ALL if self.start.is_end else self._last_through[stop - 1] or self._ends[stop - 1]
            waiting = self._first_news(stop)
            self.waiting_since = self._since[waiting] if waiting < len(self._ends) else None
        self.gone = stop
        if stop > _COMPACT_AFTER and stop * 2 > len(self._ends):
            for column in self._columns():
                del column[:stop]
            self.compacted += stop
            self.gone = 0
        return freed

    def _columns(self) -> tuple[list[Any], ...]:
        """All lists that have one slot per event, to drop the same slots from each of them."""
        sums = self._bytes_through, self._records_through
        return self._ends, self._since, self._behind, *sums, self._arrivals, self._newest_through, self._last_through

    def _first_news(self, first: int) -> int:
        index = bisect_right(self._records_through, self._records_through[first], first + 1) - 1
        if index == len(self._ends) > first and self.ended:
            return index - 1
        return index


def _newest(arrivals: Sequence[Arrivals]) -> float:
    return max((group.latest for group in arrivals), default=-inf)


def _position(end: int) -> Position:
    return SHARD_END if end == _BEHIND_ALL else Position(AFTER, end)
