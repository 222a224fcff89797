"""Times that a person types."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kinesis_efo_tools.cli.times import at, at_or_ago


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2024-01-01T00:00:00Z", 1_704_067_200_000),
        ("2024-01-01T00:00:00+01:00", 1_704_063_600_000),
        ("2024-01-01T09:00:00", 1_704_067_200_000),
        ("2024-01-01 09:00", 1_704_067_200_000),
        ("1704067200000", 1_704_067_200_000),
    ],
)
def test_a_time_without_a_zone_is_local(text: str, milliseconds: int) -> None:
    assert at(text) == at_or_ago(text, 0.0) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "AT_TIMESTAMP:1", "1795699946.480", "1795699946480123"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the text differs)
        at_or_ago(text, 0.0)
