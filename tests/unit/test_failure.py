"""The first error of a run is kept, wakes those who wait once, and is what every later call raises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from kinesis_efo.errors import DataLossError, FetcherUnreachableError, KinesisEfoError, LeaseLostError
from kinesis_efo.failure import Failure
from tests.support.virtual_time import run


def failed(*errors: KinesisEfoError, then: Callable[[Failure], object] = lambda _: None, seconds: float = 0) -> Failure:
    """A failure that was set in an event loop, some seconds after something else was done with it."""

    async def main() -> Failure:
        failure = Failure()
        for error in errors:
            failure.set(error)
        then(failure)
        await asyncio.sleep(seconds)
        return failure

    return run(main())


def test_without_an_error_nothing_is_raised() -> None:
    failure = Failure()
    failure.raise_if_set()
    assert failure.error is None


def test_the_first_error_is_kept_and_the_later_ones_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    first = DataLossError("first")
    failure = failed(first, LeaseLostError("second"), then=Failure.stop, seconds=3600)
    with pytest.raises(KinesisEfoError) as raised:
        failure.raise_if_set()
    assert raised.value is failure.error is first
    assert [record.message for record in caplog.records] == ["first"]


def test_an_error_that_no_call_raises_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failure = failed(DataLossError("first"), seconds=59)
    assert caplog.records == []
    failure.stop()
    failure.stop()
    assert [(record.levelname, record.message) for record in caplog.records] == [("ERROR", "first")]
    failure = failed(DataLossError("by the hour"), seconds=61)
    assert [record.message for record in caplog.records] == ["first", "by the hour"]
    failure.stop()
    assert len(caplog.records) == 2


def test_an_error_that_a_call_raises_is_the_querys_to_say(caplog: pytest.LogCaptureFixture) -> None:
    def call(failure: Failure) -> None:
        with pytest.raises(DataLossError):
            failure.raise_if_set()

    failed(DataLossError("first"), then=call, seconds=3600).stop()
    assert caplog.records == []


def test_an_error_after_the_first_one_is_kept_for_those_who_debug(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure()
    failure.stop()
    with caplog.at_level(logging.DEBUG):
        failure.set(LeaseLostError("second"))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "an error after the one that ended the run: second")
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
    failure.adopt(DataLossError("gone"))
    failure.adopt(DataLossError("again"))
    assert seen == ["a: gone", "b: gone"]
    failure.on_set(lambda: seen.append("late"))
    assert seen[2:] == ["late"]


def test_a_stop_wakes_those_who_wait() -> None:
    failure, woken = Failure(), list[bool]()
    failure.on_set(lambda: woken.append(True))
    failure.stop()
    assert woken == [True]
