"""What an index covers once events were dropped: exactly what is still to be read from it."""

import pytest

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position

A_TIME = Position.at_timestamp(1_700_000_000_000)


def index(*events: tuple[int | None, int]) -> EventIndex:
    """An index with events, by their end and their number of records, the last of which is one below the end."""
    made = EventIndex(TRIM_HORIZON)
    for end, records in events:
        last = end - 1 if end is not None and records else None
        made.append(end, 100 * records, records, 0.0, last=last)
    return made


@pytest.mark.parametrize(("position", "covered"), [(8, False), (9, True), (10, True), (15, True), (20, True)])
def test_start_after_the_last_dropped_record_has_no_gap(position: int, covered: bool) -> None:
    made = index((10, 1), (20, 0))
    made.drop(2)
    assert made.start == Position.after(20)
    assert made.covers(Position.after(position)) is covered


def test_dropping_an_idle_event_loses_no_coverage() -> None:
    made = index((10, 1), (20, 0))
    made.drop(1)
    made.drop(2)
    assert made.covers(Position.after(9))


def test_idle_index_covers_its_start_until_a_drop() -> None:
    made = index((10, 0), (20, 1), (30, 0))
    made.drop(1)
    assert made.covers(TRIM_HORIZON) and made.portion(TRIM_HORIZON, 1 << 20, 9).records == 1
    made.drop(2)
    assert not made.covers(TRIM_HORIZON)


def test_dropped_end_of_a_shard_is_not_covered() -> None:
    made = index((None, 0))
    made.drop(1)
    assert not made.covers(TRIM_HORIZON)


def test_event_is_passed_after_its_last_record() -> None:
    made = index((10, 3), (20, 0), (30, 2))
    assert made.portion(Position.after(9), 1 << 20, 2).through == Position.after(30)
    assert made.index_after(Position.after(9)) == 1
    assert made.news_since(Position.after(29)) is None


def test_unknown_last_record_leaves_only_the_start_covered() -> None:
    made = index()
    made.append(10, 100, 1, 0.0)
    made.append(20, 0, 0, 0.0)
    made.drop(2)
    assert not made.covers(Position.after(19))
    assert made.covers(Position.after(20))


def test_dropped_shard_end_leaves_nothing_covered() -> None:
    made = index((10, 1), (None, 0))
    made.drop(1)
    assert made.covers(Position.after(10))
    made.drop(2)
    assert not made.covers(Position.after(10))
    assert made.covers(SHARD_END)


@pytest.mark.parametrize(
    ("start", "other"), [(A_TIME, TRIM_HORIZON), (TRIM_HORIZON, A_TIME)], ids=["a time", "the trim horizon"]
)
def test_first_event_shows_coverage_without_a_start_number(start: Position, other: Position) -> None:
    made = EventIndex(start)
    assert [made.covers(each) for each in (start, SHARD_END, other)] == [True, True, False]
    assert made.covers(Position.after(15)) is None
    made.append(20, 100, 1, 0.0, first=15)
    assert [made.covers(Position.after(number)) for number in (14, 15, 20)] == [False, True, True]
    unknown = EventIndex(made.start)
    unknown.append(20, 0, 0, 0.0)
    assert [unknown.covers(Position.after(number)) for number in (19, 20)] == [False, True]


def test_number_after_the_start_time_is_covered_before_events() -> None:
    made = EventIndex(Position.at_timestamp(1_700_000_000_000))
    made.extend_coverage(9)
    made.extend_coverage(12)
    assert [made.covers(Position.after(number)) for number in (8, 9)] == [None, True]
    made.extend_coverage(7)
    made.append(20, 100, 1, 0.0, first=15)
    assert [made.covers(Position.after(number)) for number in (6, 7)] == [False, True]
    made.append(30, 100, 1, 0.0)
    made.drop(1)
    made.extend_coverage(3)
    assert [made.covers(Position.after(number)) for number in (10, 20)] == [False, True]


def test_start_at_a_number_covers_everything_after_it() -> None:
    made = EventIndex(Position.after(10))
    made.extend_coverage(5)
    assert [made.covers(Position.after(number)) for number in (9, 10, 11)] == [False, True, True]


def test_empty_event_keeps_a_reader_within_its_record() -> None:
    """A KCL application had stopped within record 100. Kinesis may begin with an event that ends before it."""
    inside = Position.inside(100, 3)
    made = EventIndex(inside)
    assert not made.append(99, 0, 0, 0.0)
    assert made.end == inside
    assert made.portion(inside, 1000, 10).through == inside
    assert made.append(120, 500, 2, 1.0, last=110)
    assert made.portion(inside, 1000, 10).through == Position.after(120)


def test_lag_is_that_of_the_last_event_with_records() -> None:
    made = EventIndex(Position.after(10))
    assert made.lag_since(0.0) == 0
    for number in range(20, 40):
        made.append(number, 100, 1, 1.0, behind=9000)
    made.append(40, 0, 0, 2.0, behind=0)
    made.drop(20)
    assert [made.lag_since(since) for since in (1.0, 1.5)] == [9000, 0]
