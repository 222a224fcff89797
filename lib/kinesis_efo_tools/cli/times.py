"""Parses times on the command line. A time without a zone is local time."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from kinesis_efo.errors import UsageError
from kinesis_efo.units import lacks_unit, parse_duration, parse_number, time_meant

_NO_TIME = 10**12 - 1
"""Epoch milliseconds up to here are before Kinesis existed: such a number is a duration without a unit."""


def check_unit(option: str, text: str) -> None:
    """Refuse a duration without a unit: Spark reads it as milliseconds, but on a command line it usually means seconds.

    Raises:
        UsageError: The text is only a number, other than 0, and not a time in epoch milliseconds.
    """
    if lacks_unit(text, _NO_TIME):
        number = text.strip()
        meant = "" if (time := time_meant(number)) is None else f"; did you mean the time {time}?"
        raise UsageError(f"{option}: {number} of what? Say {number}s, {number}m or {number}ms; got {text!r}{meant}")


def at(text: str) -> int:
    """Parse a time in ISO 8601 or epoch milliseconds; returns epoch milliseconds.

    Raises:
        NotMillisecondsError: It is a number that probably does not mean milliseconds.
        ValueError: The text is neither.

    >>> at("2024-01-01T00:00:00Z"), at("1704067200000")
    (1704067200000, 1704067200000)
    """
    number = parse_number(text)
    return round(datetime.fromisoformat(text.strip()).timestamp() * 1000) if number is None else number


def at_or_ago(text: str, now: float) -> int:
    """Parse a time like `at`, or `now`, or a duration ago; returns epoch milliseconds.

    Args:
        text: The time, or a duration such as `10m`.
        now: The present time, epoch seconds.

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
