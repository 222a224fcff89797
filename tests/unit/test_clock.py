"""`within`: a result in time, or None, and nothing that is left behind."""

import asyncio

import pytest

from kinesis_efo.clock import within
from tests.support.virtual_time import LoopClock

CLOCK = LoopClock()


async def later(seconds: float, result: str = "done") -> str:
    await CLOCK.sleep(seconds)
    return result


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


async def test_a_result_in_time() -> None:
    assert await within(CLOCK, 5, later(4)) == "done"
    assert CLOCK.monotonic() == 1004
    await asyncio.sleep(0)
    assert not others()


async def test_work_that_takes_too_long() -> None:
    assert await within(CLOCK, 5, later(6)) is None
    assert CLOCK.monotonic() == 1005
    assert not others()


async def test_an_error_of_the_work_is_raised() -> None:
    async def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await within(CLOCK, 5, broken())


async def test_a_late_result_is_discarded() -> None:
    async def stubborn() -> str:
        try:
            await CLOCK.sleep(10)
        except asyncio.CancelledError:
            return "late"
        return "never"

    discarded: list[str] = []
    assert await within(CLOCK, 5, stubborn(), discard=discarded.append) is None
    assert discarded == ["late"]
    task = asyncio.ensure_future(within(CLOCK, 5, later(1), discard=discarded.append))
    await CLOCK.sleep(1)  # the result is there, but its taker has not run yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert discarded == ["late", "done"]
    assert not others()


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_cancelled_caller_loses_no_result(turns: int) -> None:
    made: list[str] = []
    discarded: list[str] = []

    async def open_something() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        made.append("open")
        return "open"

    caller = asyncio.ensure_future(within(CLOCK, 5, open_something(), discard=discarded.append))
    for _ in range(turns):
        await asyncio.sleep(0)
    caller.cancel()
    (result,) = await asyncio.gather(caller, return_exceptions=True)
    await asyncio.sleep(0)
    assert [result] == made if isinstance(result, str) else discarded == made
    assert not others()


async def test_work_without_a_result_discards_nothing() -> None:
    async def failing() -> str:
        try:
            await CLOCK.sleep(10)
        except asyncio.CancelledError:
            raise KeyError("late") from None
        return "never"

    said: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    discarded: list[str] = []
    assert await within(CLOCK, 5, failing(), discard=discarded.append) is None
    assert await within(CLOCK, 5, later(6), discard=discarded.append) is None
    await asyncio.sleep(0)
    assert (discarded, said) == ([], [])
