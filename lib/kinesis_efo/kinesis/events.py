"""The head of a SubscribeToShard event: what must be known of it before its records are decoded.

The payload stays raw JSON; decoding records is the Spark tasks' work (`records`). Relies on msgspec, which skips what is
not asked for.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from kinesis_efo.errors import FrameError
from kinesis_efo.positions import SHARD_END, Position

_MOST_DIGITS: Final = 200


class ChildShard(NamedTuple):
    """A shard that continues the one whose end an event tells.

    Attributes:
        shard_id: Its id.
        parents: Ids of its parents: one after a split, two after a merge.
        starting_hash: First hash key it takes.
        ending_hash: Last hash key it takes.
    """

    shard_id: str
    parents: tuple[str, ...]
    starting_hash: int
    ending_hash: int


class EventHead(NamedTuple):
    """What the fetcher needs of an event.

    Attributes:
        continuation: Sequence number to continue behind, or None where the shard ends.
        millis_behind: How far the event lags behind the shard's tip, in milliseconds.
        records: Number of Kinesis records in it; aggregated ones count once.
        children: The shards that continue this one; only where the shard ends.
    """

    continuation: int | None
    millis_behind: int
    records: int
    children: tuple[ChildShard, ...] = ()


class Event(NamedTuple):
    """An event as a subscription delivers it.

    Attributes:
        payload: The raw JSON.
        head: What was read of it.
    """

    payload: bytes
    head: EventHead

    @property
    def through(self) -> Position:
        """How far the shard is read once this event is."""
        return SHARD_END if self.head.continuation is None else Position.after(self.head.continuation)


class _HashKeyRange(msgspec.Struct, rename="pascal"):
    starting_hash_key: str
    ending_hash_key: str


class _Child(msgspec.Struct, rename="pascal"):
    shard_id: str
    parent_shards: list[str]
    hash_key_range: _HashKeyRange


class _Record(msgspec.Struct):
    """No fields: records are counted, not read."""


class _Payload(msgspec.Struct, rename="pascal"):
    continuation_sequence_number: str | None = None
    millis_behind_latest: int = 0
    records: list[_Record] = []
    child_shards: list[_Child] | None = None


_DECODER: Final = msgspec.json.Decoder(_Payload)


def read_head(payload: bytes) -> EventHead:
    """Read the head of an event.

    Args:
        payload: JSON as it came in the frame.

    Raises:
        FrameError: It is not JSON or not an event, or it is one that can neither continue nor end: with neither a
            continuation nor children, or with both.

    >>> read_head(b'{"ContinuationSequenceNumber":"42","MillisBehindLatest":7,"Records":[{"Data":""}]}')
    EventHead(continuation=42, millis_behind=7, records=1, children=())
    """
    try:
        event = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"an event of {len(payload)} bytes cannot be read: {error}; {_sketch(payload)}") from None
    continuation = event.continuation_sequence_number
    if (continuation is None) != bool(event.child_shards):
        found = "neither a continuation nor child shards" if continuation is None else "a continuation and child shards"
        raise FrameError(f"an event of {len(payload)} bytes has {found}; {_sketch(payload)}")
    return EventHead(
        None if continuation is None else _number("ContinuationSequenceNumber", continuation),
        event.millis_behind_latest,
        len(event.records),
        tuple(
            ChildShard(
                child.shard_id,
                tuple(child.parent_shards),
                _number("StartingHashKey", child.hash_key_range.starting_hash_key),
                _number("EndingHashKey", child.hash_key_range.ending_hash_key),
            )
            for child in event.child_shards or ()
        ),
    )


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise FrameError(f"{name} of an event must be a number of at most {_MOST_DIGITS} digits; got {text[:80]!r}")
    return int(text)


def _sketch(payload: bytes) -> str:
    return f"it begins with {payload[:80]!r}"
