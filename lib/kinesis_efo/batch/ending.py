"""Decides which rows belong to a stretch, and when all of them were read. Pure."""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kinesis_efo.batch.stretches import Stretch
from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.arrivals import last_arrival
from kinesis_efo.kinesis.events import Event
from kinesis_efo.positions import Position, PositionKind

DISORDER_MS: Final = 2_000
"""Kinesis does not promise that arrival times grow along a shard. Reading begins so much before a time, and goes on so much behind."""

SETTLED_SECONDS: Final = 1.0
"""So long after a time, whatever arrived before it can be read."""


def first_position(stretch: Stretch) -> Position:
    """Where reading begins: at the start of the stretch, or somewhat before where that is a time."""
    return stretch.start if stretch.since is None else Position.at_timestamp(max(0, stretch.since - DISORDER_MS))


def is_complete(stretch: Stretch, event: Event, server_time: float) -> bool:
    """Whether all rows of a stretch were read once an event was.

    Args:
        stretch: The stretch.
        event: The last event.
        server_time: When Kinesis answered with it at the earliest, by its own clock; epoch seconds.
    """
    head = event.head
    if head.continuation is None:
        return True
    # Not with records: others of the same millisecond may follow them.
    at_tip = head.millis_behind == 0 and not head.records
    if stretch.until is None:
        # No record that comes now has a number as low as one that was known when the read was planned.
        return stretch.end.kind is PositionKind.AFTER and (
            at_tip or (not head.still and head.continuation >= stretch.end.value)
        )
    if at_tip and server_time >= stretch.until / 1000 + SETTLED_SECONDS:
        return True
    arrived = last_arrival(event.payload) if head.records else None
    return arrived is not None and arrived >= stretch.until + DISORDER_MS


def rows_of(stretch: Stretch, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a batch that belong to a stretch.

    Raises:
        FrameError: The stretch begins or ends at a time, and a row does not say when it arrived.
    """
    since, until = stretch.since, stretch.until
    if since is None and until is None:
        return batch
    arrived = batch.column("approximateArrivalTimestamp")
    if arrived.null_count:
        raise FrameError(
            f"a record of shard {stretch.key} does not say when it arrived, so that it cannot be told whether it belongs to a "
            "stretch of time. Read the shard between sequence numbers instead"
        )
    times = arrived.cast(pa.int64())
    extremes = pc.min_max(times).as_py() if len(times) else {"min": 0, "max": -1}
    if (since is None or extremes["min"] >= since * 1000) and (until is None or extremes["max"] < until * 1000):
        return batch
    kept = None
    for wanted in (
        pc.greater_equal(times, _scalar(since)) if since is not None else None,
        pc.less(times, _scalar(until)) if until is not None else None,
    ):
        if wanted is not None:
            kept = wanted if kept is None else pc.and_(kept, wanted)
    return batch.filter(kept)


def _scalar(milliseconds: int) -> pa.Scalar:
    # pa.scalar() would import pandas where it is installed.
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(array("q", [milliseconds * 1000]))])[0]
