"""Measures the process that reads: memory, open files and threads over time, and whether they grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

WARM_UP_SECONDS = 45.0
"""Time of a run that is ignored: libraries are loaded, and buffers fill for the first time."""

ENOUGH_SECONDS = 60.0
"""Runs that are shorter after the warm-up are ignored."""

MORE_MEMORY = 48 << 20
MORE_FILES = 12
FILES_AT_WORK = 64
"""Number of open files that is no growth: a connection per open shard, the control calls' and Python's own. A connection pool
keeps as many as it once needed at a time, which may be minutes after the start."""
MORE_THREADS = 8
RUNNER = "python_streaming_source_runner"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of the process.

    Attributes:
        seconds: Time since the start of the soak.
        life: Number of the driver's run.
        memory: Its own resident memory, bytes.
        files: Number of open file descriptors.
        threads: Number of threads.
        backlog: Number of records that are put and not yet in a committed micro-batch.
    """

    seconds: float
    life: int
    memory: int
    files: int
    threads: int
    backlog: int


def growth(samples: Sequence[Sample]) -> list[str]:
    """Find what grew within a run of the driver; returns a sentence for each.

    Compares the lowest values of the second and of the last quarter: buffers fill with every burst and empty again, but a leak
    stays.

    Args:
        samples: Samples of any number of runs, in order of time.
    """
    found = []
    for life in sorted({sample.life for sample in samples}):
        of_life = [sample for sample in samples if sample.life == life]
        seen = [sample for sample in of_life if sample.seconds >= of_life[0].seconds + WARM_UP_SECONDS]
        if not seen or seen[-1].seconds - seen[0].seconds < ENOUGH_SECONDS:
            continue
        quarter = len(seen) // 4
        early, late = seen[quarter : 2 * quarter], seen[-quarter:]
        for name, more, usual, unit in (
            ("memory", MORE_MEMORY, 0, 1 << 20),
            ("files", MORE_FILES, FILES_AT_WORK, 1),
            ("threads", MORE_THREADS, 0, 1),
        ):
            before, after = (min(getattr(sample, name) for sample in part) for part in (early, late))
            if after > max(before + more, usual):
                found.append(
                    f"run {life}: {name} grew from {before // unit} to {after // unit} {'MiB' if unit > 1 else ''}".strip()
                )
    return found


class Probe:
    """Finds the process that Spark keeps for the reader, and measures it.

    Args:
        driver: Process id of the driver.
    """

    def __init__(self, driver: int) -> None:
        self._driver = driver
        self._reader: psutil.Process | None = None

    def look(self) -> tuple[int, int, int] | None:
        """Memory in bytes, number of open files and of threads; None if there is no such process now."""
        try:
            if self._reader is None:
                self._reader = self._find()
            if self._reader is None:
                return None
            return own_memory(self._reader.pid), self._reader.num_fds(), self._reader.num_threads()
        except (psutil.Error, OSError):
            self._reader = None
            return None

    def _find(self) -> psutil.Process | None:
        for child in psutil.Process(self._driver).children(recursive=True):
            try:
                if any(RUNNER in word for word in child.cmdline()):
                    return child
            except psutil.Error:
                continue
        return None


def own_memory(pid: int) -> int:
    """Resident memory in bytes without mapped files, which the system shares and drops as it likes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
