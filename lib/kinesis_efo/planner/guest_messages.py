"""The messages between a guest, whose query lives in another process of its Spark program, and that process, the host of the run.

All calls go from guest to host. Each call to a query has a number: one that takes long is asked for again by its number, and so is one
whose answer was lost. It runs once, and to its end, as it would in the query's own process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.manifest import StreamRef
from kinesis_efo.marks import Mark
from kinesis_efo.options import Bounds, Start
from kinesis_efo.positions import Offset, Position, ShardKey, ShardRange

JOIN: Final = "join"
CALL: Final = "call"
LEAVE: Final = "leave"

ANSWER_SECONDS: Final = 2.0
"""Longest time until a host says that a call is not done yet."""

BoundsParts: TypeAlias = tuple[Position | None, dict[str, Position | None], list[tuple[ShardKey, Position | None]]]
"""A `Bounds`. JSON has no shards as keys."""
StartParts: TypeAlias = tuple[Position | None, bool, BoundsParts | None]
"""A `Start`."""
FoundParts: TypeAlias = tuple[list[tuple[ShardKey, Position | None]], bool, list[tuple[ShardKey, int]]]
"""A `Found`."""


def bounds_parts(bounds: Bounds) -> BoundsParts:
    """Bounds as messages have them."""
    return bounds.everywhere, dict(bounds.streams), list(bounds.shards.items())


def bounds_of(parts: BoundsParts) -> Bounds:
    """What `bounds_parts` made its parts of."""
    everywhere, streams, shards = parts
    return Bounds(everywhere, streams, dict(shards))


def start_parts(start: Start) -> StartParts:
    """A start as messages have it."""
    return start.position, start.from_leases, None if start.bounds is None else bounds_parts(start.bounds)


def start_of(parts: StartParts) -> Start:
    """What `start_parts` made its parts of."""
    position, from_leases, bounds = parts
    return Start(position, from_leases, None if bounds is None else bounds_of(bounds))


class Join(msgspec.Struct, frozen=True):
    """A process asks to be a guest of the run.

    Attributes:
        reader: Names its query, so that one who asks again takes the place of himself.
        pid: Its process id.
        started: When it started.
        streams: What its query reads, by logical name.
        options: Those of its options that belong to a run.
        ends: Where its query ends if it reads what is there.
    """

    reader: str
    pid: int
    started: str
    streams: dict[str, StreamRef]
    options: dict[str, str]
    ends: BoundsParts


class Joined(msgspec.Struct, frozen=True):
    """The answer to a process that asks to be a guest.

    Attributes:
        guest: Its name from now on; empty if it is none.
        address: Where tasks read its shards, or ask who does.
        by_planner: Whether tasks have to ask the planner who reads a shard.
        faults: Why its query cannot share the run.
    """

    guest: str = ""
    address: FetcherAddress | None = None
    by_planner: bool = False
    faults: list[str] = []


class Told(msgspec.Struct, frozen=True, array_like=True):
    """An offset. Thousands of shards are told once: afterwards, the number says which.

    Attributes:
        number: Its number; no two offsets of a guest have the same.
        data: The offset as plain data; None if the host knows it.
    """

    number: int
    data: dict[str, object] | None


class _Call(msgspec.Struct, frozen=True, tag_field="call", tag=str.lower):
    """A call to the query of a guest, or for it; see `QueryAccess` and `RunAccess`."""


class InitialOffset(_Call, frozen=True):
    start: StartParts


class AddedOffset(_Call, frozen=True):
    start: StartParts
    names: list[str]


class Place(_Call, frozen=True):
    ranges: Sequence[ShardRange]
    wait: float


class Reading(_Call, frozen=True):
    pass


class WaitHeld(_Call, frozen=True):
    wait: float


class Poll(_Call, frozen=True):
    offset: Told
    max_bytes: int
    max_records: int
    wait: float


class Commit(_Call, frozen=True):
    offset: Told


class LastRecords(_Call, frozen=True):
    ranges: Sequence[ShardRange]


class CheckReplay(_Call, frozen=True):
    begin: Told
    ranges: Sequence[ShardRange]


class AskEnds(_Call, frozen=True):
    offset: Told
    wait: float


class Strict(_Call, frozen=True):
    streams: list[str]


class Resume(_Call, frozen=True):
    offset: Told


class Planned(_Call, frozen=True):
    mark: Mark


class AskTips(_Call, frozen=True):
    offset: Told
    wait: float


Call: TypeAlias = (
    InitialOffset
    | AddedOffset
    | Place
    | Reading
    | WaitHeld
    | Poll
    | Commit
    | LastRecords
    | CheckReplay
    | AskEnds
    | Strict
    | Resume
    | Planned
    | AskTips
)


class GuestCall(msgspec.Struct, frozen=True):
    """A call of a guest.

    Attributes:
        guest: Its name.
        number: The number of the call.
        call: The call.
    """

    guest: str
    number: int
    call: Call


class Leave(msgspec.Struct, frozen=True):
    """A guest's query has ended."""

    guest: str


class Answer(msgspec.Struct, frozen=True):
    """The answer to a call of a guest.

    Attributes:
        done: Whether the call is done.
        result: What it has returned then, in the form of its own.
        known: Whether the host has this guest.
        again: Whether it lacks an offset that the call names: tell it, with another number.
        said: Lines that the guest is to write for the host, whose own output nobody takes any more.
    """

    done: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")
    known: bool = True
    again: bool = False
    said: list[str] = []


def offset_data(offset: Offset | None) -> dict[str, object] | None:
    """An offset as messages have it."""
    return None if offset is None else offset.to_dict()


def parsed_offset(data: dict[str, object] | None) -> Offset | None:
    """What `offset_data` wrote."""
    return None if data is None else Offset.from_dict(data)
