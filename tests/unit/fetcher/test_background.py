"""Tasks beside others: where one fails, nothing of the others is left behind."""

from __future__ import annotations

import asyncio

import pytest

from kinesis_efo.fetcher.background import all_of


def test_all_results_come_in_the_order_of_the_work() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(all_of(after(3), after(1), after(2))) == [3, 1, 2]


def test_where_one_fails_the_others_have_ended_before_its_error_is_raised() -> None:
    ended: list[str] = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as a client that gives its connection back
            ended.append("lasting")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("not there")

    async def run() -> None:
        with pytest.raises(ValueError, match="not there"):
            await all_of(lasting(), failing())
        assert ended == ["lasting"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_who_is_cancelled_takes_the_work_along() -> None:
    async def run() -> None:
        waiting = asyncio.create_task(all_of(asyncio.Event().wait(), asyncio.Event().wait()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
