"""The processes of a Spark session on this machine: what each kind of them takes of CPU and memory."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

JVM, PLANNER, WORKERS, PYTHONS, PROGRAM = "JVM", "planner and run", "workers", "other Pythons", "driver's program"
THREADS: Final = {
    "stream executio": "the stream's thread",
    "Executor task": "tasks",
    "dag-scheduler": "scheduler",
    "Thread-": "calls of the driver's program",
    "C1 CompilerThre": "compilers",
    "C2 CompilerThre": "compilers",
    "GC Thread": "garbage collector",
    "G1 ": "garbage collector",
}
"""What threads of the JVM are for, by the beginnings of their names. Linux keeps fifteen characters."""

Usage = dict[tuple[int, int], tuple[str, float]]
"""Kind and CPU seconds of each process, and of the JVM's threads: by process and thread, 0 for the process."""


class SparkProcesses:
    """The processes of a session.

    Args:
        jvm: The process id of its driver's JVM, which runs the tasks, too.
    """

    def __init__(self, jvm: int) -> None:
        self._jvm = psutil.Process(jvm)

    def cpu(self) -> Usage:
        """CPU seconds so far: of each process, and of the JVM's threads by purpose, their names indented."""
        used: Usage = {}
        for kind, process in self._processes():
            # Spark ends processes of tasks whenever it likes.
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[process.pid, 0] = kind, times.user + times.system
        for thread in self._jvm.threads():
            purpose = _purpose(self._jvm.pid, thread.id)
            used[self._jvm.pid, thread.id] = f"  {purpose}", thread.user_time + thread.system_time
        return used

    def memory(self) -> dict[str, float]:
        """Bytes by kind of process: its share of what it has in common with others is proportional (PSS)."""
        sizes: defaultdict[str, float] = defaultdict(float)
        for kind, process in self._processes():
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    sizes[kind] += int(line.split()[1]) * 1024
        return dict(sizes)

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        yield PROGRAM, psutil.Process()
        yield JVM, self._jvm
        yield from _below(self._jvm)


def kinds_below(process: psutil.Process) -> set[str]:
    """The kinds of the processes that a process has started, and those have."""
    return {kind for kind, _ in _below(process)}


def _below(ancestor: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    for process in ancestor.children(recursive=True):
        try:
            yield _kind(process), process
        except psutil.NoSuchProcess:
            continue


def taken(before: Usage, after: Usage) -> dict[str, float]:
    """CPU seconds between two looks, by kind. What a process took that has ended is not in it."""
    sums: defaultdict[str, float] = defaultdict(float)
    for which, (kind, used) in after.items():
        sums[kind] += used - before.get(which, (kind, 0.0))[1]
    return dict(sums)


def _kind(process: psutil.Process) -> str:
    arguments = process.cmdline()
    # Earlier versions have one process for both.
    if any(name in argument for argument in arguments for name in ("python_streaming_source_runner", "run_process")):
        return PLANNER
    # Workers of tasks are forked from the daemon, and look as it does.
    is_task = arguments[-1:] == ["pyspark.worker"]
    parent = process.parent()
    return WORKERS if is_task and parent is not None and parent.cmdline() == arguments else PYTHONS


def _purpose(process: int, thread: int) -> str:
    try:
        name = Path(f"/proc/{process}/task/{thread}/comm").read_text().strip()
    except OSError:
        name = ""
    return next((purpose for beginning, purpose in THREADS.items() if name.startswith(beginning)), "other threads")
