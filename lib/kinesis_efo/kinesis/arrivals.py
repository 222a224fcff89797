"""Reads when the records of an event arrived: in a few marks, enough to end a micro-batch at a time, or the last one alone."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from kinesis_efo.kinesis.events import sequence_number

_NAME: Final = b'"ApproximateArrivalTimestamp"'
_ARRIVAL: Final = re.compile(rb'"ApproximateArrivalTimestamp"\s*:\s*([-+0-9.eE]+)')


class Mark(NamedTuple):
    """Records of an event, one behind the other, that arrived at about the same time.

    Attributes:
        earliest: When the earliest of them arrived, epoch milliseconds.
        latest: When the latest of them arrived, epoch milliseconds.
        through: The sequence number of the last one.
        records: How many they are.
    """

    earliest: int
    latest: int
    through: int
    records: int


class _Record(msgspec.Struct, rename="pascal", gc=False):
    sequence_number: str
    approximate_arrival_timestamp: float | None = None


class _Payload(msgspec.Struct, rename="pascal"):
    records: list[_Record] = []


_DECODER = msgspec.json.Decoder(_Payload)


def read_marks(payload: bytes, step: int) -> tuple[Mark, ...]:
    """Read when the records of an event arrived.

    Args:
        payload: JSON as it came in the frame.
        step: Milliseconds that the records of one mark may be apart.

    Returns:
        The marks, in the order of the records. None if a record does not say when it arrived, or cannot be read: whoever
        decodes the event says so.

    >>> payload = b'{"Records":[%b,%b,%b]}' % tuple(
    ...     b'{"SequenceNumber":"%d","ApproximateArrivalTimestamp":%d,"Data":""}' % each for each in ((1, 10), (2, 11), (3, 60))
    ... )
    >>> for mark in read_marks(payload, 5_000):
    ...     print(mark)
    Mark(earliest=10000, latest=11000, through=2, records=2)
    Mark(earliest=60000, latest=60000, through=3, records=1)
    """
    try:
        records = _DECODER.decode(payload).records
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    marks: list[Mark] = []
    earliest = latest = count = 0
    last = ""
    for record in records:
        if record.approximate_arrival_timestamp is None:
            return ()
        arrived = round(record.approximate_arrival_timestamp * 1000)
        if count and not latest - step <= arrived <= earliest + step:
            marks.append(Mark(earliest, latest, sequence_number("SequenceNumber", last), count))
            count = 0
        earliest, latest = (min(earliest, arrived), max(latest, arrived)) if count else (arrived, arrived)
        count += 1
        last = record.sequence_number
    if count:
        marks.append(Mark(earliest, latest, sequence_number("SequenceNumber", last), count))
    return tuple(marks)


def last_arrival(payload: bytes) -> float | None:
    """When the last record of an event arrived, epoch milliseconds; None if it does not say.

    >>> last_arrival(b'{"Records":[{"ApproximateArrivalTimestamp":1.7E9,"Data":""}]}')
    1700000000000.0
    """
    found = _ARRIVAL.match(payload, max(payload.rfind(_NAME), 0))
    return float(found[1]) * 1000 if found else None
