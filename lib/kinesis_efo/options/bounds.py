"""Parses the positions at which reading begins and ends: one for all shards, or JSON with one for each stream or shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from kinesis_efo.options.readers import UnsupportedValue, timestamp_meant
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.units import parse_time

EVERY: Final = "*"
"""The name in JSON that stands for all streams, or all shards of a stream, that are not named."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Start or end positions of a read. None means the tip when the read is planned.

    Attributes:
        everywhere: The position for streams that are not named.
        streams: Positions by logical name of the stream, for its shards that are not in `shards`.
        shards: Positions by shard.
    """

    everywhere: Position | None = None
    streams: Mapping[str, Position | None] = field(default_factory=dict)
    shards: Mapping[ShardKey, Position | None] = field(default_factory=dict)

    def of(self, stream: str) -> Position | None:
        """Return the position of a stream's shards that are not named."""
        return self.streams.get(stream, self.everywhere)

    def named(self, stream: str) -> dict[str, Position | None]:
        """Return the positions of a stream's named shards, by shard id."""
        return {key.shard: position for key, position in self.shards.items() if key.stream == stream}

    @property
    def names(self) -> set[str]:
        """The named streams."""
        return {*self.streams, *(key.stream for key in self.shards)}


def _bounds(text: str, read: Callable[[str, bool], Position | None], default: Position | None) -> Bounds:
    if not text.lstrip().startswith("{"):
        return Bounds(read(text.strip(), False))
    try:
        given = msgspec.json.decode(text, type=dict[str, str | dict[str, str]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError(text) from None
    everywhere, streams, shards = default, {}, {}
    for stream, positions in given.items():
        if stream == EVERY:
            if isinstance(positions, dict):
                raise ValueError(text)
            everywhere = read(positions, False)
        elif isinstance(positions, str):
            streams[stream] = read(positions, False)
        else:
            for shard, position in positions.items():
                if shard == EVERY:
                    streams[stream] = read(position, False)
                else:
                    shards[ShardKey(stream, shard)] = read(position, True)
    return Bounds(everywhere, streams, shards)


def _start(text: str, of_shard: bool) -> Position:
    match text.upper():
        case "LATEST":
            raise UnsupportedValue(
                "must be where there is something to read: TRIM_HORIZON or AT_TIMESTAMP:<time>. "
                "Behind the tip there is nothing yet; spark.readStream reads what comes"
            )
        case "LEASES":
            raise UnsupportedValue("must be TRIM_HORIZON or AT_TIMESTAMP:<time>: a batch read knows no leases")
        case "TRIM_HORIZON":
            return TRIM_HORIZON
    return _time_or_number(text, of_shard, (PositionKind.AFTER, PositionKind.INSIDE))


def _query_start(text: str, of_shard: bool) -> Position | None:
    match text.upper():
        case "LATEST":
            return None
        case "LEASES":
            raise UnsupportedValue("must be LEASES for all streams, or for none: write it without JSON")
    return _start(text, of_shard)


def _end(text: str, of_shard: bool) -> Position | None:
    match text.upper():
        case "LATEST":
            return None
        case "TRIM_HORIZON":
            raise UnsupportedValue("must be LATEST or AT_TIMESTAMP:<time>: before the horizon there is nothing")
        case "SHARD_END" if of_shard:
            return SHARD_END
    return _time_or_number(text, of_shard, (PositionKind.AFTER,))


def _time_or_number(text: str, of_shard: bool, numbers: tuple[PositionKind, ...]) -> Position:
    name, _, rest = text.partition(":")
    if name.upper() == "AT_TIMESTAMP":
        return Position.at_timestamp(parse_time(rest))
    try:
        position = Position.parse(text)
    except ValueError:
        raise timestamp_meant(text) from None
    if not of_shard or position.kind not in numbers:
        raise ValueError(text)
    return position


starts = partial(_bounds, read=_start, default=TRIM_HORIZON)
"""Parses the start of a batch read; raises ValueError for any other text."""
query_starts = partial(_bounds, read=_query_start, default=None)
"""Parses the start of a streaming query if it is JSON; raises ValueError for any other text."""
ends = partial(_bounds, read=_end, default=None)
"""Parses the end of a batch read or of a query; raises ValueError for any other text."""
