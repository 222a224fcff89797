"""A reader at work: what it has seen, and what its processes take."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

_LINE: Final = re.compile(r"(.{17}) (\d{16})\n")
_PAUSE_SECONDS: Final = 0.2
JVM: Final = "JVM"
PYTHON: Final = "Python"


class NotSeenError(RuntimeError):
    """A reader did not see in time what it should see."""


class Running:
    """A reader's processes.

    Args:
        process: The one that was started; the others are its children.

    Attributes:
        memory: Most bytes that they had at once, by kind, by what was seen: what they share with others counts in part (PSS).
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._of = psutil.Process(process.pid)
        self.memory = {JVM: 0, PYTHON: 0}
        self._seen: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, done: Callable[[list[tuple[str, int]]], bool], seconds: float) -> list[tuple[str, int]]:
        """Wait until it has seen enough.

        Args:
            done: Whether that is enough.
            seconds: How long at most.

        Returns:
            Heads of records, and when it had them in microseconds since 1970, since the call before.

        Raises:
            NotSeenError: It has ended, or the time is over.
        """
        deadline, seen = time.monotonic() + seconds, self._taken()
        while not done(seen):
            if self.process.poll() is not None:
                raise NotSeenError(f"it ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise NotSeenError(f"in {seconds:.0f} s it saw {len(seen)} of the records that it should see")
            time.sleep(_PAUSE_SECONDS)
            self._look()
            seen += self._taken()
        return seen

    def _look(self) -> None:
        """See how much memory it has now."""
        now = dict.fromkeys(self.memory, 0)
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                now[_kind(process)] += _pss(process)
        self.memory = max(self.memory, now, key=lambda each: sum(each.values()))

    def cpu(self) -> dict[str, float]:
        """CPU seconds that its processes have used so far, by kind."""
        used = {JVM: 0.0, PYTHON: 0.0}
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[_kind(process)] += times.user + times.system
        return used

    def kill(self) -> None:
        """End it."""
        processes = self._processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)
        self.process.wait()

    def _taken(self) -> list[tuple[str, int]]:
        return [self._seen.get() for _ in range(self._seen.qsize())]

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._of, *self._of.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := _LINE.fullmatch(line):
                self._seen.put((found[1], int(found[2])))


def _kind(process: psutil.Process) -> str:
    return JVM if process.name() == "java" else PYTHON


def _pss(process: psutil.Process) -> int:
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], said: Path) -> Iterator[Running]:
    """Start a reader, and end it.

    Args:
        command: What starts it.
        environment: All of its variables.
        said: A file for what it says of errors.
    """
    with said.open("w") as errors:
        process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, stderr=errors, text=True)
    running = Running(process)
    try:
        yield running
    finally:
        running.kill()
