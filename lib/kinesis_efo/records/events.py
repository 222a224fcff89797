"""Reads the head of an event (`EventHead`), which the fetcher needs before Spark's tasks decode the records.

An event is a SubscribeToShard message or a GetRecords response, which contains records in the same form. The payload stays raw JSON. If the
native core is installed, it reads most events, with the same result.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from kinesis_efo.errors import FrameError, SequenceNumberError
from kinesis_efo.positions import SHARD_END, LastRecord, Position
from kinesis_efo.records import core
from kinesis_efo.records.aggregation import MAGIC, deaggregate

T = TypeVar("T")

_MOST_DIGITS: Final = 200
_Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class ChildShard(NamedTuple):
    """A child shard, from the last event of a parent shard. It has one parent after a split, two parents after a merge."""

    shard_id: str
    parents: tuple[str, ...]
    starting_hash: int
    ending_hash: int


class EventHead(NamedTuple):
    """The properties of an event that the fetcher needs."""

    continuation: int | None  # The sequence number after which reading continues; None at the shard's end
    millis_behind: int  # The lag in milliseconds, from `MillisBehindLatest`
    records: int  # Number of Kinesis records (an aggregate counts once)
    children: tuple[ChildShard, ...] = ()  # The shard's children; empty before the shard's end
    still: bool = False  # Whether this is an empty GetRecords response, which does not advance the position
    last: int | None = None  # The sequence number of the last record; None if unreadable or without records
    # For an empty response: whether it has the same iterator as the request. Also True for the first request of a subscription
    stuck: bool = False

    @property
    def brings_nothing(self) -> bool:
        """Whether the event has neither records nor the shard's end."""
        return not self.records and (self.still or self.continuation is not None)


class Event(NamedTuple):
    """An event as a subscription delivers it: its raw JSON, which may be empty if it has no records, and its head."""

    payload: bytes
    head: EventHead

    @property
    def through(self) -> Position:
        """The position after this event. Do not use it for an empty GetRecords response (`still`)."""
        return SHARD_END if self.head.continuation is None else Position.after(self.head.continuation)


class Arrivals(NamedTuple):
    """A group of consecutive records: arrival times (epoch milliseconds), last sequence number (`through`), and number of records."""

    earliest: int
    latest: int
    through: int
    records: int


class _HashKeyRange(msgspec.Struct, rename="pascal"):
    starting_hash_key: str
    ending_hash_key: str


class _Child(msgspec.Struct, rename="pascal"):
    shard_id: str
    parent_shards: list[str]
    hash_key_range: _HashKeyRange


class _CountedRecord(msgspec.Struct, gc=False):
    """A record without fields, because `read_head` only counts records."""


class _PolledRecord(msgspec.Struct, rename="pascal", gc=False):
    data: msgspec.Raw
    sequence_number: msgspec.Raw
    partition_key: msgspec.Raw = msgspec.Raw(b'""')


class _EventBody(msgspec.Struct, rename="pascal"):
    continuation_sequence_number: str | None = None
    millis_behind_latest: _Long = 0
    records: list[_CountedRecord] = []
    child_shards: list[_Child] | None = None


class _GetRecordsBody(msgspec.Struct, rename="pascal"):
    records: list[_PolledRecord]
    next_shard_iterator: str | None = None
    millis_behind_latest: _Long = 0
    child_shards: list[_Child] | None = None


class _Arrival(msgspec.Struct, rename="pascal", gc=False):
    sequence_number: str
    approximate_arrival_timestamp: float | None = None


class _ArrivedRecords(msgspec.Struct, rename="pascal"):
    records: list[_Arrival] = []


class GetRecordsAnswer(NamedTuple):
    """A GetRecords response as one event, or as two events if it has both the last records and the end of the shard.

    `iterator` is None at the shard's end. `bytes` is the estimated size of data and keys, which counts against Kinesis' read limit. It may
    be off by a few bytes per record.
    """

    events: tuple[Event, ...]
    iterator: str | None
    millis_behind: int
    bytes: int
    records: int


_DECODER: Final = msgspec.json.Decoder(_EventBody)
_ANSWER: Final = msgspec.json.Decoder(_GetRecordsBody)
_ARRIVED: Final = msgspec.json.Decoder(_ArrivedRecords)
_STILL: Final = 0
_AGGREGATED: Final = b64encode(MAGIC)[:5]
_ARRIVAL_NAME: Final = b'"ApproximateArrivalTimestamp"'
_ARRIVAL: Final = re.compile(rb'"ApproximateArrivalTimestamp"\s*:\s*([-+0-9.eE]+)')
_NUMBER_NAME: Final = b'"SequenceNumber"'
_CONTINUATION: Final = re.compile(rb'"ContinuationSequenceNumber"\s*:')
_UP_TO_NUMBER: Final = re.compile(rb'"SequenceNumber"\s*:\s*')
_NUMBER: Final = re.compile(rb'"SequenceNumber"\s*:\s*"(\d{1,%d})"' % _MOST_DIGITS)

_ABOUT_AN_EVENT: Final = 128
"""Approximate bytes of an event's JSON without its records: names, continuation and lag."""

_ABOUT_A_RECORD: Final = 185
"""Approximate bytes of a record's JSON without its data: names, sequence number, time, and a key of 12 characters."""


def last_record(payload: bytes, through: int | None = None) -> LastRecord | None:
    """Return an event's last record, or its last record up to sequence number `through`; None if there is no such record.

    Searches the JSON text without parsing it: quotes in keys and data are escaped, so they cannot be mistaken for JSON names. Decodes the
    payload only if it seems to contain an aggregate.

    >>> last_record(b'{"Records":[{"SequenceNumber":"41"},{"SequenceNumber":"42"}],"ContinuationSequenceNumber":"50"}')
    LastRecord(number=42, sub=0)
    """
    if through is None:
        found = [digits] if (digits := _last_number(payload)) else []
    else:
        found = [each[1] for each in _NUMBER.finditer(payload) if int(each[1]) <= through]
    if not found:
        return None
    number = max(map(int, found))
    return LastRecord(number, _last_index(payload, number) if _AGGREGATED in payload else 0)


def _last_index(payload: bytes, number: int) -> int:
    try:
        bodies = [
            each.data for each in _ANSWER.decode(payload).records if bytes(each.sequence_number) == b'"%d"' % number
        ]
        users = deaggregate(msgspec.json.decode(bodies[-1], type=bytes), None) if bodies else None
    except (msgspec.MsgspecError, RecursionError):
        return 0  # the task that decodes this event raises the error
    return len(users) - 1 if users else 0


def sequence_number(name: str, text: str) -> int:
    """Parse a sequence number. `name` is the name of its JSON field, for messages.

    Raises `FrameError` if it is not a number, and `SequenceNumberError` if it has leading zeros: requests would be sent without them.

    >>> sequence_number("SequenceNumber", "42")
    42
    """
    if text.startswith("0") and len(text) > 1 and text.isdigit():
        raise SequenceNumberError(
            f"{name} {text[:80]!r} has leading zeros, which Kinesis' numbers never have. Requests would lack the zeros, and a server "
            "that compares numbers as text would find nothing after them: records would be skipped silently. Read from a server that "
            "writes sequence numbers as Kinesis does"
        )
    return _number(name, text)


def read_head(payload: bytes) -> EventHead:
    """Read the head of an event. Raises `FrameError` if it is invalid, `SequenceNumberError` if a sequence number has leading zeros.

    A valid event has either child shards, or a continuation that is not before its last record.

    >>> read_head(b'{"ContinuationSequenceNumber":"42","MillisBehindLatest":7,"Records":[{"SequenceNumber":"41"}]}')
    EventHead(continuation=42, millis_behind=7, records=1, children=(), still=False, last=41, stuck=False)
    """
    if (native := core.CHOSEN.core) and (usual := native.read_head(payload)):
        going_on, behind, records, end = usual
        return EventHead(int(going_on), behind, records, last=None if end is None else int(end))
    event = _decode(_DECODER, payload, "an event")
    continuation = _given(event.continuation_sequence_number)
    if (continuation is None) != bool(event.child_shards):
        found = "neither a continuation nor child shards" if continuation is None else "a continuation and child shards"
        raise FrameError(f"an event of {len(payload)} bytes has {found}; {_sketch(payload)}")
    number = None if continuation is None else sequence_number("ContinuationSequenceNumber", continuation)
    last: int | None = None
    if event.records and (digits := _last_number(payload)) is not None:
        last = sequence_number("SequenceNumber", digits.decode())
        if number is not None and last > number:
            raise FrameError(
                f"an event of {len(payload)} bytes with {len(event.records)} records continues at {number}, before its last record, "
                f"{last}; {_sketch(payload)}"
            )
    children = _children(event.child_shards)
    return EventHead(number, event.millis_behind_latest, len(event.records), children, last=last)


def read_arrivals(payload: bytes, step: int) -> tuple[Arrivals, ...]:
    """Read the arrival times of an event's records. Consecutive records that arrived within `step` milliseconds form one group.

    Returns an empty tuple if a record is unreadable or lacks an arrival time. (The task that decodes the event raises the error.)

    >>> payload = b'{"Records":[%b,%b,%b]}' % tuple(
    ...     b'{"SequenceNumber":"%d","ApproximateArrivalTimestamp":%d,"Data":""}' % each for each in ((1, 10), (2, 11), (3, 60))
    ... )
    >>> for group in read_arrivals(payload, 5_000):
    ...     print(group)
    Arrivals(earliest=10000, latest=11000, through=2, records=2)
    Arrivals(earliest=60000, latest=60000, through=3, records=1)
    """
    try:
        records = _ARRIVED.decode(payload).records
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
    """Return the arrival time of an event's last record in epoch milliseconds; None if it is missing.

    >>> last_arrival(b'{"Records":[{"ApproximateArrivalTimestamp":1.7E9,"Data":""}]}')
    1700000000000.0
    """
    found = _ARRIVAL.match(payload, max(payload.rfind(_ARRIVAL_NAME), 0))
    return float(found[1]) * 1000 if found else None


def read_answer(body: bytes, asked: str | None = None) -> GetRecordsAnswer:
    """Read a GetRecords response. Raises the same errors as `read_head`.

    `asked` is the request's iterator, or None for the first request of a subscription. An empty response with this iterator is `stuck`.

    >>> answer = read_answer(b'{"Records":[{"Data":"eA==","SequenceNumber":"42"}],"NextShardIterator":"i"}')
    >>> str(answer.events[0].through)
    'AFTER:42'
    """
    if (native := core.CHOSEN.core) and (usual := native.read_answer(body)):
        iterator, behind, count, digits, size = usual
        event = (
            _still(behind, stuck=asked in (None, iterator))
            if digits is None
            else _brought(body, behind, count, int(digits))
        )
        return GetRecordsAnswer((event,), iterator, behind, size, count)
    answer = _decode(_ANSWER, body, "an answer")
    behind, records, following = answer.millis_behind_latest, answer.records, _given(answer.next_shard_iterator)
    if (following is None) != bool(answer.child_shards):
        found = "neither an iterator nor child shards" if not answer.child_shards else "an iterator and child shards"
        raise FrameError(f"a response of {len(body)} bytes has {found}; {_sketch(body)}")
    events = []
    if records:
        last = sequence_number(
            "SequenceNumber", bytes(records[-1].sequence_number).strip(b'"').decode(errors="replace")
        )
        events.append(_brought(body, behind, len(records), last))
    if following is None:
        events.append(Event(b"", EventHead(None, behind, 0, _children(answer.child_shards))))
    elif not records:
        events.append(_still(behind, stuck=asked in (None, following)))
    size = sum(len(bytes(record.data)) * 3 // 4 + len(bytes(record.partition_key)) - 2 for record in records)
    return GetRecordsAnswer(tuple(events), following, behind, size, len(records))


def first_number(payload: bytes) -> int | None:
    """Return the sequence number of an event's first record; None if it has no records."""
    found = _NUMBER.search(payload)
    return int(found[1]) if found else None


def has_record(payload: bytes, number: int) -> bool:
    """Whether an event has the record with sequence number `number`. Searches the JSON text without parsing it."""
    # Do not use a regular expression with the number in it: compiling that would cost more than the search.
    quoted, behind = b'"%d"' % number, 0
    while (at := payload.find(quoted, behind)) != -1:
        # If the name does not occur before the number, rfind returns -1, which fullmatch treats as 0: there is no match.
        if _UP_TO_NUMBER.fullmatch(payload, payload.rfind(_NUMBER_NAME, behind, at), at):
            return True
        behind = at + 1
    return False


def position_after(payload: bytes) -> Position:
    """Return the position after an event, or after a GetRecords response with records. Raises the same errors as `read_head`."""
    # Search for the JSON name with its colon: the name alone could also be a record's partition key.
    if _CONTINUATION.search(payload):
        return Event(payload, read_head(payload)).through
    return read_answer(payload).events[0].through


def data_in(arrived: float | None, records: float | None, events: float = 0) -> float | None:
    """Estimate how many of `arrived` bytes of events are record data, given the number of records and events. All three may be rates.

    The other bytes are JSON, base64 and keys. The number of events only matters if events have few records.

    >>> data_in(1_525_000.0, 1000.0), data_in(100.0, 5.0), data_in(7.0, None)
    (1005000.0, 0.0, None)
    >>> data_in(340.0, 1.0, 1.0)
    20.25
    """
    if arrived is None or records is None:
        return None
    return max(0.0, (arrived - _ABOUT_A_RECORD * records - _ABOUT_AN_EVENT * events) * 3 / 4)


def _brought(body: bytes, behind: int, records: int, last: int) -> Event:
    return Event(body, EventHead(last, behind, records, last=last))


def _still(behind: int, *, stuck: bool) -> Event:
    return Event(b"", EventHead(_STILL, behind, 0, still=True, stuck=stuck))


def _given(text: str | None) -> str | None:
    """Convert an empty string to None: at a shard's end, some servers send an empty continuation or iterator instead of omitting it."""
    return text or None


def _last_number(payload: bytes) -> bytes | None:
    found = _NUMBER.match(payload, max(payload.rfind(_NUMBER_NAME), 0))
    return found[1] if found else None


def _children(children: list[_Child] | None) -> tuple[ChildShard, ...]:
    return tuple(
        ChildShard(
            child.shard_id,
            tuple(child.parent_shards),
            _number("StartingHashKey", child.hash_key_range.starting_hash_key),
            _number("EndingHashKey", child.hash_key_range.ending_hash_key),
        )
        for child in children or ()
    )


def _decode(decoder: msgspec.json.Decoder[T], payload: bytes, what: str) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"{what} of {len(payload)} bytes cannot be read: {error}; {_sketch(payload)}") from None


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise FrameError(f"{name} of an event must be a number of at most {_MOST_DIGITS} digits; got {text[:80]!r}")
    return int(text)


def _sketch(payload: bytes) -> str:
    return f"it begins with {payload[:80]!r}"
