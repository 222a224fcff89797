"""Times on the command line. A person means the clock on the wall: one without a zone is local time."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from kinesis_efo.errors import UsageError
from kinesis_efo.units import lacks_unit, parse_duration, parse_number, time_meant

_NO_TIME = 10**12 - 1
"""Epoch milliseconds up to here lie before Kinesis: such a number is a duration that lacks its unit."""


def check_unit(option: str, text: str) -> None:
    """Refuse a duration without a unit: Spark reads it as milliseconds, a person at a command line means seconds.

    Raises:
        UsageError: The text is a number alone, other than 0, and no time in epoch milliseconds.
    """
    if lacks_unit(text, _NO_TIME):
        number = text.strip()
        meant = "" if (time := time_meant(number)) is None else f"; did you mean the time {time}?"
        raise UsageError(f"{option}: {number} of what? Say {number}s, {number}m or {number}ms; got {text!r}{meant}")


def at(text: str) -> int:
    """Epoch milliseconds in ISO 8601 text, or in epoch milliseconds.

    Raises:
        NotMillisecondsError: It is a number, and probably no milliseconds.
        ValueError: The text is neither.

    >>> at("2024-01-01T00:00:00Z"), at("1704067200000")
    (1704067200000, 1704067200000)
    """
    number = parse_number(text)
    return round(datetime.fromisoformat(text.strip()).timestamp() * 1000) if number is None else number


def at_or_ago(text: str, now: float) -> int:
    """Epoch milliseconds of a time as `at` reads it, of `now`, or of a time so long ago.

    Args:
        text: The time, or a duration such as `10m`.
        now: Seconds since the epoch.

    Raises:
        ValueError: The text is none of these.

    >>> at_or_ago("now", 100.0), at_or_ago("10s", 100.0)
    (100000, 90000)
    """
    if text.strip().lower() == "now":
        return round(now * 1000)
    with suppress(ValueError):
        return round(now * 1000) - parse_duration(text)
    return at(text)
