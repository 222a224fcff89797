"""Kinesis' time, from the `Date` of answers, whatever this machine's clock says."""

import logging
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.kinesis.clock import KinesisClock
from tests.support.answers import Answers, FixedClock

NOW = 1_700_000_000.0
BY_A_PROXY = {"date": "Tue, 14 Nov 2023 22:13:20 GMT"}
DATE = BY_A_PROXY | {"x-amzn-requestid": "1"}


def heard(skew: float, headers: Mapping[str, str] = DATE) -> tuple[KinesisClock, FixedClock, Answers]:
    """A machine whose clock is so far ahead, when it has heard an answer of NOW."""
    machine, client = FixedClock(NOW + skew), Answers()
    clock = KinesisClock(machine)
    clock.watch(client)
    client.answer(headers)
    return clock, machine, client


@pytest.mark.parametrize(("skew", "known"), [(3.5, 2.5), (0.4, 0.0), (1.0, 0.0), (-3.0, -3.0)])
def test_whole_seconds_leave_one_in_doubt(skew: float, known: float) -> None:
    clock, _, _ = heard(skew)
    assert (clock.time(), clock.latest, clock.answered) == (NOW, NOW + 1, NOW)
    assert clock.skew == pytest.approx(known)


def test_before_the_first_answer_there_is_this_machines_clock() -> None:
    clock = KinesisClock(FixedClock(5.0))
    assert (clock.time(), clock.latest, clock.answered, clock.skew) == (5.0, 5.0, 5.0, 0.0)
    assert not clock.is_set


def test_local_time_differs_from_kinesis_time() -> None:
    clock, _, _ = heard(40.0)
    assert (clock.is_set, clock.here, clock.time()) == (True, NOW + 40, NOW)


@pytest.mark.parametrize("headers", [{}, {"date": "soon", "x-amzn-requestid": "1"}, BY_A_PROXY])
def test_server_without_a_date_has_the_local_time(headers: Mapping[str, str]) -> None:
    clock, machine, client = heard(40.0, headers)
    assert (clock.time(), clock.answered, clock.skew) == (NOW + 40, NOW + 40, 0.0)
    client.answer(DATE)
    client.answer(headers)
    assert clock.time() == NOW, "one answer without, as a proxy may give it, takes nothing back"
    assert clock.answered == machine.now


@given(
    skew=st.floats(-300, 300),
    there=st.floats(0, 20),
    back=st.floats(0, 20),
    fraction=st.floats(0, 0.999),
    later=st.floats(0, 100),
)
def test_the_bounds_hold_whatever_the_round_trip_takes(
    skew: float, there: float, back: float, fraction: float, later: float
) -> None:
    """Kinesis writes its answer at NOW and a fraction of a second."""
    machine, client = FixedClock(NOW + fraction - there + skew), Answers()
    clock = KinesisClock(machine, warns=False)
    clock.watch(client)
    request = client.send()
    machine.pass_by(there + back)
    client.answer(DATE, request)
    machine.pass_by(later)
    truth = NOW + fraction + back + later
    assert clock.time() - 1e-6 <= truth <= clock.latest + 1e-6
    assert clock.time() >= truth - 1 - back - 1e-6
    # What it holds against this machine is certain.
    assert abs(clock.skew) <= abs(skew) + 1e-6
    assert clock.skew * skew >= 0


# Shows clock off.
@pytest.mark.parametrize(("skew", "words"), [(40.5, "40 s ahead of"), (-4.0, "4 s behind"), (3.1, "3 s ahead of")])
def test_wrong_local_clock_is_reported_once(caplog: pytest.LogCaptureFixture, skew: float, words: str) -> None:
    _, _, client = heard(skew)
    client.answer(DATE)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"this machine's clock is about {words} Kinesis' clock.")


# Shows clock nearly right.
@pytest.mark.parametrize("skew", [-2.0, 0.0, 2.9])
def test_two_seconds_are_none(caplog: pytest.LogCaptureFixture, skew: float) -> None:
    heard(skew)
    assert caplog.records == []
