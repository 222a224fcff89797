"""The first error of a run is kept, wakes those who wait once, and is what every later call raises."""

import asyncio
from collections.abc import Callable

import pytest

from kinesis_efo.errors import DataLossError, FetcherUnreachableError, KinesisEfoError, LeaseLostError
from kinesis_efo.failure import Failure
from tests.support.messages import raises
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


def test_later_errors_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    first = DataLossError("first")
    failure = failed(first, LeaseLostError("second"), then=Failure.stop, seconds=3600)
    with pytest.raises(KinesisEfoError) as raised:
        failure.raise_if_set()
    assert raised.value is failure.error is first
    assert [record.message for record in caplog.records] == ["first"]


def test_an_unraised_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    failure = failed(DataLossError("first"), seconds=59)
    assert caplog.records == []
    failure.stop()
    failure.stop()
    assert [(record.levelname, record.message) for record in caplog.records] == [("ERROR", "first")]
    failure = failed(DataLossError("by the hour"), seconds=61)
    assert [record.message for record in caplog.records] == ["first", "by the hour"]
    failure.stop()
    assert len(caplog.records) == 2


def test_a_raised_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def call(failure: Failure) -> None:
        with pytest.raises(DataLossError):
            failure.raise_if_set()

    failed(DataLossError("first"), then=call, seconds=3600).stop()
    assert caplog.records == []


def test_a_stop_fails_calls_without_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    failure = Failure()
    failure.stop()
    failure.set(DataLossError("late"))
    with raises(FetcherUnreachableError, "the fetcher has stopped: its query has ended"):
        failure.raise_if_set()
    assert caplog.records == []


def test_waiters_are_woken_once_with_the_error() -> None:
    failure, seen = Failure(), list[str]()
    for name in "ab":
        failure.on_set(lambda name=name: seen.append(f"{name}: {failure.error}"))  # type: ignore[misc]
    assert seen == []
    failure.adopt(DataLossError("gone"))
    failure.adopt(DataLossError("again"))
    assert seen == ["a: gone", "b: gone"]
    failure.on_set(lambda: seen.append("late"))
    assert seen[2:] == ["late"]


def test_a_stop_wakes_waiters() -> None:
    failure, woken = Failure(), list[bool]()
    failure.on_set(lambda: woken.append(True))
    failure.stop()
    assert woken == [True]
