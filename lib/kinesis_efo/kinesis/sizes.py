"""Estimates how many bytes of events are the records' data. Pure."""

from __future__ import annotations

from typing import Final

_ABOUT_AN_EVENT: Final = 128
"""Bytes of an event without its records: names, continuation and lag."""

_ABOUT_A_RECORD: Final = 185
"""Bytes of a record without its data: names, number, time, and a key of 12 characters."""


def data_in(arrived: float | None, records: float | None, events: float = 0) -> float | None:
    """Estimate the bytes of data in events. The rest is JSON, base64 and keys.

    Args:
        arrived: Bytes of events, or bytes a second.
        records: Kinesis records in them, or records a second.
        events: The number of events, if known. It matters if each has few records.

    >>> data_in(1_525_000.0, 1000.0), data_in(100.0, 5.0), data_in(7.0, None)
    (1005000.0, 0.0, None)
    >>> data_in(340.0, 1.0, 1.0)
    20.25
    """
    if arrived is None or records is None:
        return None
    return max(0.0, (arrived - _ABOUT_A_RECORD * records - _ABOUT_AN_EVENT * events) * 3 / 4)
