"""Runs a Spark program as a separate process, and ends it with every process that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

_MARK: Final = "KINESIS_EFO_QUICKSTART"
"""Environment variable that marks all processes of a program, so that they can be found."""
_END_WITHIN: Final = 10.0


class Child:
    """A Spark program in a separate process. Leaving the context kills the program and every process that it started.

    Args:
        variables: Added to this process' environment.
        log: File for the program's standard error. Without `shown`, standard output is written there, too.
        shown: Whether the program shares this process' standard output.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path, *, shown: bool = False) -> None:
        self._command = list(command)
        self._mark = uuid.uuid4().hex
        # Make the program use this environment's Python and PySpark.
        python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
        self._variables = {**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1", **variables, _MARK: self._mark}
        self._variables.pop("SPARK_HOME", None)
        self._shown = shown
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    def start(self) -> None:
        """Start the program, or start it again after it has ended."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=None if self._shown else log,
                stderr=log,
                # In a new session, the program does not receive Ctrl-C; this process receives it and ends the program.
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None while it runs, and before it starts."""
        return self._process.poll() if self._process is not None else None

    def wait(self, seconds: float, *, end: bool = False) -> int | None:
        """Wait until the program ends, and return its exit code; None if it is still running after `seconds`.

        With `end`, sends SIGTERM to the program first, as an orchestrator does.
        """
        assert self._process is not None
        if end:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def tail(self, lines: int) -> str:
        """Return the last lines of the program's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> int:
        """Send SIGKILL to the program and all processes that it started. Returns their number."""
        killed = set[int]()
        deadline = time.monotonic() + _END_WITHIN
        # Repeat, because a scan may miss a process that is being started.
        while (family := list(self._family())) and time.monotonic() < deadline:
            killed |= {process.pid for process in family}
            kill(family)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        return len(killed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _family(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if ours:
                yield process


def kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes and wait a second for their end. Processes that have ended are ignored."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=1)
