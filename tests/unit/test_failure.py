"""The first error of a run is kept, wakes those who wait once, and is what every later call raises."""

from __future__ import annotations

import logging

import pytest

from kinesis_efo.errors import DataLossError, FetcherUnreachableError, KinesisEfoError, LeaseLostError
from kinesis_efo.failure import Failure


def test_without_an_error_nothing_is_raised() -> None:
    failure = Failure()
    failure.raise_if_set()
    assert failure.error is None


def test_the_first_error_is_kept_and_the_later_ones_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    failure, first = Failure(), DataLossError("first")
    with caplog.at_level(logging.ERROR):
        failure.set(first)
        failure.set(LeaseLostError("second"))
        failure.stop()
    with pytest.raises(KinesisEfoError) as raised:
        failure.raise_if_set()
    assert raised.value is failure.error is first
    assert [record.message for record in caplog.records] == ["first"]


def test_an_error_after_the_first_one_is_kept_for_those_who_debug(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure()
    failure.stop()
    with caplog.at_level(logging.DEBUG):
        failure.set(LeaseLostError("second"))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "after what ended the run already: second")
    ]


def test_a_stop_makes_calls_fail_and_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure()
    failure.stop()
    failure.set(DataLossError("late"))
    with pytest.raises(FetcherUnreachableError, match=r"^the fetcher has stopped: its query has ended$"):
        failure.raise_if_set()
    assert caplog.records == []


def test_those_who_wait_are_woken_once_and_see_the_error() -> None:
    failure, seen = Failure(), list[str]()
    for name in "ab":
        failure.on_set(lambda name=name: seen.append(f"{name}: {failure.error}"))  # type: ignore[misc]
    assert seen == []
    failure.set(DataLossError("gone"))
    failure.set(DataLossError("again"))
    assert seen == ["a: gone", "b: gone"]
    failure.on_set(lambda: seen.append("late"))
    assert seen[2:] == ["late"]


def test_a_stop_wakes_those_who_wait() -> None:
    failure, woken = Failure(), list[bool]()
    failure.on_set(lambda: woken.append(True))
    failure.stop()
    assert woken == [True]
