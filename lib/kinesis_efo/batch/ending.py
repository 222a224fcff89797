"""Decides which rows belong to a shard's range in a batch read (`BatchRange`), and whether all of them have been read. Does no I/O."""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.decisions.quiet import SETTLED_SECONDS, Quiet
from kinesis_efo.errors import FrameError, RetriesExhaustedError, SubscriptionError
from kinesis_efo.positions import Position, PositionKind
from kinesis_efo.records.events import Event, last_arrival

DISORDER_MS: Final = 2_000
"""Reading begins this many milliseconds before a start time and ends this many after an end time: arrival times may be out of order."""


def first_position(part: BatchRange) -> Position:
    """Return where reading begins: at the start of the range or, if the start is a time, `DISORDER_MS` earlier."""
    return part.start if part.since is None else Position.at_timestamp(max(0, part.since - DISORDER_MS))


class Completion:
    """Detects when all rows of a shard's range have been read. Fails the read after `timeout` seconds (`retryTimeout`) without progress."""

    def __init__(self, part: BatchRange, timeout: float) -> None:
        self._part = part
        self._timeout = timeout
        self._quiet = Quiet()

    def after(self, event: Event, server_time: float, now: float) -> bool:
        """Process an event. Return whether the range is complete. `server_time` (epoch seconds) must not be ahead of Kinesis' clock."""
        if not event.head.brings_nothing or self._is_settled(server_time):
            self._quiet.observe(event.head, now)
        if self._is_reached(event) or self._has_nothing_more:
            return True
        if self._quiet.seconds_empty(0.0) >= self._timeout:
            part = self._part
            raise RetriesExhaustedError(
                f"shard {part.key} has not reached {f'its end at AFTER:{part.last}' if part.last else part.end}, where its "
                f"read ends, for {self._quiet.seconds_empty(0.0):.0f} s: {self._quiet}. No record is known to be missing",
                remedy="repeat the read, and check the AWS Health Dashboard for Kinesis problems",
            )
        return False

    def _is_settled(self, server_time: float) -> bool:
        """Whether all records of the range have arrived in the shard, given that Kinesis' time is at least `server_time`."""
        until = self._part.until
        # New records can still fall into a range that ends at a time, but not into one that ends at an existing record.
        return until is None or server_time >= until / 1000 + SETTLED_SECONDS

    def _is_reached(self, event: Event) -> bool:
        head, part = event.head, self._part
        if head.continuation is None:
            return True
        if part.until is None:
            return part.end.kind is PositionKind.AFTER and not head.still and head.continuation >= part.end.value
        arrived = last_arrival(event.payload) if head.records else None
        return arrived is not None and arrived >= part.until + DISORDER_MS

    @property
    def _has_nothing_more(self) -> bool:
        # Empty responses can complete only the range of an open shard: Kinesis reports the end of a closed shard explicitly.
        return self._part.last is None and not self._part.end.is_end and self._quiet.is_at_tip()


def rows_of(part: BatchRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a batch that belong to the shard's range.

    Raises `FrameError` if a row lacks the arrival time that a time range needs. Raises `SubscriptionError` if there are rows, but another
    range may return the same rows (`part.refused`).
    """
    rows = _within(part, batch)
    if part.refused and rows.num_rows:
        raise SubscriptionError(
            f"shard {part.key} is not in the plan of the read, because Kinesis did not list it yet, and comes from a merge with a shard that "
            "may not be read: load the read again in a minute"
        ).about(*part.key)
    return rows


def _within(part: BatchRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    if part.since is None and part.until is None:
        return batch
    arrived = batch.column("approximateArrivalTimestamp")
    if arrived.null_count:
        raise FrameError(
            f"a record of shard {part.key} has no arrival time, so it is unknown whether it belongs to the read. "
            "Read the shard between sequence numbers instead"
        ).about(*part.key)
    since = _LEAST if part.since is None else part.since * 1000
    until = _MOST if part.until is None else part.until * 1000
    times = arrived.cast(pa.int64())
    extremes = pc.min_max(times).as_py()
    if not len(times) or (extremes["min"] >= since and extremes["max"] < until):
        return batch
    # Avoid pa.scalar(), which would import pandas if it is installed.
    first, end = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(array("q", [since, until]))])
    return batch.filter(pc.and_(pc.greater_equal(times, first), pc.less(times, end)))


_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
