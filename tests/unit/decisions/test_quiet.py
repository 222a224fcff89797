"""When it is believed that nothing more comes: the answers that it takes, the time between them, and what begins it anew."""

from collections.abc import Callable, Iterable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.quiet import QUIET_ANSWERS, QUIET_EVENTS, QUIET_SECONDS, Quiet
from kinesis_efo.records.events import EventHead


def polled(behind: int = 0, records: int = 0, *, stuck: bool = False) -> EventHead:
    return EventHead(0, behind, records, still=not records, stuck=stuck)


def pushed(behind: int = 0, records: int = 0) -> EventHead:
    return EventHead(42, behind, records)


def heard(answers: Iterable[tuple[EventHead, float]]) -> Quiet:
    quiet = Quiet()
    for head, at in answers:
        quiet.observe(head, at)
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
    assert heard((polled(), at) for at in times).is_at_tip() is believed


@pytest.mark.parametrize(("times", "believed"), [([0], False), ([0, 1.9], False), ([0, 2], True), ([0, 5], True)])
def test_two_events_over_two_seconds_are_believed(times: list[float], believed: bool) -> None:
    assert heard((pushed(), at) for at in times).is_at_tip() is believed


@pytest.mark.parametrize(
    ("times", "believed"), [([0, 12], True), ([0, 35], False), ([0, 35, 40], True), ([0, 5, 40], False)]
)
def test_event_after_a_silence_restarts_the_count(times: list[float], believed: bool) -> None:
    assert heard((pushed(), at) for at in times).is_at_tip() is believed


def test_answers_before_the_question_do_not_count() -> None:
    quiet = heard((polled(), at) for at in (0, 1, 2, 3))
    assert quiet.is_at_tip(asked_at=1)
    assert not quiet.is_at_tip(asked_at=1.5)


@pytest.mark.parametrize("head", [polled(records=1), pushed(records=1)])
def test_record_restarts_it(head: EventHead) -> None:
    quiet = heard([(polled(), 0), (polled(), 1), (head, 2), (polled(), 3), (polled(), 4)])
    assert not quiet.is_at_tip()
    assert quiet.answers == 2
    quiet.observe(polled(), 5)
    assert quiet.is_at_tip()
    quiet.observe(head, 6)
    assert (quiet.answers, quiet.is_at_tip(), str(quiet)) == (0, False, "no response without records")


def test_shrinking_lag_is_progress_and_constant_lag_is_not() -> None:
    shrinking = heard((polled(behind=10_000 - 1000 * at), at) for at in range(6))
    assert (shrinking.answers, shrinking.is_at_tip()) == (1, False)
    assert heard((polled(behind=9000), at) for at in range(3)).is_at_tip(), "it says that it is behind for ever"
    assert heard((polled(behind=9000 + at), at) for at in range(3)).is_at_tip()


def test_lag_of_a_standing_iterator_is_ignored() -> None:
    assert not heard((polled(behind=9000, stuck=True), at) for at in range(10)).is_at_tip()
    assert heard((polled(stuck=True), at) for at in range(3)).is_at_tip(), "at the tip it need not move"
    again = heard((polled(behind=9000 + at, stuck=at % 2 == 0), at) for at in range(9))
    assert not again.is_at_tip(), "each second one is a new iterator's first"


@pytest.mark.parametrize("pause", [0.001, 0.03, 0.1, 0.124, 0.126, 0.2, 5.0])
@pytest.mark.parametrize("make", [polled, pushed])
def test_fast_answers_are_believed_after_two_seconds(make: Callable[[], EventHead], pause: float) -> None:
    quiet, asked_at = Quiet(), 3.0
    for number in range(1 + round(10 / pause)):
        at = number * pause
        quiet.observe(make(), at)
        since = at - asked_at
        if since < QUIET_SECONDS or since < pause:
            assert not quiet.is_at_tip(asked_at), "not sooner"
        elif since >= QUIET_SECONDS + 0.2 and since >= 4 * pause:
            assert quiet.is_at_tip(asked_at), "and not much later"


@given(st.lists(st.floats(0, 3), min_size=1, max_size=300), st.floats(0, 1), st.sampled_from([polled, pushed]))
def test_forgotten_answers_delay_it_by_one_step(
    pauses: list[float], place: float, make: Callable[[], EventHead]
) -> None:
    times = list(accumulate(pauses))
    asked_at = times[int(place * (len(times) - 1))]
    quiet = heard((make(), at) for at in times)
    later = [at for at in times if at >= asked_at]
    needed = QUIET_ANSWERS if make is polled else QUIET_EVENTS
    if quiet.is_at_tip(asked_at):
        assert len(later) >= needed
        assert later[-1] - later[0] >= QUIET_SECONDS
    # One that is not remembered stands for another that came less than a step after it.
    steps = sorted({int(8 * at) for at in later})
    if later[-1] - later[0] >= QUIET_SECONDS + 0.125 and len(steps) > 2 * needed:
        assert quiet.is_at_tip(asked_at)
    assert len(quiet._counted) <= 64


def test_its_duration_is_known() -> None:
    quiet = heard((polled(behind=7), at) for at in (10, 11, 13))
    assert (quiet.seconds_empty(since=0), quiet.seconds_empty(since=12)) == (3.0, 1.0)
    assert str(quiet) == "3 responses in 3 s had no records; the last one reported a lag of 7 ms"
    assert Quiet().seconds_empty(since=0) == 0.0


def test_shard_without_recent_answers_is_not_quiet() -> None:
    quiet = Quiet()
    for second in (0, 5, 10):
        quiet.observe(EventHead(second, millis_behind=0, records=0), second)
    assert [quiet.seconds_at_tip(now) for now in (10, 22, 23, 400)] == [10, 22, 0, 0]
    for second in (500, 600, 700):
        quiet.observe(EventHead(0, millis_behind=0, records=0, still=True), second)
    assert quiet.seconds_at_tip(800) > 0, "such a server answers seldom"
