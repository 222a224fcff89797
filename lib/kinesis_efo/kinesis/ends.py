"""Finds where a read of a shard ends: at its tip, or just before its first record that arrived at a given time or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kinesis_efo.decisions.quiet import Quiet
from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.transport import EventStream
from kinesis_efo.positions import Position, PositionKind
from kinesis_efo.records.arrivals import read_arrivals
from kinesis_efo.records.events import last_record

_LOOK_BACK_SECONDS: Final = (30.0, 600.0)
"""How many seconds before the given time the first and the second search for the last record begin; a third begins at the query's position."""

_POLLED_LOOK_BACK_SECONDS: Final = tuple(30.0 * 10**power for power in range(7))
"""The same for searches with GetRecords. There are more of them, because they need not wait for each other."""


class LookResult(NamedTuple):
    """What one subscription found: the position after the last record before the time, None if there was no record.

    `complete` is whether nothing else lies before the time. If not, the subscription ended too soon: continue at `position`. `record` is the
    sequence number of that last record, if it is known.
    """

    position: Position | None
    complete: bool
    record: int | None = None


class End(NamedTuple):
    """Where a read of a shard ends: the position, and the sequence number of the last record up to it, if that is known."""

    position: Position
    record: int | None = None


def look_from(epoch_ms: int, position: Position, *, polled: bool = False) -> list[Position]:
    """Return from which positions to search for the last record before a time, in order; none if the query's position is not before it.

    >>> [str(each) for each in look_from(1_000_000, Position.after(42))]
    ['AT_TIMESTAMP:970000', 'AT_TIMESTAMP:400000', 'AFTER:42']
    >>> look_from(1_000_000, Position.at_timestamp(1_000_000))
    []
    """
    begins = position.value if position.kind is PositionKind.AT_TIMESTAMP else 0
    if begins >= epoch_ms:
        return []
    times = [
        max(0, epoch_ms - round(seconds * 1000))
        for seconds in (_POLLED_LOOK_BACK_SECONDS if polled else _LOOK_BACK_SECONDS)
    ]
    return [*(Position.at_timestamp(time) for time in times if time > begins), position]


async def last_before(
    events: EventStream, epoch_ms: int, now: Callable[[], float], *, timed: bool = True
) -> LookResult:
    """Read a shard's events to the tip, or to the first record that arrived at `epoch_ms` (epoch milliseconds) or later, and close them.

    If `timed`, a record without an arrival time raises `FrameError`; else it counts as earlier. `now` returns the monotonic time, seconds.
    """
    last: Position | None = None
    record: int | None = None
    quiet = Quiet()
    try:
        async for event in events:
            head = event.head
            quiet.heard(head, now())
            if head.records:
                arrivals = read_arrivals(event.payload, 0)
                if not arrivals and timed:
                    raise FrameError(
                        "a record does not say when it arrived, so that the shard cannot be read up to a time. Give kinesis-efo option "
                        "'endingPosition' AFTER:<sequence number> for it"
                    )
                for group in arrivals:
                    if group.latest >= epoch_ms:
                        return LookResult(last, complete=True, record=record)
                    record, last = group.through, Position.after(group.through)
                if not arrivals:
                    # Do not keep the number of an earlier event's record, because this event's records come after it.
                    known = last_record(event.payload)
                    record = None if known is None else known.number
            if not head.still:
                last = event.through
            # One event without lag is enough, because an end that is too early loses nothing.
            if head.continuation is None or not head.millis_behind or quiet.believed():
                return LookResult(last, complete=True, record=record)
    finally:
        events.close()
    return LookResult(last, complete=False, record=record)


async def first_end(events: EventStream) -> Position:
    """Return the position after the first event, and close the events. If they begin at the tip, this position is the tip."""
    try:
        async for event in events:
            return event.through
    finally:
        events.close()
    raise FrameError("a subscription at LATEST ended before its first event")
