"""Measures the processes that read: memory, open files and threads over time, and whether they grow."""

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
READERS = ("python_streaming_source_runner", "run_process")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of the planner's process, and of the fetchers where they are others.

    Attributes:
        seconds: Time since the start of the soak.
        life: Number of the driver's run.
        memory: Their own resident memory, bytes.
        files: Number of open file descriptors of the one that has most.
        threads: Number of threads of the one that has most.
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
    """Finds the process that Spark keeps for the reader, and those of its fetchers, and measures them.

    Args:
        driver: Process id of the driver.
        fetchers: Number of fetchers in processes of their own.
    """

    def __init__(self, driver: int, fetchers: int = 0) -> None:
        self._driver = driver
        self._fetchers = fetchers
        self._found: list[psutil.Process] = []

    def look(self) -> tuple[int, int, int] | None:
        """Memory in bytes, number of open files and of threads; None if the processes are not all there now."""
        try:
            self._found = self._found or self._find()
            if len(self._found) != 1 + self._fetchers:
                self._found = []
                return None
            seen = [(own_memory(each.pid), each.num_fds(), each.num_threads()) for each in self._found]
        except (psutil.Error, OSError):
            self._found = []
            return None
        memory, files, threads = zip(*seen, strict=True)
        return sum(memory), max(files), max(threads)

    def _find(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self._driver).children(recursive=True) if _reads(child)]


def _reads(process: psutil.Process) -> bool:
    """Whether a process is a planner, the run, or a fetcher: a worker forked by Spark's Python daemon that listens."""
    try:
        if any(reader in word for word in process.cmdline() for reader in READERS):
            return True
        above = process.parent()
        forked = above is not None and "pyspark.daemon" in above.cmdline()
        return forked and any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))
    except psutil.Error:
        return False


def own_memory(pid: int) -> int:
    """Resident memory in bytes without mapped files, which the system shares and drops as it likes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
