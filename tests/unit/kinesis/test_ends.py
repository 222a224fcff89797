"""Where a shard stood at a time, by the events of one subscription."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.ends import LookResult, last_before
from kinesis_efo.kinesis.events import Event, EventHead
from kinesis_efo.positions import SHARD_END, Position


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


def found(*events: Event) -> LookResult:
    stream = Events(*events)
    answer = asyncio.run(last_before(stream, 50_000, time.monotonic))
    assert stream.closed
    return answer


@pytest.mark.parametrize(
    ("events", "position", "record"),
    [
        ([event(20, 10.0, 20.0), event(30, 30.0, 50.0)], Position.after(28), 28),
        ([event(20, 10.0, 20.0), event(30, 50.0)], Position.after(20), 19),
        ([event(20), event(30, 60.0)], Position.after(20), None),
        ([event(20, 60.0)], None, None),
        ([event(20, 10.0, behind=0)], Position.after(20), 19),
        ([event(0, behind=0, still=True)], None, None),
        ([event(20, 10.0), event(25), event(None)], SHARD_END, 19),
    ],
)
def test_the_end_is_in_front_of_the_first_record_of_the_time_or_at_the_tip(
    events: list[Event], position: Position | None, record: int | None
) -> None:
    assert found(*events) == LookResult(position, complete=True, record=record)


def test_a_subscription_that_ends_too_soon_is_gone_on_with() -> None:
    assert found(event(20, 10.0), event(30, 20.0)) == LookResult(Position.after(30), complete=False, record=29)


def test_a_record_without_a_time_cannot_be_placed() -> None:
    with pytest.raises(FrameError, match="does not say when it arrived"):
        found(event(20, None))


def test_without_a_need_for_times_the_last_record_is_known_all_the_same() -> None:
    """A range that is said to be over at an earlier record would leave out the rest."""
    stream = Events(event(20, 10.0), event(30, None, None, behind=0))
    answer = asyncio.run(last_before(stream, 50_000, time.monotonic, timed=False))
    assert answer == LookResult(Position.after(30), complete=True, record=29)
