"""The user's program: written once, run as a process of its own with Spark, and ended with everything that it started."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import psutil

from kinesis_efo.spark.progress import Progress

_MARK: Final = "KINESIS_EFO_QUICKSTART"
"""Variable by which the processes of a program are found, wherever they went."""
_END_WITHIN: Final = 10.0


def template() -> str:
    """The program as it is before anybody changes it."""
    return files("kinesis_efo.cli.quickstart").joinpath("first.py.txt").read_text()


def write(path: Path) -> bool:
    """Write the program, unless there is one.

    Returns:
        Whether what is there is somebody's own.
    """
    if not path.exists():
        path.write_text(template())
    return path.read_text() != template()


class Program:
    """The program while it runs. A context manager; leaving it ends every process that it started.

    Args:
        path: The program.
        scratch: Directory for its output and for Spark's files; the caller removes it.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path, self._scratch = path, scratch
        self._mark = uuid.uuid4().hex
        self._environment = _environment(scratch) | {_MARK: self._mark}
        self._progress, self._read = scratch / "progress.jsonl", 0
        self._output, self._errors = scratch / "stdout", scratch / "stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._progress.touch()
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kinesis_efo.spark.observed", str(self._path), str(self._progress)],
                env=self._environment,
                # It ends when this does, so also if this process is killed.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                # Ctrl-C on the terminal is for this process, which ends the other.
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _END_WITHIN
        # One that is just being started may be missed once.
        while (family := list(self._family())) and time.monotonic() < deadline:
            kill(family)
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def news(self) -> list[Progress]:
        """The micro-batches that were completed since the last call."""
        with self._progress.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read += sum(map(len, whole))
        return [msgspec.json.decode(line, type=Progress) for line in whole]

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        return _end_of(self._output)

    @property
    def errors(self) -> str:
        """The end of what it and Spark wrote to standard error."""
        return _end_of(self._errors)

    def _family(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if ours:
                yield process


def kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes and wait a second for their end. Those that have ended by themselves meanwhile are no matter."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=1)


def _environment(scratch: Path) -> dict[str, str]:
    variables = dict(os.environ)
    # The program runs on the PySpark of this environment.
    variables.pop("SPARK_HOME", None)
    submit = [
        "--master", "local[2]",
        "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={scratch}",
        "pyspark-shell",
    ]  # fmt: skip
    return variables | {
        "PYSPARK_SUBMIT_ARGS": shlex.join(submit),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
    }


def _end_of(file: Path, size: int = 32_768) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - size))
        return opened.read().decode(errors="replace")


def latest(printed: str, lines: int) -> list[str]:
    """What to show of what a program has printed: the newest rows of Spark's console sink, else the last lines.

    >>> batch = "-----\\nBatch: {}\\n-----\\n+---+\\n|a  |\\n+---+\\n{}+---+\\n\\n"
    >>> latest(batch.format(1, "|1  |\\n|2  |\\n") + batch.format(2, "") + batch.format(3, "|3  |\\n"), 5)
    ['+---+', '|a  |', '+---+', '|2  |', '|3  |']
    >>> latest("one\\ntwo\\nthree\\n", 2)
    ['two', 'three']

    Args:
        printed: The end of its standard output.
        lines: How many at most.
    """
    tables = re.findall(r"^Batch: \d+\n-+\n((?:[+|].*\n)+)(?:only showing .*\n)?\n", printed, re.MULTILINE)
    head: list[str] = []
    rows: list[str] = []
    for table in reversed(tables):
        above, inside = table.splitlines()[:3], table.splitlines()[3:-1]
        # Columns are as wide as their widest cell, so another micro-batch may be drawn in another way.
        if inside and (not head or above == head):
            head, rows = above, inside + rows
    return [*head, *rows[-max(1, lines - len(head)) :]] if rows else printed.splitlines()[-lines:]
