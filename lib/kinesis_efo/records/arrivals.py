"""Reads the arrival times of an event's records, so that a micro-batch can end at a given time."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from kinesis_efo.records.events import sequence_number

_NAME: Final = b'"ApproximateArrivalTimestamp"'
_ARRIVAL: Final = re.compile(rb'"ApproximateArrivalTimestamp"\s*:\s*([-+0-9.eE]+)')


class Arrivals(NamedTuple):
    """Consecutive records that arrived between `earliest` and `latest`, epoch milliseconds, up to the sequence number `through`."""

    earliest: int
    latest: int
    through: int
    records: int


class _Arrival(msgspec.Struct, rename="pascal", gc=False):
    sequence_number: str
    approximate_arrival_timestamp: float | None = None


class _Event(msgspec.Struct, rename="pascal"):
    records: list[_Arrival] = []


_DECODER = msgspec.json.Decoder(_Event)


def read_arrivals(payload: bytes, step: int) -> tuple[Arrivals, ...]:
    """Read the arrival times of an event's records, in groups that span at most `step` milliseconds each, in the order of the records.

    Returns an empty tuple if a record is unreadable or lacks an arrival time. (The event's decoder raises the error.)

    >>> payload = b'{"Records":[%b,%b,%b]}' % tuple(
    ...     b'{"SequenceNumber":"%d","ApproximateArrivalTimestamp":%d,"Data":""}' % each for each in ((1, 10), (2, 11), (3, 60))
    ... )
    >>> for group in read_arrivals(payload, 5_000):
    ...     print(group)
    Arrivals(earliest=10000, latest=11000, through=2, records=2)
    Arrivals(earliest=60000, latest=60000, through=3, records=1)
    """
    try:
        records = _DECODER.decode(payload).records
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    groups: list[Arrivals] = []
    earliest = latest = count = 0
    last = ""
    for record in records:
        if record.approximate_arrival_timestamp is None:
            return ()
        arrived = round(record.approximate_arrival_timestamp * 1000)
        if count and not latest - step <= arrived <= earliest + step:
            groups.append(Arrivals(earliest, latest, sequence_number("SequenceNumber", last), count))
            count = 0
        earliest, latest = (min(earliest, arrived), max(latest, arrived)) if count else (arrived, arrived)
        count += 1
        last = record.sequence_number
    if count:
        groups.append(Arrivals(earliest, latest, sequence_number("SequenceNumber", last), count))
    return tuple(groups)


def last_arrival(payload: bytes) -> float | None:
    """Return the arrival time of an event's last record, epoch milliseconds; None if it is missing.

    >>> last_arrival(b'{"Records":[{"ApproximateArrivalTimestamp":1.7E9,"Data":""}]}')
    1700000000000.0
    """
    found = _ARRIVAL.match(payload, max(payload.rfind(_NAME), 0))
    return float(found[1]) * 1000 if found else None
