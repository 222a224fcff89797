"""Tests that are coroutines, run by what a `conftest.py` gives."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


def run_by(run: Callable[[Coroutine[Any, Any, None]], None]) -> Callable[[pytest.Function], bool | None]:
    """A hook that runs each test that is a coroutine with `run`."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
        test = pyfuncitem.obj
        if not inspect.iscoroutinefunction(test):
            return None
        run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
        return True

    return pytest_pyfunc_call


async def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)
