"""Positions in shards, Spark offsets that consist of them, and the ranges between two offsets."""

from __future__ import annotations

import re
from collections.abc import Container, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from enum import Enum
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self, TypeVar, overload

import msgspec

T = TypeVar("T")


class ShardKey(NamedTuple):
    """A shard of one of a query's streams: the stream's logical name (its key in the manifest) and the shard's id."""

    stream: str
    shard: str

    def __str__(self) -> str:
        return f"{self.stream}:{self.shard}"


class PositionKind(Enum):
    """The kinds of positions. `LATEST` becomes `AT_TIMESTAMP` before it is stored.

    `INSIDE` is used only as a start, if a KCL application has stopped within a KPL aggregate. Ranges end after whole Kinesis records.
    """

    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AFTER = "AFTER"
    INSIDE = "INSIDE"
    SHARD_END = "SHARD_END"


# Constants, because looking up a member of an enum takes longer than comparing two positions in Python 3.11.
AFTER: Final = PositionKind.AFTER
_INSIDE: Final = PositionKind.INSIDE
_SHARD_END: Final = PositionKind.SHARD_END


class Position(NamedTuple):
    """How far a shard has been read: all records up to this position have been read.

    >>> str(Position.after("49590338271490256608559692538361571095921575989136588898"))
    'AFTER:49590338271490256608559692538361571095921575989136588898'
    >>> Position.parse("AT_TIMESTAMP:1700000000000").value
    1700000000000
    >>> Position.parse("INSIDE:42:7")
    Position(kind=<PositionKind.INSIDE: 'INSIDE'>, value=42, sub=7)
    """

    kind: PositionKind
    value: int = 0  # For `AT_TIMESTAMP`, epoch milliseconds; for `AFTER` and `INSIDE`, a sequence number
    sub: int = 0  # For `INSIDE`, the sub-sequence number of the last user record that was read

    @classmethod
    def after(cls, sequence_number: int | str) -> Position:
        """Return the position after a sequence number (of a record, or the `ContinuationSequenceNumber` of an event)."""
        return cls(AFTER, int(sequence_number))

    @classmethod
    def at_timestamp(cls, epoch_ms: int) -> Position:
        """Return the position before the first record that arrived at or after a time in epoch milliseconds."""
        return cls(PositionKind.AT_TIMESTAMP, epoch_ms)

    @classmethod
    def inside(cls, sequence_number: int, sub: int) -> Position:
        """Return the position after user record `sub` of the KPL aggregate with this sequence number.

        If the record with this sequence number is not an aggregate, it counts as read."""
        return cls(_INSIDE, sequence_number, sub)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text form of a position in offsets, leases and options. Raises ValueError if it is invalid."""
        name, *numbers = text.split(":")
        kind = PositionKind.__members__.get(name)
        if kind is None or len(numbers) != _NUMBERS.get(kind, 0) or not all(map(_is_number, numbers)):
            raise ValueError(
                f"{text!r} is not a position: expected TRIM_HORIZON, SHARD_END, AT_TIMESTAMP:<epoch milliseconds>, "
                "AFTER:<sequence number> or INSIDE:<sequence number>:<sub-sequence number>"
            )
        return cls(kind, *map(int, numbers))

    def __str__(self) -> str:
        if self.kind is AFTER:  # fast path for the usual kind: there may be thousands of shards
            return f"AFTER:{self.value}"
        return ":".join([self.kind.name, *map(str, self[1 : 1 + _NUMBERS.get(self.kind, 0)])])

    @property
    def sequence_number(self) -> int | None:
        """The sequence number of the position; None for kinds without one."""
        return self.value if self.kind in (AFTER, _INSIDE) else None

    @property
    def is_end(self) -> bool:
        """Whether this is the position of a closed shard that has been read to its end."""
        return self.kind is _SHARD_END

    def reaches(self, other: Position) -> bool:
        """Whether a shard that has been read up to this position has also been read up to `other`.

        Times and sequence numbers cannot be compared. By definition, a time reaches only itself. A sequence number reaches every time: a
        shard's position begins at a time and then moves to sequence numbers.

        >>> Position.after(12).reaches(Position.after(9)), Position.after(9).reaches(Position.after(12))
        (True, False)
        >>> Position.inside(12, 3).reaches(Position.after(9)), Position.inside(12, 3).reaches(Position.after(12))
        (True, False)
        >>> SHARD_END.reaches(Position.after(9)), TRIM_HORIZON.reaches(Position.after(9))
        (True, False)
        """
        if self.kind is other.kind is AFTER:  # fast path for the usual kind: there may be thousands of shards
            return self.value >= other.value
        if self == other or self.is_end:
            return True
        if self.sequence_number is None or other.sequence_number is None:
            return self.sequence_number is not None and not other.is_end
        if self.value != other.value:
            return self.value > other.value
        return self.kind is AFTER or (other.kind is _INSIDE and self.sub >= other.sub)

    def precedes(self, number: int) -> bool:
        """Whether the record with sequence number `number` is after this position, or may be after it.

        >>> Position.after(12).precedes(12), Position.after(12).precedes(13), Position.inside(12, 3).precedes(12)
        (False, True, True)
        """
        if self.kind is AFTER:
            return number > self.value
        return number >= self.value if self.kind is _INSIDE else not self.is_end


TRIM_HORIZON = Position(PositionKind.TRIM_HORIZON)
SHARD_END = Position(_SHARD_END)
_MARK: Final = re.compile(r"([0-9a-z]{1,32}):([0-9]{1,18})", re.ASCII)
_NUMBERS = {PositionKind.AT_TIMESTAMP: 1, PositionKind.AFTER: 1, PositionKind.INSIDE: 2}
_RANKS: Final = {
    PositionKind.TRIM_HORIZON: 0,
    PositionKind.AT_TIMESTAMP: 1,
    PositionKind.INSIDE: 2,
    PositionKind.AFTER: 2,
    PositionKind.SHARD_END: 3,
}


def _is_number(text: str) -> bool:
    # Accept only ASCII digits: int() also accepts signs, blanks, underscores and digits of other scripts, which str() would not restore.
    return text.isascii() and text.isdigit() and len(text) <= 200


def lowest(positions: Iterable[Position]) -> Position:
    """Return the lowest of some positions. A time counts as lower than any sequence number: the two cannot be compared.

    >>> str(lowest([Position.after(12), Position.parse("SHARD_END"), Position.after(9)]))
    'AFTER:9'
    """
    return min(positions, key=rank)


def rank(position: Position) -> tuple[int, int, bool]:
    """Return a sort key that orders positions as `lowest` does."""
    return _RANKS[position.kind], position.value, position.kind is AFTER


class LastRecord(NamedTuple):
    """The last record up to a position, for KCL checkpoints. If it is a KPL aggregate, `sub` is the index of its last user record."""

    number: int
    sub: int = 0


class ShardRange(NamedTuple):
    """The records of one shard in `(after, through]`; with `SHARD_END`, everything up to the shard's end.

    `last` is the sequence number of the last record in the range when it was planned; the range ends with that record. If `last` is None
    because there is no such record or it is unknown, the range ends at `through`.
    """

    key: ShardKey
    after: Position
    through: Position
    last: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether all records of the range have been read."""
        return self.after.reaches(self.through) if self.last is None else not self.after.precedes(self.last)


class Mark(NamedTuple):
    """The random id of the checkpoint that an offset belongs to, and how many of the checkpoint's micro-batches have moved a position.

    A Spark data source receives neither the path of its checkpoint nor the id of its query. Therefore, the offsets themselves contain an id.

    >>> str(Mark("7c1f09ab").moved_on()), Mark.parse("7c1f09ab:812")
    ('7c1f09ab:1', Mark(checkpoint='7c1f09ab', moved=812))
    """

    checkpoint: str
    moved: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form of a mark. Raises ValueError if it is invalid."""
        if (found := _MARK.fullmatch(text)) is None:
            raise ValueError(f"not a kinesis-efo offset: its mark is {text[:80]!r}, expected <id>:<number>")
        return cls(found[1], int(found[2]))

    def __str__(self) -> str:
        return f"{self.checkpoint}:{self.moved}"

    def moved_on(self) -> Self:
        """Return the mark of the next offset, after one more micro-batch that has moved a position."""
        return self._replace(moved=self.moved + 1)


class OffsetDocument(msgspec.Struct):
    """The JSON form of an offset in Spark's offset log. Earlier versions ignore keys that later versions have added."""

    version: int
    streams: dict[str, dict[str, str]]  # Positions, by stream and shard id
    sources: dict[str, str] = {}  # The ARN of each stream
    lasts: dict[str, dict[str, str]] = {}  # Last sequence numbers (encoded by `_beside`), by stream and shard id
    mark: str = ""  # The checkpoint's mark; empty in offsets of earlier versions
    # The start of micro-batch 0, which Spark's offset log does not contain; {} if it equals `streams`. Only in the end offset of batch 0.
    begin: dict[str, dict[str, str]] | None = None
    horizons: dict[str, int] = {}  # Trim horizons (epoch milliseconds) of streams that start at `TRIM_HORIZON`
    created: dict[str, int] = {}  # Creation time of each stream, epoch seconds, if known at the query's start
    until: dict[str, dict[str, int]] = {}  # Low watermarks (epoch milliseconds), by stream and shard id


class Offset(Mapping[ShardKey, Position]):
    """The positions of a query in all its shards, as stored in Spark's offset log.

    Offsets of earlier versions lack the attributes below, and earlier versions ignore them.

    Attributes:
        lasts: Sequence number of the micro-batch's last record in each shard. In JSON, its difference to the position's sequence number.
        horizons: For each stream with a shard that is still at `TRIM_HORIZON`: the trim horizon at the query's start, epoch seconds.
        created: Creation time of each stream, to detect a stream that was deleted and created again.
        until: Low watermarks (epoch seconds) of idle shards that a query with an end has read to their tips.

    >>> key = ShardKey("orders", "shardId-000000000000")
    >>> offset = Offset({key: Position.after(50)}, {key: 42})
    >>> offset.to_json()
    '{"lasts":{"orders":{"shardId-000000000000":"8"}},"streams":{"orders":{"shardId-000000000000":"AFTER:50"}},"version":1}'
    >>> Offset.from_json(offset.to_json()) == offset
    True
    """

    __slots__ = ("_has_ends", "_positions", "created", "horizons", "lasts", "mark", "until")

    def __init__(
        self,
        positions: Mapping[ShardKey, Position],
        lasts: Mapping[ShardKey, int] | None = None,
        mark: Mark | None = None,
        horizons: Mapping[str, float] | None = None,
        created: Mapping[str, int] | None = None,
        until: Mapping[ShardKey, float] | None = None,
    ) -> None:
        self._positions = dict(positions)
        self.lasts: Final[Mapping[ShardKey, int]] = dict(lasts or {})
        self.mark: Final = mark
        self.horizons: Final[Mapping[str, float]] = dict(horizons or {})
        self.created: Final[Mapping[str, int]] = dict(created or {})
        self.until: Final[Mapping[ShardKey, float]] = dict(until or {})
        self._has_ends: bool | None = None

    def __getitem__(self, key: ShardKey) -> Position:
        return self._positions[key]

    def __contains__(self, key: object) -> bool:
        return key in self._positions

    def __iter__(self) -> Iterator[ShardKey]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    # Replace `Mapping`'s methods, which call Python code for each shard: with thousands of shards, they would take longer than planning.

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Offset):
            same = self._positions == other._positions and self.lasts == other.lasts and self.mark == other.mark
            return self is other or same
        return self._positions == other

    __hash__ = None  # type: ignore[assignment]

    @overload
    def get(self, key: ShardKey, /) -> Position | None: ...
    @overload
    def get(self, key: ShardKey, /, default: Position | T) -> Position | T: ...
    def get(self, key: ShardKey, /, default: object = None) -> object:
        return self._positions.get(key, default)

    def __or__(self, changes: dict[ShardKey, Position]) -> dict[ShardKey, Position]:
        return self._positions | changes

    def keys(self) -> KeysView[ShardKey]:
        return self._positions.keys()

    def values(self) -> ValuesView[Position]:
        return self._positions.values()

    def items(self) -> ItemsView[ShardKey, Position]:
        return self._positions.items()

    def __repr__(self) -> str:
        return f"Offset({self.to_json()})"

    @property
    def has_ends(self) -> bool:
        """Whether the offset contains closed shards that have been read to their end."""
        if self._has_ends is None:
            self._has_ends = SHARD_END in self._positions.values()
        return self._has_ends

    def proof(self, key: ShardKey, position: Position) -> float | None:
        """Return the stored low watermark of a shard if the shard is at `position` in this offset; otherwise None."""
        return self.until.get(key) if self.get(key) == position else None

    def changes_since(self, before: Offset | None) -> dict[ShardKey, Position]:
        """Return the positions that differ from an earlier offset; all positions if `before` is None."""
        known = {} if before is None else before._positions
        return {key: position for key, position in self._positions.items() if known.get(key) != position}

    def moved_to(
        self,
        positions: Mapping[ShardKey, Position],
        lasts: Mapping[ShardKey, int],
        mark: Mark | None = None,
        added: Offset | None = None,
        until: Mapping[ShardKey, float] | None = None,
    ) -> Offset:
        """Return the end offset of a micro-batch that begins at this offset; this offset itself if nothing has changed.

        Spark treats an offset with different JSON as a new micro-batch, so last records and marks alone must not change the JSON.

        Args:
            positions: The positions at the end of the micro-batch.
            lasts: The sequence numbers of the last records read, by shard.
            mark: The mark to use if this offset lacks one because an earlier version has written it.
            added: The start offset of streams that are new in `positions`.
            until: New low watermarks, by shard.
        """
        if self._positions == positions and not until:
            return self
        known = self.mark or mark
        horizons, created = (self.horizons, self.created) if added is None else (added.horizons, added.created)
        return Offset(
            positions,
            {key: last for key, last in lasts.items() if positions.get(key) != self.get(key)},
            known and known.moved_on(),
            _needed({**self.horizons, **horizons}, positions),
            {**self.created, **created},
            {key: time for key, time in self.until.items() if positions.get(key) == self.get(key)} | dict(until or {}),
        )

    def to_dict(
        self, sources: Mapping[str, str] | None = None, known: tuple[Offset, Mapping[str, Any]] | None = None
    ) -> dict[str, object]:
        """Convert the offset to JSON-compatible data. Equal offsets result in equal data, in the same order.

        `sources` are the streams' ARNs, to be included. `known` is another offset and its data, from which unchanged positions are copied.
        """
        streams: dict[str, dict[str, str]] = {}
        lasts: dict[str, dict[str, str]] = {}
        changed: Mapping[ShardKey, Position] = self._positions
        if known is not None and known[0].keys() == self.keys():
            streams = {name: dict(shards) for name, shards in known[1]["streams"].items()}
            changed = self.changes_since(known[0])
        # Sort the keys: Spark compares offsets as strings.
        for key in sorted(changed):
            streams.setdefault(key.stream, {})[key.shard] = str(changed[key])
        for key in sorted(self.lasts.keys() & self.keys()):
            lasts.setdefault(key.stream, {})[key.shard] = _beside(self._positions[key], self.lasts[key])
        until: dict[str, dict[str, int]] = {}
        for key, time in sorted(self.until.items()):
            until.setdefault(key.stream, {})[key.shard] = round(1000 * time)
        told = {name: sources[name] for name in streams if name in sources} if sources else {}
        horizons = {name: round(1000 * horizon) for name, horizon in sorted(self.horizons.items())}
        return {
            **({"created": dict(sorted(self.created.items()))} if self.created else {}),
            **({"horizons": horizons} if horizons else {}),
            **({"lasts": lasts} if lasts else {}),
            **({"mark": str(self.mark)} if self.mark else {}),
            **({"sources": told} if told else {}),
            "streams": streams,
            **({"until": until} if until else {}),
            "version": 1,
        }

    def to_json(self) -> str:
        """Return the canonical compact JSON text."""
        return msgspec.json.encode(self.to_dict()).decode()

    @classmethod
    def from_dict(cls, data: object) -> Offset:
        """Parse JSON data from Spark's offset log. Raises `ValueError` if it is not an offset, or if a newer version has written it."""
        try:
            document = msgspec.convert(data, OffsetDocument)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a kinesis-efo offset: {error}; got {str(data)[:200]!r}") from None
        if document.version != 1:
            raise ValueError(
                f"the offset has version {document.version}, this library reads version 1: "
                "the checkpoint was written by a newer kinesis-efo, which can continue from it"
            )
        positions = {key: Position.parse(text) for key, text in _flat(document.streams)}
        lasts = {key: _number_beside(positions, key, text) for key, text in _flat(document.lasts)}
        until = {key: millis / 1000 for key, millis in _flat(document.until)}
        horizons = {stream: millis / 1000 for stream, millis in document.horizons.items()}
        mark = Mark.parse(document.mark) if document.mark else None
        return cls(positions, lasts, mark, horizons, document.created, until)

    @classmethod
    def from_json(cls, text: str) -> Offset:
        try:
            return cls.from_dict(msgspec.json.decode(text))
        except msgspec.DecodeError as error:
            raise ValueError(f"not a kinesis-efo offset: {error}; got {text[:200]!r}") from None

    def ranges_to(self, end: Offset) -> list[ShardRange]:
        """Return the ranges between this offset and a later one, one per shard, sorted by shard.

        A shard that is missing in `end` was dropped after it was read to its end. A shard that is missing in this offset is a child, and is
        read from its trim horizon. If its whole stream is missing, the stream is new: it begins at its positions in `end`, without ranges.
        """
        ranges = []
        streams = {key.stream for key in self._positions}
        for key, through in end.items():
            after = self._positions.get(key, TRIM_HORIZON)
            if after != through and not after.is_end and key.stream in streams:
                last = end.lasts.get(key)
                ranges.append(
                    ShardRange(key, after, through, last if last is not None and after.precedes(last) else None)
                )
        return sorted(ranges, key=itemgetter(0))

    def without(self, streams: Container[str]) -> Offset:
        """Return the offset without the shards of some streams."""
        return Offset(
            {key: at for key, at in self._positions.items() if key.stream not in streams},
            {key: last for key, last in self.lasts.items() if key.stream not in streams},
            self.mark,
            {stream: horizon for stream, horizon in self.horizons.items() if stream not in streams},
            {stream: created for stream, created in self.created.items() if stream not in streams},
            {key: time for key, time in self.until.items() if key.stream not in streams},
        )


def sources_of(data: Mapping[str, object]) -> dict[str, str]:
    """Return the ARNs of the streams that an offset was read from, by logical name; empty if the offset lacks ARNs."""
    return msgspec.convert(data.get("sources", {}), dict[str, str])


def _flat(nested: Mapping[str, Mapping[str, T]]) -> Iterator[tuple[ShardKey, T]]:
    return ((ShardKey(stream, shard), each) for stream, shards in nested.items() for shard, each in shards.items())


def _needed(horizons: Mapping[str, float], positions: Mapping[ShardKey, Position]) -> Mapping[str, float]:
    """Return the trim horizons of streams with a shard that is still at `TRIM_HORIZON`."""
    if not horizons:  # a fast path: there may be thousands of shards
        return horizons
    begin = {key.stream for key, position in positions.items() if position == TRIM_HORIZON}
    return {stream: horizon for stream, horizon in horizons.items() if stream in begin}


def _beside(position: Position, last: int) -> str:
    """Encode the sequence number of a last record: as its distance to an `AFTER` position, otherwise as the number itself.

    The distance is usually 0 or small, which keeps offsets short: a number has 56 digits, and there may be thousands of shards.
    """
    return str(position.value - last if position.kind is AFTER else last)


def _number_beside(positions: Mapping[ShardKey, Position], key: ShardKey, text: str) -> int:
    position = positions.get(key)
    if position is None or not _is_number(text):
        raise ValueError(
            f"not a kinesis-efo offset: its last record of shard {key} is {text[:80]!r}, at position {position}"
        )
    return position.value - int(text) if position.kind is AFTER else int(text)
