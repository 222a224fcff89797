"""The demo's other processes: local AWS, and the job under `spark-submit`. None of them outlives the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
BIN: Final = Path(sys.executable).parent
REGION: Final = "us-east-1"


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Child:
    """A process in its own session, with its output in a file. A context manager that kills it at the end.

    Args:
        command: Program and arguments.
        environment: Environment variables, in addition to this process's.
        log: File for its output.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environment = dict(os.environ) | dict(environment)
        # The job must run on this environment's Spark.
        self._environment.pop("SPARK_HOME", None)
        self.log = log
        self._output: IO[str] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._family: list[psutil.Process] = []

    def start(self, stdout: int | None = None) -> subprocess.Popen[str]:
        """Start the process, or start it again after it has ended."""
        self._close()
        self._output = self.log.open("a")
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout or self._output,
            stderr=self._output,
            text=True,
            start_new_session=True,
        )
        return self._process

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll() if self._process else None

    def ask_to_end(self, seconds: float) -> int:
        """Send SIGTERM to the process, as an orchestrator does, and wait for its exit code.

        Raises:
            DemoError: The process has not ended in time.
        """
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the process did not end within {seconds:.0f} s of SIGTERM; see {self.log}") from None

    def wait(self, seconds: float) -> None:
        """Wait until the process has done its work.

        Raises:
            DemoError: It failed, or has not ended in time.
        """
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the process did not end within {seconds:.0f} s; see {self.log}") from None
        if code:
            raise DemoError(f"the process ended with exit code {code}:\n{self.tail()}")

    def kill(self) -> int:
        """Send SIGKILL to the process and all its descendants at once, so that none can clean up.

        Returns:
            The number of processes killed.
        """
        if self._process is None:
            return 0
        family = self._family
        with contextlib.suppress(psutil.NoSuchProcess):
            # Spark's Python workers have their own process groups, so killing the group would miss them.
            root = psutil.Process(self._process.pid)
            family = [root, *root.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self._process.wait()
        return len(family)

    def remember_family(self) -> None:
        """Store the process's descendants, so that `kill` finds them even after the process has ended."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(self._process.pid)
                self._family = [root, *root.children(recursive=True)]

    def tail(self, lines: int = 15) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        if self._output is not None:
            self._output.close()


def local_aws(directory: Path) -> Child:
    """Local AWS, as users run it. `endpoint` starts it."""
    return Child(
        [str(BIN / "kinesis-efo"), "local", "--port", "0", "--region", REGION],
        {"PYTHONUNBUFFERED": "1"},
        directory / "local-aws.log",
    )


def endpoint(aws: Child) -> str:
    """Start local AWS and return its URL.

    Raises:
        DemoError: Local AWS ended at once.
    """
    process = aws.start(stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        name, _, value = line.strip().removeprefix("export ").partition("=")
        if name == "AWS_ENDPOINT_URL":
            return value
    raise DemoError(f"local AWS did not start:\n{aws.tail()}")


def environment(url: str) -> dict[str, str]:
    """The environment variables that point every AWS SDK to local AWS."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def archive_job(directory: Path, url: str, manifest: str, *, batch_records: int) -> Child:
    """`jobs/archive.py` under `spark-submit`, as users run it."""
    arguments = [
        "--manifest", manifest,
        "--output", str(directory / "lake"),
        "--checkpoint", str(directory / "checkpoint"),
        "--starting-position", "TRIM_HORIZON",
        "--trigger", "1 second",
        "--option", f"maxRecordsPerTrigger={batch_records}",
    ]  # fmt: skip
    return _submitted(ROOT / "jobs" / "archive.py", arguments, url, directory / "job.log")


def batch_read(directory: Path, url: str, manifest: str) -> Child:
    """The batch read under `spark-submit`; writes to `read` in the directory."""
    arguments = [manifest, str(directory / "read")]
    return _submitted(ROOT / "demo" / "batch_read.py", arguments, url, directory / "batch-read.log")


def _submitted(program: Path, arguments: Sequence[str], url: str, log: Path) -> Child:
    return Child(
        [
            str(BIN / "spark-submit"),
            "--master", "local[2]",
            "--conf", "spark.ui.enabled=false",
            "--conf", "spark.log.level=WARN",
            str(program),
            *arguments,
        ],
        {
            **environment(url),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        log,
    )  # fmt: skip


def end_on_sigterm() -> None:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that every process is ended."""

    def handle(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handle)
