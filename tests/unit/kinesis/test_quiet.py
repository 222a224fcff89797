"""When it is believed that nothing more comes: the answers that it takes, the time between them, and what begins it anew."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kinesis_efo.kinesis.events import EventHead
from kinesis_efo.kinesis.quiet import Quiet


def polled(behind: int = 0, records: int = 0, *, stuck: bool = False) -> EventHead:
    return EventHead(0, behind, records, still=not records, stuck=stuck)


def pushed(behind: int = 0, records: int = 0) -> EventHead:
    return EventHead(42, behind, records)


def heard(answers: Iterable[tuple[EventHead, float]]) -> Quiet:
    quiet = Quiet()
    for head, at in answers:
        quiet.heard(head, at)
    return quiet


@pytest.mark.parametrize(
    ("times", "believed"),
    [
        ([], False),
        ([0], False),
        ([0, 5], False),
        ([0, 1, 1.9], False),
        ([0, 1, 2], True),
        ([0, 0, 0, 0, 1.9], False),
        ([0, 0, 0, 0, 2], True),
    ],
)
def test_three_answers_of_polling_over_two_seconds_are_believed(times: list[float], believed: bool) -> None:
    assert heard((polled(), at) for at in times).believed() is believed


@pytest.mark.parametrize(("times", "believed"), [([0], False), ([0, 1.9], False), ([0, 2], True), ([0, 5], True)])
def test_two_events_over_two_seconds_are_believed(times: list[float], believed: bool) -> None:
    assert heard((pushed(), at) for at in times).believed() is believed


def test_what_was_heard_before_one_asks_does_not_count() -> None:
    quiet = heard((polled(), at) for at in (0, 1, 2, 3))
    assert quiet.believed(asked_at=1)
    assert not quiet.believed(asked_at=1.5)


@pytest.mark.parametrize("head", [polled(records=1), pushed(records=1)])
def test_a_record_begins_it_anew(head: EventHead) -> None:
    quiet = heard([(polled(), 0), (polled(), 1), (head, 2), (polled(), 3), (polled(), 4)])
    assert not quiet.believed()
    assert quiet.answers == 2
    quiet.heard(polled(), 5)
    assert quiet.believed()
    quiet.heard(head, 6)
    assert (quiet.answers, quiet.believed(), str(quiet)) == (0, False, "no answer came without records")


def test_a_lag_that_shrinks_is_progress_and_one_that_stays_is_not() -> None:
    shrinking = heard((polled(behind=10_000 - 1000 * at), at) for at in range(6))
    assert (shrinking.answers, shrinking.believed()) == (1, False)
    assert heard((polled(behind=9000), at) for at in range(3)).believed(), "it says that it is behind for ever"
    growing = heard((polled(behind=9000 + at), at) for at in range(3))
    assert growing.believed()


def test_a_lag_with_an_iterator_that_does_not_move_says_nothing() -> None:
    assert not heard((polled(behind=9000, stuck=True), at) for at in range(10)).believed()
    assert heard((polled(stuck=True), at) for at in range(3)).believed(), "at the tip it need not move"


def test_it_tells_how_long_it_lasts() -> None:
    quiet = heard((polled(behind=7), at) for at in (10, 11, 13))
    assert (quiet.lasts(since=0), quiet.lasts(since=12)) == (3.0, 1.0)
    assert str(quiet) == "3 answers in 3 s brought no record; the last said that reading is 7 ms behind"
    assert Quiet().lasts(since=0) == 0.0
