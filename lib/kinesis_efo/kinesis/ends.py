"""Finds a shard's tip, or the position just before its first record that arrived at or after a given time.

Used for queries and batch reads that have an end. A single response never proves that the tip was reached (see `Quiet`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from kinesis_efo.decisions.quiet import Quiet
from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.transport import EventStream
from kinesis_efo.positions import Position, PositionKind
from kinesis_efo.records.events import EventHead, last_record, read_arrivals

_LOOK_BACK_SECONDS: Final = (30.0, 600.0)
"""The first two searches for the last record begin this many seconds before the given time. The third begins at the query's position."""

_POLLED_LOOK_BACK_SECONDS: Final = (2.0, 60.0, 1800.0, 54_000.0)
"""How many seconds before the given time the searches with GetRecords begin. There are more of these searches, because they can follow each
other immediately. The first begins close to the given time, because a search reads all records from its beginning on."""

_FAR_MILLIS: Final = 5_000


class LookResult(NamedTuple):
    """The result of searching one subscription for the last record before a given time, or for the tip."""

    position: Position | None  # How far the shard was read; None if reading did not advance
    complete: bool  # Whether the tip or the given time was reached; False if the search was given up
    record: int | None = None  # The sequence number of the last record found, if available


class End(NamedTuple):
    """Where a read of a shard ends: the position, and the sequence number of the last record up to it, if available."""

    position: Position
    record: int | None = None


def look_from(epoch_ms: int, position: Position, *, polled: bool = False) -> list[Position]:
    """Return the positions from which to search for the last record before a time, nearest to that time first, `position` last.

    Returns an empty list if `position` is not before the time. `polled`: the search uses GetRecords.

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


def is_far(head: EventHead) -> bool:
    """Whether an event's lag is so large that reading all records up to the tip would take too long."""
    return head.millis_behind > _FAR_MILLIS


def is_empty(head: EventHead) -> bool:
    """Whether an event has no records and a zero lag. With GetRecords, this may happen before the tip: search again from earlier."""
    return head.still and not head.millis_behind


async def last_before(
    events: EventStream,
    epoch_ms: int,
    now: Callable[[], float],
    *,
    timed: bool = True,
    gives_up: Callable[[EventHead], bool] | None = None,
    patience: float = inf,
) -> LookResult:
    """Read a shard's events to the tip, or to the first record that arrived at `epoch_ms` or later, then close them.

    Args:
        epoch_ms: Where to stop, epoch milliseconds.
        now: Returns the monotonic time in seconds.
        timed: If True, a record without an arrival time raises `FrameError`; if False, it counts as earlier than `epoch_ms`.
        gives_up: Called for each event; returns whether to give up. Ignored if a record was found and the event's lag is zero.
        patience: `TimeoutError` is raised after this many seconds of empty responses, unless they prove that the tip was reached.

    Raises `FrameError` if the subscription ends before its first record.
    """
    last: Position | None = None
    record: int | None = None
    quiet = Quiet()
    try:
        async for event in events:
            head = event.head
            quiet.observe(head, now())
            if head.records:
                arrivals = read_arrivals(event.payload, 0)
                if not arrivals and timed:
                    raise FrameError(
                        "a record has no arrival time, so the shard cannot be read up to a time. Give kinesis-efo option "
                        "'endingPosition' AFTER:<sequence number> for it"
                    )
                for group in arrivals:
                    if group.latest >= epoch_ms:
                        return LookResult(last, complete=True, record=record)
                    record, last = group.through, Position.after(group.through)
                if not arrivals:
                    # Without arrival times, read the sequence number of the last record from the payload.
                    known = last_record(event.payload)
                    record = None if known is None else known.number
            if not head.still:
                last = event.through
            if head.continuation is None or quiet.is_at_tip():
                return LookResult(last, complete=True, record=record)
            if gives_up is not None and gives_up(head) and (record is None or head.millis_behind):
                return LookResult(None, complete=False)
            if quiet.seconds_empty(0.0) >= patience:
                raise TimeoutError(f"the shard's tip is unknown: {quiet}")
    finally:
        events.close()
    if last is None:
        # An iterator that expires before its first record does not prove that there are no records, so fail: the caller then retries.
        raise FrameError("a subscription or an iterator ended before its first record")
    return LookResult(last, complete=False, record=record)
