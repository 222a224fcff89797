"""Clocks and time limits for calls. Clocks are passed in as objects, so that tests can control time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from math import inf
from threading import Thread
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_call_deadline: ContextVar[float] = ContextVar("call_deadline", default=inf)


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Return a time in seconds that never decreases. Only differences between two such times are meaningful."""
        ...

    def time(self) -> float:
        """Return seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(
    clock: Clock, seconds: float, work: Awaitable[T], *, discard: Callable[[T], None] | None = None
) -> T | None:
    """Await `work` for at most `seconds`. Return its result, or cancel it and return None. `discard` receives a result that arrives
    just as the time runs out or the caller is cancelled."""
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(max(0.0, seconds)))
    taken = False
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        # Do not await after this line: if the caller were cancelled meanwhile, the result would be lost.
        taken = task.done()
    finally:
        alarm.cancel()
        if not taken:
            if discard is not None:
                task.add_done_callback(partial(_discard_result, discard))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result() if taken else None


def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a separate daemon thread. Unlike with `asyncio.to_thread`, the program can exit before the call has ended."""
    done: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(call, *args, **kwargs)
        except BaseException as error:
            _set(done.set_exception, error)
        else:
            _set(done.set_result, result)

    Thread(target=run, name="kinesis-efo call", daemon=True).start()
    return done


def _set(set_outcome: Callable[[Any], None], outcome: Any) -> None:
    with suppress(InvalidStateError, RuntimeError):  # the future was cancelled, or its loop has ended
        set_outcome(outcome)


def _discard_result(discard: Callable[[T], None], task: asyncio.Future[T]) -> None:
    if not task.cancelled() and task.exception() is None:
        discard(task.result())


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit the AWS calls in this context to `seconds` in total, in addition to their own limits and to any outer `deadline`."""
    token = _call_deadline.set(min(_call_deadline.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _call_deadline.reset(token)


def seconds_left() -> float:
    """Return the seconds until the `deadline` of the current context, at least 1; infinite without a deadline."""
    return max(1.0, _call_deadline.get() - time.monotonic())
