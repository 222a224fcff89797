"""The messages between a guest, whose query lives in another process of its Spark program, and that process, the host of the run.

All calls go from guest to host. Each call to a query has a number: one that takes long is asked for again by its number, and so is one
whose answer was lost. It runs once, and to its end, as it would in the query's own process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.messages import GetTicket
from kinesis_efo.fetcher.progress import PollReply, ShardProgress
from kinesis_efo.fetcher.work import StreamText
from kinesis_efo.options import Bounds, Start
from kinesis_efo.planner.query_ends import Found
from kinesis_efo.positions import Offset, Position, ShardKey

JOIN: Final = "join"
CALL: Final = "call"
LEAVE: Final = "leave"

ANSWER_SECONDS: Final = 2.0
"""Longest time until a host says that a call is not done yet."""

Where: TypeAlias = str | None
"""A position, or None for the tip."""


class BoundsText(msgspec.Struct, frozen=True, array_like=True):
    """Where reading begins or ends."""

    everywhere: Where
    streams: dict[str, Where]
    shards: list[tuple[str, str, Where]]

    @classmethod
    def of(cls, bounds: Bounds) -> BoundsText:
        """The message for bounds."""
        shards = [(*key, _text(position)) for key, position in bounds.shards.items()]
        return cls(_text(bounds.everywhere), {name: _text(at) for name, at in bounds.streams.items()}, shards)

    def parsed(self) -> Bounds:
        """The bounds."""
        return Bounds(
            _position(self.everywhere),
            {name: _position(at) for name, at in self.streams.items()},
            {ShardKey(stream, shard): _position(at) for stream, shard, at in self.shards},
        )


class StartText(msgspec.Struct, frozen=True, array_like=True):
    """Where a query begins."""

    position: Where
    from_leases: bool
    bounds: BoundsText | None

    @classmethod
    def of(cls, start: Start) -> StartText:
        """The message for a start."""
        return cls(
            _text(start.position), start.from_leases, None if start.bounds is None else BoundsText.of(start.bounds)
        )

    def parsed(self) -> Start:
        """The start."""
        bounds = None if self.bounds is None else self.bounds.parsed()
        return Start(_position(self.position), self.from_leases, bounds)


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
    streams: dict[str, StreamText]
    options: dict[str, str]
    ends: BoundsText


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


Ranges: TypeAlias = list[tuple[str, str, str, str, str]]
"""As in a `GetTicket`."""


class _Call(msgspec.Struct, frozen=True, tag_field="call", tag=str.lower):
    """A call to the query of a guest, or for it; see `QueryAccess` and `RunAccess`."""


class InitialOffset(_Call, frozen=True):
    """See `RunAccess`."""

    start: StartText


class AddedOffset(_Call, frozen=True):
    """See `RunAccess`."""

    start: StartText
    names: list[str]


class Place(_Call, frozen=True):
    """See `RunAccess`."""

    ranges: Ranges
    wait: float


class Reading(_Call, frozen=True):
    """See `RunAccess`."""


class WaitHeld(_Call, frozen=True):
    """See `QueryAccess`."""

    wait: float


class Poll(_Call, frozen=True):
    """See `QueryAccess`."""

    offset: Told
    max_bytes: int
    max_records: int
    wait: float


class Commit(_Call, frozen=True):
    """See `QueryAccess`."""

    offset: Told


class LastRecords(_Call, frozen=True):
    """See `QueryAccess`."""

    ranges: Ranges


class CheckReplay(_Call, frozen=True):
    """See `QueryAccess`."""

    begin: Told
    ranges: Ranges


class AskEnds(_Call, frozen=True):
    """See `QueryAccess.ends`."""

    offset: Told
    wait: float


class Strict(_Call, frozen=True):
    """See `QueryAccess`."""

    streams: list[str]


class Resume(_Call, frozen=True):
    """See `QueryAccess`."""

    offset: Told


class Planned(_Call, frozen=True):
    """See `QueryAccess`."""

    mark: str


class AskTips(_Call, frozen=True):
    """See `QueryAccess.tips`."""

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


# -- what calls return

Positions: TypeAlias = list[tuple[str, str, str]]


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """A `ShardProgress`. Sequence numbers have more digits than JSON numbers are trusted with."""

    stream: str
    shard: str
    through: str
    records: int
    bytes: int
    behind: int | None
    last: str | None
    quiet: float
    data: int


class Polled(msgspec.Struct, frozen=True, array_like=True):
    """A `PollReply`."""

    shards: list[Progress]
    starting: list[tuple[str, str]]
    finished: list[tuple[str, str]]

    @classmethod
    def of(cls, reply: PollReply) -> Polled:
        """The message for a reply."""
        shards = [
            Progress(
                *each.key,
                str(each.through),
                each.records,
                each.bytes,
                each.millis_behind,
                None if each.last is None else str(each.last),
                each.quiet,
                each.data,
            )
            for each in reply.shards
        ]
        return cls(shards, [(*key,) for key in reply.starting], [(*key,) for key in reply.finished])

    def parsed(self) -> PollReply:
        """The reply."""
        shards = [
            ShardProgress(
                ShardKey(each.stream, each.shard),
                Position.parse(each.through),
                each.records,
                each.bytes,
                each.behind,
                None if each.last is None else int(each.last),
                each.quiet,
                each.data,
            )
            for each in self.shards
        ]
        return PollReply(shards, [ShardKey(*key) for key in self.starting], [ShardKey(*key) for key in self.finished])


class FoundText(msgspec.Struct, frozen=True, array_like=True):
    """A `Found`."""

    ends: list[tuple[str, str, Where]]
    complete: bool
    lasts: list[tuple[str, str, str]]

    @classmethod
    def of(cls, found: Found) -> FoundText:
        """The message for what was found."""
        ends = [(*key, _text(end)) for key, end in found.ends.items()]
        return cls(ends, found.complete, numbers(found.lasts))

    def parsed(self) -> Found:
        """What was found."""
        ends = {ShardKey(stream, shard): _position(end) for stream, shard, end in self.ends}
        return Found(ends, self.complete, parsed_numbers(self.lasts))


def numbers(lasts: Mapping[ShardKey, int]) -> list[tuple[str, str, str]]:
    """The numbers of records as messages have them."""
    return [(*key, str(last)) for key, last in lasts.items()]


def parsed_numbers(lasts: Iterable[tuple[str, str, str]]) -> dict[ShardKey, int]:
    """What `numbers` wrote."""
    return {ShardKey(stream, shard): int(last) for stream, shard, last in lasts}


def offset_data(offset: Offset | None) -> dict[str, object] | None:
    """An offset as messages have it."""
    return None if offset is None else offset.to_dict()


def parsed_offset(data: dict[str, object] | None) -> Offset | None:
    """What `offset_data` wrote."""
    return None if data is None else Offset.from_dict(data)


def ranges_text(ranges: Sequence[object]) -> Ranges:
    """Ranges as messages have them."""
    return GetTicket.of(ranges).ranges  # type: ignore[arg-type]


def _text(position: Position | None) -> Where:
    return None if position is None else str(position)


def _position(text: Where) -> Position | None:
    return None if text is None else Position.parse(text)
