"""Parsers of option values: each turns a text into a value or raises ValueError. The tables of options say the rules in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from kinesis_efo.hosts import is_every_address, parse_host
from kinesis_efo.units import NotMillisecondsError, NoZoneError, lacks_unit, parse_duration, parse_time, time_meant

Number = TypeVar("Number", int, float)

_MEANT_AS_SECONDS = 99
"""A number without a unit is refused up to this value, because it probably means seconds. As milliseconds, most limits would be useless."""


class UnsupportedValue(ValueError):
    """A value that is well formed but not supported; its message replaces the option's rule."""


class NoUnit(ValueError):
    """A number without a unit, so small that it was probably not meant as milliseconds."""


class BareTime(ValueError):
    """A time without `AT_TIMESTAMP:`."""


def text(text: str) -> str:
    """Parse any text that is not blank. Returns the text without blanks around it."""
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas, without repetition."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ValueError(text)
    return names


def one_of(*words: str) -> Callable[[str], str]:
    """Make a parser of one of these words, in any case."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return read


def flag(text: str) -> bool:
    """Parse `true` or `false`, in any case."""
    return one_of("true", "false")(text) == "true"


def integer(text: str) -> int:
    """Parse a whole number without a sign."""
    if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
        raise ValueError(text)
    return int(text)


def seconds(text: str, guess: int = _MEANT_AS_SECONDS) -> float:
    """Parse a duration such as `200ms` into seconds. A number alone is milliseconds, as in Spark; one from 1 to `guess` is refused."""
    if lacks_unit(text, guess):
        raise NoUnit(text)
    return parse_duration(text) / 1000


def timestamp_meant(text: str) -> ValueError:
    """Make the error for a text that is not a position: BareTime if it is a time, or probably means one.

    >>> timestamp_meant("2024-01-01"), timestamp_meant("1704067200"), timestamp_meant("soon")
    (BareTime('2024-01-01T00:00:00Z'), BareTime('1704067200000'), ValueError('soon'))
    """
    if (meant := time_meant(text)) is not None:
        return BareTime(str(meant))
    try:
        parse_time(text)
    except NoZoneError as error:
        return BareTime(error.in_utc)
    except ValueError:
        return ValueError(text)
    return BareTime(text.strip())


def refusal(error: ValueError, rule: str, text: str) -> str:
    """Return the end of the message about an invalid value, which follows the name of the option.

    >>> refusal(BareTime("2024-01-01T00:00Z"), "LATEST or AT_TIMESTAMP:<time>", "2024-01-01T00:00Z")
    "must be LATEST or AT_TIMESTAMP:<time>; got '2024-01-01T00:00Z'; did you mean AT_TIMESTAMP:2024-01-01T00:00Z?"
    """
    reason = str(error) if isinstance(error, UnsupportedValue | NoZoneError) else f"must be {rule}"
    unit = ", and say its unit" if isinstance(error, NoUnit) else ""
    meant = f"; did you mean AT_TIMESTAMP:{error}?" if isinstance(error, BareTime) else ""
    number = f": {error}" if isinstance(error, NotMillisecondsError) else ""
    return f"{reason}{unit}; got {text!r}{meant}{number}"


def peer(text: str) -> str:
    """Parse a host name or an address to which a client can connect."""
    host = parse_host(text)
    if is_every_address(host):
        raise ValueError(text)
    return host


def ports(text: str) -> range:
    """Parse a port or a range such as `40000-40100`."""
    first, dash, last = text.partition("-")
    ports = range(integer(first), integer(last if dash else first) + 1)
    if not ports or ports[0] < 1 or ports[-1] > 65_535:
        raise ValueError(text)
    return ports


def bounded(parse: Callable[[str], Number], least: float, most: float = float("inf")) -> Callable[[str], Number]:
    """Make a parser that refuses values less than `least` or greater than `most`."""

    def read(text: str) -> Number:
        value = parse(text)
        # Compared in this way, NaN is refused, too.
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return read


def matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    """Make a parser of texts that match a pattern. It returns the text without blanks around it."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text.strip()):
            raise ValueError(text)
        return text.strip()

    return read


url = matching(re.compile(r"https?://[^\s/]+(/\S*)?"))
"""Parses a URL with http or https."""
