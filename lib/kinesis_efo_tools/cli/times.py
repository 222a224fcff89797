"""Parses times and durations on the command line."""

from __future__ import annotations

from contextlib import suppress

from kinesis_efo.errors import UsageError
from kinesis_efo.units import lacks_unit, parse_duration, parse_time, time_meant

_NO_TIME = 10**12 - 1
"""Numbers up to this one need a unit. As times in epoch milliseconds, they would be before Kinesis existed."""


def check_unit(option: str, text: str) -> None:
    """Raise UsageError for a duration without a unit: Spark would read milliseconds, but users of a command line usually mean seconds.

    The text 0 and a time in epoch milliseconds do not need a unit.
    """
    if lacks_unit(text, _NO_TIME):
        number = text.strip()
        meant = "" if (time := time_meant(number)) is None else f"; did you mean the time {time}?"
        raise UsageError(f"{option}: {number} of what? Say {number}s, {number}m or {number}ms; got {text!r}{meant}")


def at_or_ago(text: str, now: float) -> int:
    """Parse a time (see `parse_time`), the word `now`, or a duration ago such as `10m`. Returns epoch milliseconds.

    The argument `now` is in epoch seconds. Raises ValueError if `text` is none of these.

    >>> at_or_ago("now", 100.0), at_or_ago("10s", 100.0)
    (100000, 90000)
    """
    if text.strip().lower() == "now":
        return round(now * 1000)
    with suppress(ValueError):
        return round(now * 1000) - parse_duration(text)
    return parse_time(text)
