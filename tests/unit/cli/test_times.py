"""Times that a person types."""

from __future__ import annotations

import pytest

from kinesis_efo.units import NoZoneError
from kinesis_efo_tools.cli.times import at_or_ago


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2024-01-01T00:00:00Z", 1_704_067_200_000),
        ("2024-01-01T00:00:00+01:00", 1_704_063_600_000),
        ("1704067200000", 1_704_067_200_000),
        ("now", 100_000),
        ("10s", 90_000),
    ],
)
def test_times_and_durations_are_read(text: str, milliseconds: int) -> None:
    assert at_or_ago(text, 100.0) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "AT_TIMESTAMP:1", "1795699946.480", "1795699946480123"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the text differs)
        at_or_ago(text, 0.0)
    with pytest.raises(NoZoneError, match="as 2024-01-01T09:00:00Z does for UTC"):
        at_or_ago("2024-01-01 09:00", 0.0)
