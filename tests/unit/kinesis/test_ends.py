"""Where a shard stood at a time, by the events of one subscription."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest

from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.ends import LookResult, is_empty, is_far, last_before, look_from
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position
from kinesis_efo.records.events import Event, EventHead


class Events:
    """The events of one subscription; implements `EventStream`."""

    received = 0

    def __init__(self, *events: Event) -> None:
        self.events = events
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            yield event

    def close(self) -> None:
        self.closed = True


def event(continuation: int | None, *seconds: float | None, behind: int = 1000, still: bool = False) -> Event:
    first = (continuation or 100) - len(seconds)
    records = [
        {"SequenceNumber": str(first + n), "ApproximateArrivalTimestamp": each, "Data": ""}
        for n, each in enumerate(seconds)
    ]
    payload = json.dumps({"Records": records}).encode()
    return Event(payload, EventHead(continuation, behind, len(seconds), still=still))


def found(*events: Event, gives_up: Callable[[EventHead], bool] | None = None, patience: float = 900.0) -> LookResult:
    stream, seconds = Events(*events), count(step=2.0)
    answer = asyncio.run(last_before(stream, 50_000, lambda: next(seconds), gives_up=gives_up, patience=patience))
    assert stream.closed
    return answer


@pytest.mark.parametrize(
    ("events", "position", "record"),
    [
        ([event(20, 10.0, 20.0), event(30, 30.0, 50.0)], Position.after(28), 28),
        ([event(20, 10.0, 20.0), event(30, 50.0)], Position.after(20), 19),
        ([event(20), event(30, 60.0)], Position.after(20), None),
        ([event(20, 60.0)], None, None),
        ([event(20, 10.0, behind=0), event(30, behind=0), event(40, behind=0)], Position.after(40), 19),
        ([event(20, behind=0), event(30, 10.0, behind=0), event(40, 60.0)], Position.after(30), 29),
        ([event(0, behind=0, still=True)] * 3, None, None),
        ([event(20, 10.0), event(25), event(None)], SHARD_END, 19),
    ],
)
def test_end_lies_before_the_first_later_record(
    events: list[Event], position: Position | None, record: int | None
) -> None:
    assert found(*events) == LookResult(position, complete=True, record=record)


def test_search_continues_after_an_early_end() -> None:
    assert found(event(20, 10.0), event(30, 20.0)) == LookResult(Position.after(30), complete=False, record=29)


def test_a_record_without_a_time_cannot_be_placed() -> None:
    with pytest.raises(FrameError, match="has no arrival time"):
        found(event(20, None))


def test_last_record_is_found_without_arrival_times() -> None:
    """A range that is said to be over at an earlier record would leave out the rest."""
    stream, seconds = (
        Events(event(20, 10.0), event(30, None, None, behind=0), *[event(40, behind=0)] * 2),
        count(step=2),
    )
    answer = asyncio.run(last_before(stream, 50_000, lambda: next(seconds), timed=False))
    assert answer == LookResult(Position.after(40), complete=True, record=29)


@pytest.mark.parametrize(
    ("gives_up", "events", "result"),
    [
        (is_empty, [event(0, behind=0, still=True), event(20, 10.0)], LookResult(None, complete=False)),
        (is_empty, [event(0, behind=9, still=True), event(20, 10.0), event(None)], LookResult(SHARD_END, True, 19)),
        (is_far, [event(20, 10.0, behind=6000), event(None)], LookResult(None, complete=False)),
        (is_far, [event(20, 10.0, behind=4000), event(None)], LookResult(SHARD_END, True, 19)),
    ],
)
def test_search_gives_up_only_before_the_last_start(
    gives_up: Callable[[EventHead], bool], events: list[Event], result: LookResult
) -> None:
    assert found(*events, gives_up=gives_up) == result


def test_answers_that_prove_nothing_end_in_an_error() -> None:
    stuck = Event(b"", EventHead(20, 1000, 0, still=True, stuck=True))
    with pytest.raises(TimeoutError, match="tip is unknown"):
        found(*[stuck] * 9, patience=10.0)


@pytest.mark.parametrize("heard", [[], [event(0, behind=9, still=True)]])
def test_search_cut_off_before_any_record_is_an_error(heard: list[Event]) -> None:
    with pytest.raises(FrameError, match="before its first record"):
        found(*heard, gives_up=is_empty)


@pytest.mark.parametrize(
    ("position", "seconds"),
    [
        (TRIM_HORIZON, [970, 400]),
        (Position.after(10**55), [970, 400]),
        (Position.at_timestamp(399_999), [970, 400]),
        (Position.at_timestamp(400_000), [970]),
        (Position.at_timestamp(970_000), []),
        (Position.at_timestamp(999_999), []),
    ],
)
def test_search_moves_back_to_the_position(position: Position, seconds: list[int]) -> None:
    assert look_from(1_000_000, position) == [*(Position.at_timestamp(each * 1000) for each in seconds), position]


def test_nothing_is_searched_before_a_past_time() -> None:
    for passed in (1_000_000, 1_000_001):
        assert look_from(1_000_000, Position.at_timestamp(passed)) == []
