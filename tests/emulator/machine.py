"""Processes and threads in virtual time: real threads of which one runs at a time, and event loops whose selector waits in virtual time.

Code that blocks, sleeps and waits for locks runs as it is, with this module's `Threads` in the place of `threading`. A process can be
frozen, as by SIGSTOP: none of its threads runs, and its clock has gone on when it does again. And it can be killed.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple, NoReturn, Self, TypeVar

T = TypeVar("T")
BEGAN: Final = 1_700_000_000
"""Epoch seconds at which virtual time is 0."""
_MOST_ROUNDS: Final = 20_000
"""So many rounds of an event loop without time passing are an endless loop, which would take the machine's memory."""


class Killed(BaseException):
    """Unwinds a thread whose process was killed."""


class SimulatedProcess:
    """A process of a machine.

    Attributes:
        pid: Its id.
        name: For messages.
        parent: The process that has started it.
        host: The machine that it runs on: only on the same one is it known when it has ended.
        frozen: Whether it stands still.
        lives: Whether it has not ended.
        thawed_at: When it went on after it had been frozen.
        exited: Whether it has ended by itself.
        ends: Called when it is killed: closes what the kernel closes.
    """

    def __init__(self, pid: int, name: str, parent: SimulatedProcess | None, host: str) -> None:
        self.pid = pid
        self.name = name
        self.parent = parent
        self.host = host
        self.frozen = False
        self.lives = True
        self.thawed_at = -inf
        self.exited = False
        self.loops: list[Loop] = []
        self.ends: list[Callable[[], None]] = []

    def __str__(self) -> str:
        return self.name


class Thread:
    """A thread of a machine; has what the library uses of `threading.Thread`."""

    def __init__(
        self,
        machine: Machine,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        name: str = "",
        *,
        daemon: bool = True,
        process: SimulatedProcess | None = None,
    ) -> None:
        self.process: SimulatedProcess = process or machine.current.process
        self.wake_at = inf
        self.turn = 0
        self.again: Callable[[], float | None] | None = None
        self.doomed = self.runs_loop = False
        self.baton = _baton()
        self._machine = machine
        self._work = target, args
        self._joining: list[Thread] = []
        self._alive = False
        self._real = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._alive = True
        self.wake_at, self.turn = self._machine.now, next(self._machine.turns)
        self._machine.threads.append(self)
        self._real.start()

    def is_alive(self) -> bool:
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        self._machine.wait(lambda: not self._alive, self._joining, timeout)

    def _run(self) -> None:
        self.baton.acquire()
        target, args = self._work
        try:
            if not self.doomed:
                target(*args)
        except Killed:
            pass
        except BaseException as error:
            self._machine.failures.append(error)
            self._machine.wake([self._machine.main])
        self._alive = False
        self._machine.threads.remove(self)
        self._machine.wake(self._joining)
        self._machine.hand_over(self)


def _baton() -> threading.Lock:
    """What a thread waits for that may run when another one hands over: a lock is ten times as fast as a semaphore."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class Machine:
    """Runs one thread at a time, and lets time pass when all wait.

    Attributes:
        now: Virtual time, seconds.
        current: The thread that runs.
        main: The thread that has made the machine.
        threads: All threads.
        processes: All processes, by pid.
        failures: What ended threads, beside kills.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.turns = count()
        self.threads: list[Thread] = []
        self.processes: dict[int, SimulatedProcess] = {}
        self.failures: list[BaseException] = []
        self._pids = count(100)
        outside = SimulatedProcess(1, "init", None, "")
        self.current = self.main = Thread.__new__(Thread)
        self.main.process, self.main.doomed, self.main.runs_loop, self.main.again = outside, False, False, None
        self.main.baton, self.main.wake_at, self.main.turn = _baton(), inf, 0
        self.threads.append(self.main)

    # -- waiting

    def hand_over(self, thread: Thread) -> None:
        """Let the thread run that is due next; returns when this one is, unless it has ended."""
        while True:
            due: Thread | None = None
            for each in self.threads:  # faster than `min` with a key
                if (
                    due is None or each.wake_at < due.wake_at or (each.wake_at == due.wake_at and each.turn < due.turn)
                ) and not each.process.frozen:
                    due = each
            if due is None or due.wake_at == inf:
                raise RuntimeError("deadlock: no thread can run, and none waits for a time")
            self.now = max(self.now, due.wake_at)
            # A thread that would look and wait on is not switched to, which takes longer than all else here.
            if due.doomed or due.again is None or (until := due.again()) is None:
                break
            due.wake_at, due.turn = until, next(self.turns)
        if due is not thread:
            self.current, ended = due, thread not in self.threads
            due.baton.release()
            if not ended:
                thread.baton.acquire()

    def block(self, until: float) -> None:
        """Wait until a time, or until somebody wakes this thread."""
        thread = self.current
        if thread.doomed:
            raise Killed
        thread.wake_at, thread.turn = until, next(self.turns)
        self.hand_over(thread)
        if thread.doomed:
            raise Killed

    def wake(self, waiting: list[Thread]) -> None:
        """Let threads look again at what they wait for."""
        for thread in waiting:
            thread.wake_at = min(thread.wake_at, self.now)

    def sleep(self, seconds: float) -> None:
        until = self.now + max(0.0, seconds)
        while self.now < until:
            self.block(until)
        if not seconds:
            self.block(until)

    def wait(self, done: Callable[[], bool], waiting: list[Thread], timeout: float | None = None) -> bool:
        """Wait until something is so, for at most a number of seconds; whoever makes it so wakes those who wait."""
        until = inf if timeout is None else self.now + timeout
        self.wait_while(lambda: None if done() or self.now >= until else until, waiting)
        return done()

    def finish(self, future: Future[T], alive: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait for a call into an event loop; False if time is up or the loop is not alive any more."""
        waiting: list[Thread] = []
        future.add_done_callback(lambda _: self.wake(waiting))
        until = inf if timeout is None else self.now + timeout

        def again() -> float | None:
            if future.done() or not alive() or self.now >= until:
                return None
            return self.now + min(0.5, until - self.now)

        self.wait_while(again, waiting)
        return future.done()

    def wait_while(self, again: Callable[[], float | None], waiting: list[Thread]) -> None:
        """Wait as long as `again` returns until when to wait; those who wake the threads in `waiting` let it be called before."""
        if (until := again()) is not None:
            thread = self.current
            waiting.append(thread)
            thread.again = again
            try:
                self.block(until)
            finally:
                thread.again = None
                waiting.remove(thread)

    # -- processes

    def process(self, name: str, parent: SimulatedProcess | None, host: str) -> SimulatedProcess:
        process = SimulatedProcess(next(self._pids), name, parent, host)
        self.processes[process.pid] = process
        return process

    def run(self, process: SimulatedProcess, work: Callable[[], None]) -> Thread:
        """Start a thread of a process."""
        thread = Thread(self, work, name=process.name, process=process)
        thread.start()
        return thread

    def kill(self, process: SimulatedProcess) -> None:
        """End a process as SIGKILL does: its threads stop where they are, and the kernel closes what it had open."""
        if not process.lives:
            return
        process.lives = process.frozen = False
        for end in process.ends:
            end()
        mine = [thread for thread in self.threads if thread.process is process and not thread.runs_loop]
        for thread in mine:
            thread.doomed, thread.wake_at = True, -inf
        # What its coroutines still do in memory as they are unwound nobody sees.
        for loop in process.loops:
            loop.bury()
        if self.current not in mine:
            while any(thread.is_alive() for thread in mine):
                self.block(self.now)

    def exit(self) -> NoReturn:
        """End the process of the thread that runs."""
        process = self.current.process
        process.exited = process.lives
        self.kill(process)
        raise Killed

    def freeze(self, process: SimulatedProcess, seconds: float) -> None:
        """Let a process stand still for some time."""
        process.frozen = True
        self.sleep(seconds)
        process.frozen, process.thawed_at = False, self.now

    def close(self) -> None:
        """End everything."""
        for process in list(self.processes.values()):
            self.kill(process)
        others = [thread for thread in self.threads if thread is not self.main]
        for thread in others:
            if not thread.runs_loop:
                thread.doomed, thread.wake_at = True, -inf
        give_up_at = self.now + 3600
        while len(self.threads) > 1:
            assert self.now < give_up_at, "a loop goes on although all its tasks are cancelled"
            self.block(self.now + 1)
        for process in self.processes.values():
            for loop in process.loops:
                loop.close()


class _Call:
    """A callback of a loop; has what asyncio uses of its handles."""

    __slots__ = ("_args", "_callback", "_context", "_loop", "at")

    def __init__(self, loop: Loop, at: float, callback: Any, args: tuple[Any, ...], context: Context | None) -> None:
        self._loop, self.at, self._callback, self._args = loop, at, callback, args
        self._context = copy_context() if context is None else context

    def __lt__(self, other: _Call) -> bool:
        return self.at < other.at

    def cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def run(self) -> None:
        if self._callback is None:
            return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler({"message": f"error in {self._callback}", "exception": error})


class Loop(asyncio.SelectorEventLoop):
    """An event loop in a thread of a machine.

    It keeps its callbacks itself: asyncio's loop, which looks for I/O and for slow callbacks as well, takes twice the time for them.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.thread: Thread | None = None
        self.process = machine.current.process
        self.process.loops.append(self)
        self._calls: deque[_Call] = deque()
        self._timers: list[_Call] = []
        self._most_timers = 100
        self._closing = self._stopped = False
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.machine.now

    def run_forever(self) -> None:
        self.thread = self.machine.current
        self.thread.runs_loop = True
        try:
            super().run_forever()
        finally:
            self._stopped = False
        if not self.process.lives and not self._closing:
            self._closing = True
            self.run_until_complete(self.shutdown_asyncgens())
            self.close()

    def stop(self) -> None:
        self._stopped = True
        super().stop()

    def run_calls(self) -> None:
        """Run what is called until the loop is stopped."""
        machine, calls, rounds, at = self.machine, self._calls, 0, -inf
        while True:
            if len(self._timers) > self._most_timers:
                self._timers = [each for each in self._timers if not each.cancelled()]
                heapify(self._timers)
                self._most_timers = 100 + 2 * len(self._timers)
            timers = self._timers
            while timers and timers[0].cancelled():
                heappop(timers)
            if not calls and not self._stopped and (not timers or timers[0].at > machine.now):
                machine.block(timers[0].at if timers else inf)
            while timers and timers[0].at <= machine.now:
                calls.append(heappop(timers))
            rounds, at = rounds + 1 if at == machine.now else 0, machine.now
            if rounds > _MOST_ROUNDS:
                raise RuntimeError("an event loop goes round and round, and no time passes")
            for _ in range(len(calls)):
                calls.popleft().run()  # no name for it: it would keep tasks that have ended
            if self._stopped:
                return

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        call = _Call(self, self.machine.now, callback, args, context)
        self._calls.append(call)
        if (thread := self.thread) is not None and thread.wake_at > self.machine.now:
            thread.wake_at = self.machine.now
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        call = _Call(self, when, callback, args, context)
        heappush(self._timers, call)
        return call

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.machine.now + delay, callback, *args, context=context)

    def bury(self) -> None:
        """Cancel all tasks of a process that was killed, and end."""
        if not self.is_closed() and self.thread is not None and self.thread.is_alive():
            self._burying = self.create_task(self._bury())

    async def _bury(self) -> None:
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
        self.stop()


class _Selector(selectors.DefaultSelector):
    """Runs the callbacks of a loop where asyncio's loop waits for files."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.run_calls()
        return []


class MachineClock:
    """A machine's clock; see `Clock`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def monotonic(self) -> float:
        return self._machine.now

    def time(self) -> float:
        return BEGAN + self._machine.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# -- in the place of modules of the standard library


class Time:
    """In the place of `time`."""

    def __init__(self, machine: Machine) -> None:
        self.monotonic = lambda: machine.now
        self.sleep = machine.sleep


class System:
    """In the place of `os`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def getpid(self) -> int:
        return self._machine.current.process.pid


class Threads:
    """In the place of `threading`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def Thread(self, target: Callable[..., Any], args: tuple[Any, ...] = (), **about: Any) -> Thread:
        return Thread(self._machine, target, args, **about)

    def Event(self) -> Event:
        return Event(self._machine)

    def Lock(self) -> Lock:
        return Lock(self._machine)

    RLock = Lock


class Loops:
    """In the place of `asyncio`, for code that calls into event loops of other threads."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def new_event_loop(self) -> Loop:
        return Loop(self._machine)

    def run_coroutine_threadsafe(self, work: Coroutine[Any, Any, T], loop: Loop) -> Submitted:
        return Submitted(self._machine, asyncio.run_coroutine_threadsafe(work, loop))


class Submitted:
    """A call into an event loop; has what the library uses of `concurrent.futures.Future`."""

    def __init__(self, machine: Machine, future: Future[Any]) -> None:
        self._machine = machine
        self.future = future

    def result(self, timeout: float | None = None) -> Any:
        if not self._machine.finish(self.future, lambda: True, timeout):
            raise TimeoutError
        return self.future.result()


class Event:
    """In the place of `threading.Event`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: list[Thread] = []
        self._set = False

    def set(self) -> None:
        self._set = True
        self._machine.wake(self._waiting)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._machine.wait(self.is_set, self._waiting, timeout)


class Lock:
    """In the place of `threading.Lock` and `RLock`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: list[Thread] = []
        self._owner: Thread | None = None
        self._times = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._machine.current
        seconds = None if blocking and timeout < 0 else max(0.0, timeout)
        if not self._machine.wait(lambda: self._owner in (None, me), self._waiting, seconds):
            return False
        self._owner = me
        self._times += 1
        return True

    def release(self) -> None:
        self._times -= 1
        if not self._times:
            self._owner = None
            self._machine.wake(self._waiting)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class NamedProcess(NamedTuple):
    """In the place of `processes.Process`."""

    pid: int
    started: str


def process_type(machine: Machine) -> type[NamedProcess]:
    """The type of processes of a machine."""

    class Named(NamedProcess):
        __slots__ = ()

        @classmethod
        def of(cls, pid: int) -> Self:
            return cls(pid, "1")

        def lives(self) -> bool:
            return machine.processes[self.pid].lives

    return Named
