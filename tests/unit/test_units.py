"""Sizes, durations and times as Spark's users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.units import NotMillisecondsError, NoZoneError, parse_duration, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("1b", 1), ("64k", 1 << 16), ("64KB", 1 << 16), ("1KiB", 1024), (" 256 m ", 256 << 20),
     ("1g", 1 << 30), ("2T", 2 << 40)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "m", "-1m", "1.5g", "1e3", "256mm", "256 x", "1_000", "9" * 16])
def test_texts_that_are_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("200", 200), ("200ms", 200), ("10s", 10_000), ("5m", 300_000), ("5 MIN", 300_000), ("1h", 3_600_000),
     ("1d", 86_400_000), ("10 seconds", 10_000), ("1 minute", 60_000), ("2 Hours", 7_200_000), ("3 milliseconds", 3)],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1.5s", "10 fortnights", "1w", "ten"])
def test_texts_that_are_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0", 0), ("1704067200123", 1704067200123), ("2024-01-01T00:00Z", 1704067200000),
     ("2024-01-01T01:00:00+01:00", 1704067200000), ("2024-01-01T00:00:00.123Z", 1704067200123)],
)  # fmt: skip
def test_times(text: str, milliseconds: int) -> None:
    assert parse_time(text) == milliseconds


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01 00:00", " 2024-01-01T00:00:00 "])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(NoZoneError, match=r"^must include its time zone, as 2024-01-01T00:00:00Z does for UTC$"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2024-13-01", "1" * 15, "1704067200.5"])
def test_texts_that_are_not_times(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_time(text)


@pytest.mark.parametrize(
    ("number", "meant"),
    [("1795699946", "1795699946000, which is 2026-11-26T13:32:26Z"),  # AWS' API and command line take seconds
     ("1795699946.480", "1795699946480, which is 2026-11-26T13:32:26Z"),
     ("1795699946480.25", "1795699946480, which is 2026-11-26T13:32:26Z"),
     (" 1795699946480123 ", "1795699946480, which is 2026-11-26T13:32:26Z"),
     ("1795699946480123456", "1795699946480, which is 2026-11-26T13:32:26Z"),
     ("20261126", "1795651200000, which is 2026-11-26T00:00:00Z"),
     ("978307199999", None), ("42", None), ("4102444800000", None), ("0.5", None), ("9" * 56, None)],
)  # fmt: skip
def test_other_numbers_are_answered_with_milliseconds(number: str, meant: str | None) -> None:
    with pytest.raises(NotMillisecondsError) as refused:
        parse_time(number)
    hint = "" if meant is None else f"; did you mean {meant}?"
    assert str(refused.value) == f"{number.strip()} is no time of this century in milliseconds{hint}"


@given(st.datetimes(timezones=st.timezones()))
def test_a_time_survives_its_spelling(moment: object) -> None:
    assert parse_time(moment.isoformat()) == round(moment.timestamp() * 1000)  # type: ignore[attr-defined]
