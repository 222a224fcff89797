"""Threads in virtual time: one runs at a time, and a seed decides which, at each blocking call and at random lines between them.

It replaces the names in `threading` with versions that hand over to the next thread instead of blocking. When all threads wait, time jumps
to the first wake-up; if there is none, the run is a deadlock.
"""

import _thread
import asyncio
import atexit
import dis
import os
import selectors
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any

_real = SimpleNamespace(**vars(threading))
BEGIN = 1_000.0
LONGEST = 7_200.0


class HangsError(Exception):
    """A run in which nobody can go on, or which takes hours."""


class Strand:
    def __init__(self) -> None:
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ready: Callable[[], bool] = lambda: True
        self.until: float | None = None
        self.done = False


class World:
    """The threads of a run, and its time. It is also the clock of what runs in it."""

    def __init__(self, random: Random, traced: tuple[str, ...], preempt: float) -> None:
        self.random = random
        self.now = BEGIN
        self.main = self.current = Strand()
        self.strands = [self.main]
        self.hangs = ""
        self.in_child = False
        self.interrupted: Strand | None = None
        """Gets KeyboardInterrupt somewhere, as the main thread of a program does."""
        self.interrupted_in: str | None = None
        """The only function in which it gets that, or `join`, where Ctrl-C mostly comes; None: everywhere but there."""
        self._traced = traced
        self._preempt = preempt

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000 + self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        self.wait(lambda: False, self.now + seconds)

    def wait(self, ready: Callable[[], bool], until: float | None = None) -> None:
        """Let others run until `ready`, or until a time."""
        me = self.current
        me.ready, me.until = ready, until
        self._hand_over(me)

    def start(self, work: Callable[[], object]) -> Strand:
        strand = Strand()
        self.strands.append(strand)

        def run() -> None:
            strand.baton.acquire()
            sys.settrace(self.trace)
            try:
                work()
            finally:
                sys.settrace(None)
                strand.done = True
                self._hand_over(None)

        _thread.start_new_thread(run, ())
        return strand

    def trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._traced):
            return None
        self._interrupt(frame.f_code.co_name)
        return self._line

    def _interrupt(self, function: str) -> None:
        often = 0.02 if self.interrupted_in is None else 0.25 * (function == self.interrupted_in)
        if self.current is self.interrupted and self.random.random() < often:
            self.interrupted = None
            raise KeyboardInterrupt

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        # Python checks for signals at calls. An error at the line that ends a `with` would keep the lock, as no signal can.
        if event == "line" and not _has_with(frame.f_code):
            self._interrupt(frame.f_code.co_name)
        if event == "line" and self.random.random() < self._preempt:
            # Some stops last, so that the other threads make whole calls meanwhile.
            self.pause(self.random.choice([0.0, 0.0, 0.0, 0.05, 2.0]))
        return self._line

    def _hand_over(self, me: Strand | None) -> None:
        if self.in_child:
            os._exit(2)
        while True:
            able = [one for one in self.strands if not one.done and (one.ready() or _due(one, self.now))]
            if able:
                break
            times = [one.until for one in self.strands if not one.done and one.until is not None]
            if not times or min(times) > BEGIN + LONGEST:
                self.hangs = "nobody can go on" if not times else "it takes hours"
                able = [self.main]
                break
            self.now = min(times)
        chosen = able[0] if len(able) == 1 else self.random.choice(able)
        self.current = chosen
        if chosen is not me:
            chosen.baton.release()
            if me is not None:
                me.baton.acquire()
        if self.hangs and me is self.main:
            raise HangsError(self.hangs)


@cache
def _has_with(code: CodeType) -> bool:
    return any(
        step.opname in ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL") for step in dis.get_instructions(code)
    )


def _due(strand: Strand, now: float) -> bool:
    return strand.until is not None and strand.until <= now


class Loop(asyncio.SelectorEventLoop):
    """An event loop that waits in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.woken = False
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.world.now

    def _write_to_self(self) -> None:
        self.woken = True

    def set_default_executor(self, executor: Any) -> None: ...

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        done = self.create_future()
        done.set_result(func(*args))
        return done

    async def shutdown_default_executor(self, timeout: float | None = None) -> None: ...  # noqa: ASYNC109


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        world = self._loop.world
        if timeout is None or timeout > 0:
            world.wait(lambda: self._loop.woken, None if timeout is None else world.now + timeout)
        else:
            world.wait(lambda: True)
        self._loop.woken = False
        return []


@contextmanager
def threads_of(world: World) -> Iterator[None]:
    """Let `threading` and `asyncio.new_event_loop` make what belongs to a world."""

    class Lock:
        def __init__(self) -> None:
            self.owner: Strand | None = None
            self.depth = 0

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if self.owner is not None and not (self.reentrant and self.owner is world.current):
                world.wait(lambda: self.owner is None)
            self.owner = world.current
            self.depth += 1
            return True

        reentrant = False

        def release(self) -> None:
            self.depth -= 1
            if not self.depth:
                self.owner = None

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class RLock(Lock):
        reentrant = True

    class Condition:
        def __init__(self, lock: Any = None) -> None:
            self._lock = lock or RLock()
            self._waiting: list[list[bool]] = []
            self.acquire, self.release = self._lock.acquire, self._lock.release

        def __enter__(self) -> bool:
            return bool(self._lock.acquire())

        def __exit__(self, *_: object) -> None:
            self._lock.release()

        def wait(self, timeout: float | None = None) -> bool:
            told = [False]
            self._waiting.append(told)
            self._lock.release()
            world.wait(lambda: told[0], None if timeout is None else world.now + timeout)
            self._lock.acquire()
            return told[0]

        def notify(self, n: int = 1) -> None:
            for told in self._waiting[:n]:
                told[0] = True
            del self._waiting[:n]

        def notify_all(self) -> None:
            self.notify(len(self._waiting))

    class Event:
        def __init__(self) -> None:
            self._set = False

        def is_set(self) -> bool:
            return self._set

        def set(self) -> None:
            self._set = True

        def clear(self) -> None:
            self._set = False

        def wait(self, timeout: float | None = None) -> bool:
            if not self._set:
                world.wait(lambda: self._set, None if timeout is None else world.now + timeout)
            return self._set

    class Thread:
        def __init__(
            self, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True
        ):
            self.name = name
            self._work = lambda: target(*args)

        def start(self) -> None:
            self._strand = world.start(self._work)

        def join(self, timeout: float | None = None) -> None:
            if world.interrupted_in == "join" and world.current is world.interrupted:
                world.interrupted = None
                raise KeyboardInterrupt
            if not self._strand.done:
                world.wait(lambda: self._strand.done)

        def is_alive(self) -> bool:
            return not self._strand.done and not world.in_child

    ours: dict[str, Any] = {"Lock": Lock, "RLock": RLock, "Condition": Condition, "Event": Event, "Thread": Thread}
    loops = {"new_event_loop": lambda: Loop(world)}
    # A world does not last until the process ends.
    with _names(threading, ours), _names(asyncio, loops), _names(atexit, {"register": lambda _: None}):
        yield


@contextmanager
def _names(module: ModuleType, ours: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in ours}
    vars(module).update(ours)
    try:
        yield
    finally:
        vars(module).update(before)


def fork() -> int:
    """Fork from a strand, with the names of `threading` as Python needs them for that."""
    real = {name: vars(_real)[name] for name in ("Lock", "RLock", "Condition", "Event", "Thread")}
    with _names(threading, real), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
