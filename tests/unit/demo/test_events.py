"""The demo's events are what it says they are."""

from __future__ import annotations

import json

from demo.events import STREAMS, count, event_id, timeline


def test_events_come_in_the_order_of_their_hours_with_ids_of_their_own() -> None:
    events = list(timeline(3000))
    hours = [json.loads(event.payload)["time_hour"] for event in events]
    assert hours == sorted(hours)
    assert len({event.id for event in events}) == 3000
    assert {event.stream for event in events} == set(STREAMS)
    assert all(event_id(event.payload) == event.id for event in events)
    assert all(1 <= len(event.key) <= 256 for event in events)


def test_there_are_as_many_as_announced() -> None:
    assert count() == 336_776 + 26_115
    assert count(100) == 100 == len(list(timeline(100)))
