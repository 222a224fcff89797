"""Parses sizes, durations and times in the syntax of Spark's options, and formats sizes in the same units.

As in Spark's `JavaUtils`, `256m` is 256 MiB, `200ms` is a duration, and a number without a unit is in bytes or milliseconds.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NEXT_UNIT = 1023.95
"""From this value on, sizes are shown in the next larger unit, because rounding to one decimal would show the value as 1024.0."""
_THIS_CENTURY = range(978_307_200_000, 4_102_444_800_000)
_NUMBER = re.compile(r"\d+(\.\d*)?", re.ASCII)
_DATE = re.compile(r"20\d{6}", re.ASCII)
_TIME_UNITS = (Decimal(1), Decimal(1000), Decimal("0.001"), Decimal("0.000001"))
"""Factors that convert milliseconds, seconds (as in AWS' API, with or without a fraction), microseconds and nanoseconds to milliseconds."""
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(
    r"(\d{1,12})\s*((ms|milliseconds?)|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?)?", re.IGNORECASE
)
_DURATION_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_size(text: str) -> int:
    """Parse a size such as `256m`, `1g`, `64kb` or `1048576`. Returns bytes.

    >>> parse_size("256m")
    268435456
    """
    if not (match := _SIZE.fullmatch(text.strip())):
        raise ValueError(text)
    return int(match[1]) * _SIZE_FACTOR[match[2].lower()]


def format_size(count: int) -> str:
    """Format a number of bytes for messages, in binary units as in options: `256m` is 256 MiB.

    >>> format_size(parse_size("256m")), format_size(1000), format_size((1 << 30) - 1)
    ('256.0 MiB', '1000 B', '1.0 GiB')
    """
    value, power = float(count), 0
    while value >= _NEXT_UNIT and power < len(SIZE_UNITS) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.1f} {SIZE_UNITS[power]}" if power else f"{count} B"


def parse_duration(text: str) -> int:
    """Parse a duration such as `200ms`, `10s`, `5 minutes`, `1h` or `200`. Returns milliseconds.

    >>> parse_duration("10 seconds"), parse_duration("200")
    (10000, 200)
    """
    if not (match := _DURATION.fullmatch(text.strip())):
        raise ValueError(text)
    return int(match[1]) * (1 if match[3] or not match[2] else _DURATION_MS[match[2][0].lower()])


def lacks_unit(text: str, most: int) -> bool:
    """Whether `text` is only a number from 1 to `most`, which could mean seconds or milliseconds.

    >>> lacks_unit("10", 99), lacks_unit("200", 99), lacks_unit("10s", 99), lacks_unit("0", 99)
    (True, False, False, False)
    """
    text = text.strip()
    return text.isascii() and text.isdigit() and 0 < int(text) <= most


class NotMillisecondsError(ValueError):
    """Raised for a number that is not a time of this century in milliseconds. The message suggests the time that was probably meant."""


class NoZoneError(ValueError):
    """Raised for a time without a time zone: it could be UTC, local time or Spark's session time. `in_utc` is the time read as UTC."""

    def __init__(self, moment: datetime) -> None:
        self.in_utc = f"{moment.isoformat()}Z"
        super().__init__(f"must include its time zone, as {self.in_utc} does for UTC")


def parse_number(text: str) -> int | None:
    """Parse epoch milliseconds. Returns None for other text. Raises NotMillisecondsError for a time outside this century, except 0.

    >>> parse_number("1704067200000"), parse_number("2024-01-01")
    (1704067200000, None)
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    if text.isdigit() and (int(text) in _THIS_CENTURY or not int(text)):
        return int(text)
    meant = time_meant(text)
    moment = "" if meant is None else f", which is {datetime.fromtimestamp(meant / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    raise NotMillisecondsError(
        f"{text} is no time of this century in milliseconds" + (moment and f"; did you mean {meant}{moment}?")
    )


def time_meant(text: str) -> int | None:
    """Guess which time of this century a number in an unknown unit or format stands for. Returns epoch milliseconds, or None.

    >>> time_meant("1704067200.5"), time_meant("20240101"), time_meant("42"), time_meant("soon")
    (1704067200500, 1704067200000, None, None)
    """
    text = text.strip()
    with suppress(ValueError):
        if _DATE.fullmatch(text):
            return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
    times = [int(Decimal(text) * unit) for unit in _TIME_UNITS] if _NUMBER.fullmatch(text) else []
    return next((time for time in times if time in _THIS_CENTURY), None)


def parse_time(text: str) -> int:
    """Parse a time in ISO 8601, with a time zone, or in epoch milliseconds. Returns epoch milliseconds.

    >>> parse_time("2024-01-01T00:00:00Z"), parse_time("1704067200000")
    (1704067200000, 1704067200000)
    """
    if (number := parse_number(text)) is not None:
        return number
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise NoZoneError(moment)
    return round(moment.timestamp() * 1000)
