"""An event loop with virtual time: when all tasks sleep, time jumps to the first wake-up."""

from __future__ import annotations

import asyncio
import inspect
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("deadlock: no task can run, and none waits for a time")
            self.loop.now += max(0.0, timeout)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with virtual time, for code that does no I/O."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        done.set_result(func(*args))
        return done


class LoopClock:
    """A clock that tells the running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def time(self) -> float:
        return 1_700_000_000 + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in virtual time, with the `end` of its fixtures; no task may remain. For a `conftest.py`."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def main() -> None:
        try:
            await test(**arguments)
        finally:
            for each in arguments.values():
                if hasattr(each, "end"):
                    await each.end()
        await asyncio.sleep(0)  # an alarm that was cancelled ends at the loop's next turn
        assert len(asyncio.all_tasks()) == 1, "a task goes on after the end"

    run(main())
    return True
