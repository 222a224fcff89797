"""Parses times and durations on the command line."""

from __future__ import annotations

from contextlib import suppress

from kinesis_efo.errors import UsageError
from kinesis_efo.units import lacks_unit, parse_duration, parse_time, time_meant

_NO_TIME = 10**12 - 1
"""Epoch milliseconds up to here are before Kinesis existed: such a number is a duration without a unit."""


def check_unit(option: str, text: str) -> None:
    """Refuse a duration without a unit: Spark reads it as milliseconds, but on a command line it usually means seconds.

    The text 0, and a time in epoch milliseconds, need none. Raises UsageError.
    """
    if lacks_unit(text, _NO_TIME):
        number = text.strip()
        meant = "" if (time := time_meant(number)) is None else f"; did you mean the time {time}?"
        raise UsageError(f"{option}: {number} of what? Say {number}s, {number}m or {number}ms; got {text!r}{meant}")


def at_or_ago(text: str, now: float) -> int:
    """Parse a time like `parse_time`, or `now`, or a duration ago; returns epoch milliseconds.

    `text` may be a duration such as `10m`; `now` is in epoch seconds. Raises ValueError if it is none of these.

    >>> at_or_ago("now", 100.0), at_or_ago("10s", 100.0)
    (100000, 90000)
    """
    if text.strip().lower() == "now":
        return round(now * 1000)
    with suppress(ValueError):
        return round(now * 1000) - parse_duration(text)
    return parse_time(text)
