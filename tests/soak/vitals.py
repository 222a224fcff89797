"""How the process that reads is: its memory, open files and threads over time, and whether they only grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

WARM_UP_SECONDS = 45.0
"""Libraries are loaded, and buffers have been full once."""

ENOUGH_SECONDS = 60.0
"""What lived shorter after that says nothing."""

MORE_MEMORY = 48 << 20
MORE_FILES = 12
FILES_AT_WORK = 64
"""Up to a connection per open shard, the control calls' and Python's own: a pool of connections keeps as many as were once
needed at a time, which may be minutes after the start."""
MORE_THREADS = 8
RUNNER = "python_streaming_source_runner"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the process.

    Attributes:
        seconds: Since the soak began.
        life: Which run of the driver.
        memory: Its own resident memory, bytes.
        files: Open file descriptors.
        threads: Threads.
        backlog: Records that are put and not yet seen in a committed micro-batch.
    """

    seconds: float
    life: int
    memory: int
    files: int
    threads: int
    backlog: int


def growth(samples: Sequence[Sample]) -> list[str]:
    """What grew within one run of the driver, as sentences.

    Compared are the lowest values of the second and of the last quarter: buffers fill with every burst and empty again, but what
    leaks stays.

    Args:
        samples: Of any number of runs, in the order of time.
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
    """Finds the process that Spark keeps for the reader, and looks at it.

    Args:
        driver: Process id of the driver.
    """

    def __init__(self, driver: int) -> None:
        self._driver = driver
        self._reader: psutil.Process | None = None

    def look(self) -> tuple[int, int, int] | None:
        """Memory in bytes, open files, threads; None while there is no such process."""
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
    """Bytes of resident memory without the files that are mapped, which the system shares and drops as it likes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
