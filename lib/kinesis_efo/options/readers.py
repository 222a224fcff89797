"""Parsers of option values: each converts a string to a value or raises ValueError. The tables of options describe the allowed values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from kinesis_efo.hosts import is_every_address, parse_host
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.units import NotMillisecondsError, NoZoneError, lacks_unit, parse_duration, parse_size, parse_time

Number = TypeVar("Number", int, float)
Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)

EVERY: Final = "*"
"""The JSON key that stands for all other streams or, within a stream, for all other shards."""


_PLACES: Final = {kind.value for kind in PositionKind} - {PositionKind.AT_TIMESTAMP.value}


class UnsupportedValue(ValueError):
    """A value that is well formed but not supported. Raised with a message, which replaces the usual description of allowed values."""


class NoUnit(ValueError):
    """A duration without a unit, so small that the user probably did not mean milliseconds."""


@dataclass(frozen=True, slots=True)
class Typed(Generic[Value_co]):
    """A parser with a type hint for the option as a keyword argument, such as `int | str`. Without a hint, the type is `str`."""

    parse: Callable[[str], Value_co]
    hint: str

    def __call__(self, text: str) -> Value_co:
        return self.parse(text)


def hint_of(parse: Callable[[str], object]) -> str:
    """Return the type hint for an option as a keyword argument, given the option's parser.

    >>> hint_of(bounded(size, 1)), hint_of(unless("auto", integer)), hint_of(text)
    ('int | str', 'int | Literal["auto"]', 'str')
    """
    return parse.hint if isinstance(parse, Typed) else "str"


def names(text: str) -> tuple[str, ...]:
    """Parse distinct names separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(text)
    return names


def one_of(*words: str) -> Typed[str]:
    """Return a case-insensitive parser that accepts these words and returns the word in lower case."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return Typed(read, _literal(*words))


def _literal(*words: str) -> str:
    quoted = [f'"{word}"' for word in words]
    return f"Literal[{', '.join(quoted)}]"


def word_for(chosen: Callable[[str], Value], *words: str) -> Typed[Value]:
    """Return a case-insensitive parser that accepts `words` and returns `chosen(word)`. With the word `true`, its hint includes `bool`."""
    read = one_of(*words)
    return Typed(lambda text: chosen(read(text)), f"bool | {read.hint}" if "true" in words else read.hint)


flag: Final = word_for(lambda word: word == "true", "true", "false")
"""Parses `true` or `false`, case-insensitively."""


def unless(word: str, parse: Callable[[str], Number]) -> Typed[Number | None]:
    """Return a parser that returns None for `word` (case-insensitive), and calls `parse` for other values."""

    def read(text: str) -> Number | None:
        return None if text.strip().lower() == word else parse(text)

    return Typed(read, f"{hint_of(parse)} | {_literal(word)}")


def _integer(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
        raise ValueError(text)
    return int(text)


integer: Final = Typed(_integer, "int")
"""Parses a whole number without a sign."""
number: Final = Typed(float, "float")
size: Final = Typed(parse_size, "int | str")
"""Parses a size such as `64m`."""


def duration(least: float, most: float = float("inf"), guess: int = 99) -> Typed[float]:
    """Return a parser of durations such as `200ms` that returns seconds, from `least` to `most`.

    A number without a unit is milliseconds, as in Spark. A number up to `guess` was probably meant as seconds: if it is also a valid number
    of milliseconds, it is rejected; if not, it is parsed as seconds.
    """

    def read(text: str) -> float:
        if not lacks_unit(text, guess):
            return parse_duration(text) / 1000
        if int(text) / 1000 >= least:
            raise NoUnit(text)
        return float(text)

    return bounded(Typed(read, "str | timedelta"), least, most)


def refusal(error: ValueError, rule: str, text: str) -> str:
    """Return the error message for an invalid value, beginning with "must be". `rule` describes the allowed values.

    >>> refusal(NoUnit("2"), "a duration such as 200ms", "2")
    "must be a duration such as 200ms, and include its unit; got '2'"
    """
    reason = str(error) if isinstance(error, UnsupportedValue | NoZoneError) else f"must be {rule}"
    unit = ", and include its unit" if isinstance(error, NoUnit) else ""
    number = f": {error}" if isinstance(error, NotMillisecondsError) else ""
    return f"{reason}{unit}; got {text!r}{number}"


def peer(text: str) -> str:
    """Parse a host name or an address to which a client can connect. Rejects 0.0.0.0 and similar addresses."""
    host = parse_host(text)
    if is_every_address(host):
        raise ValueError(text)
    return host


def _ports(text: str) -> range:
    first, dash, last = text.partition("-")
    ports = range(integer(first), integer(last if dash else first) + 1)
    if not ports or ports[0] < 1 or ports[-1] > 65_535:
        raise ValueError(text)
    return ports


ports: Final = Typed(_ports, "int | str")
"""Parses a port or a range such as `40000-40100`."""


def bounded(parse: Callable[[str], Number], least: float, most: float = float("inf")) -> Typed[Number]:
    """Return a parser that calls `parse` and rejects values less than `least` or greater than `most`."""

    def read(text: str) -> Number:
        value = parse(text)
        # Written this way, the comparison also rejects NaN.
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return Typed(read, hint_of(parse))


def matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Return a parser that accepts strings that match a pattern. It removes surrounding blanks."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text.strip()):
            raise ValueError(text)
        return text.strip()

    return read


def several(pattern: re.Pattern[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated strings, which must be distinct and match a pattern."""
    one = matching(pattern)
    return lambda text: tuple(map(one, names(text)))


text = matching(re.compile(r".+", re.DOTALL))
"""Parses any text that is not blank."""
url = matching(re.compile(r"https?://[^\s/]+(/\S*)?"))
"""Parses a URL with http or https."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The positions at which a read starts or ends; None stands for `LATEST`."""

    everywhere: Position | None = None  # The position for streams that are not in `streams`
    # Positions by logical stream name, for shards that are not in `shards`
    streams: Mapping[str, Position | None] = field(default_factory=dict)
    shards: Mapping[ShardKey, Position | None] = field(default_factory=dict)

    def of(self, stream: str) -> Position | None:
        """Return the position for those shards of a stream that do not have a separate position."""
        return self.streams.get(stream, self.everywhere)

    def named(self, stream: str) -> dict[str, Position | None]:
        """Return the positions of those shards of a stream that have separate positions, by shard id."""
        return {key.shard: position for key, position in self.shards.items() if key.stream == stream}

    @property
    def names(self) -> set[str]:
        """The logical names of all streams that are listed in `streams` or `shards`."""
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


def _shard_position(text: str, of_shard: bool) -> Position:
    if not of_shard:
        raise ValueError(text)
    return Position.parse(text)


def positions(text: str) -> Mapping[ShardKey, Position | None]:
    """Parse JSON with a position for each listed shard, such as `{"orders": {"shardId-000000000003": "AFTER:4959..."}}`."""
    return _bounds(text, _shard_position, None).shards


def _start(text: str, of_shard: bool) -> Position:
    match text.upper():
        case "LATEST":
            raise UnsupportedValue(
                "must be TRIM_HORIZON or AT_TIMESTAMP:<time>: there are no records after the tip yet; spark.readStream reads new records"
            )
        case "LEASES":
            raise UnsupportedValue("must be TRIM_HORIZON or AT_TIMESTAMP:<time>: a batch read does not use leases")
        case "TRIM_HORIZON" | "EARLIEST":
            return TRIM_HORIZON
    return _time_or_number(text, of_shard, (PositionKind.AFTER, PositionKind.INSIDE))


def query_start(text: str, of_shard: bool = False) -> Position | None:
    """Parse a query's start position in a stream, or in a single shard if `of_shard`. Returns None for `LATEST`."""
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
        case "TRIM_HORIZON" | "EARLIEST":
            raise UnsupportedValue(
                "must be LATEST or AT_TIMESTAMP:<time>: there are no records before the trim horizon"
            )
        case "SHARD_END" if of_shard:
            return SHARD_END
    return _time_or_number(text, of_shard, (PositionKind.AFTER,))


def _time_or_number(text: str, of_shard: bool, numbers: tuple[PositionKind, ...]) -> Position:
    if text.partition(":")[0] not in _PLACES:
        return time_position(text)
    position = Position.parse(text)
    if not of_shard or position.kind not in numbers:
        raise ValueError(text)
    return position


def time_position(text: str) -> Position:
    """Parse a time, optionally with the prefix `AT_TIMESTAMP:`."""
    name, _, rest = text.strip().partition(":")
    return Position.at_timestamp(parse_time(rest if name.upper() == "AT_TIMESTAMP" else text))


MOMENT: Final = "datetime | int | str"
"""The type hint of options that accept a time in ISO 8601 or in epoch milliseconds."""
starts = partial(_bounds, read=_start, default=TRIM_HORIZON)
"""Parses the start positions of a batch read; raises ValueError for an invalid value."""
query_starts = partial(_bounds, read=query_start, default=None)
"""Parses a streaming query's `startingPosition` in JSON form, by stream and shard; raises ValueError for an invalid value."""
ends = Typed(partial(_bounds, read=_end, default=None), MOMENT)
"""Parses the end positions of a batch read or of a query; raises ValueError for an invalid value."""
