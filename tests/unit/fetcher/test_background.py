"""Tasks beside others: where one fails, nothing of the others is left behind."""

import asyncio

import pytest

from kinesis_efo.fetcher.background import all_of


async def test_error_is_raised_after_the_other_tasks_have_ended() -> None:
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

    with pytest.raises(ValueError, match="not there"):
        await all_of(lasting(), failing())
    assert ended == ["lasting"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
