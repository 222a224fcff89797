"""Parses sizes, durations and times in the spelling that Spark users know, and writes sizes in the units that they mean.

Spark reads `256m` as mebibytes and `200ms` as a duration (its `JavaUtils`); a number alone is bytes or milliseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NEXT_UNIT = 1023.95
"""What would be rounded up to 1024.0."""
_THIS_CENTURY = 978_307_200_000
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_DURATION_MS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_size(text: str) -> int:
    """Bytes in a text such as `256m`, `1g`, `64kb` or `1048576`.

    Raises:
        ValueError: The text is not a size.

    >>> parse_size("256m")
    268435456
    """
    if not (match := _SIZE.fullmatch(text.strip())):
        raise ValueError(text)
    return int(match[1]) * _SIZE_FACTOR[match[2].lower()]


def format_size(count: int) -> str:
    """A number of bytes, in the units that options mean: `256m` is 256 MiB.

    >>> format_size(parse_size("256m")), format_size(1000), format_size((1 << 30) - 1)
    ('256.0 MiB', '1000 B', '1.0 GiB')
    """
    value, power = float(count), 0
    while value >= _NEXT_UNIT and power < len(SIZE_UNITS) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.1f} {SIZE_UNITS[power]}" if power else f"{count} B"


def parse_duration(text: str) -> int:
    """Milliseconds in a text such as `200ms`, `10s`, `5m`, `1h` or `200`.

    Raises:
        ValueError: The text is not a duration.

    >>> parse_duration("10s"), parse_duration("200")
    (10000, 200)
    """
    if not (match := _DURATION.fullmatch(text.strip())):
        raise ValueError(text)
    return int(match[1]) * _DURATION_MS[match[2] and match[2].lower()]


def lacks_unit(text: str, most: int) -> bool:
    """Whether a text is a number from 1 up to `most` alone, which people mean as seconds as often as as milliseconds.

    >>> lacks_unit("10", 99), lacks_unit("200", 99), lacks_unit("10s", 99), lacks_unit("0", 99)
    (True, False, False, False)
    """
    text = text.strip()
    return text.isascii() and text.isdigit() and 0 < int(text) <= most


def parse_time(text: str) -> int:
    """Epoch milliseconds in ISO 8601 text or in epoch milliseconds. A time without an offset is UTC.

    Raises:
        ValueError: The text is neither.

    >>> parse_time("2024-01-01T00:00:00Z"), parse_time("1704067200000")
    (1704067200000, 1704067200000)
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        milliseconds = int(text)
        if milliseconds >= 10**14:
            raise ValueError(f"{text} ms is after the year 5000")
        return milliseconds
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def is_time(text: str) -> bool:
    """Whether a text is a time alone, in ISO 8601 or in epoch milliseconds of this century.

    >>> is_time("2024-01-01"), is_time("1704067200000"), is_time("42"), is_time("soon")
    (True, True, False, False)
    """
    text = text.strip()
    try:
        return parse_time(text) >= _THIS_CENTURY or not text.isdigit()
    except ValueError:
        return False
