"""Runs the local AWS as a background process. A ready file describes the process once it is ready."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.cli.arguments import MANIFEST_VARIABLE

_LOOK_EVERY: Final = 0.02
_PATIENCE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL when a background process is stopped."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The contents of a local AWS' ready file.

    Attributes:
        started: Start time of the process, which distinguishes it from a later process with the same id.
        environment: Environment variables that point AWS SDKs to the local AWS.
        manifest: Path of the declared application's manifest, if any.
    """

    pid: int
    started: float
    endpointUrl: str  # noqa: N815 - a key of the file
    environment: Mapping[str, str]
    manifest: str | None
    streams: Sequence[str]

    @staticmethod
    def of_this_process(
        endpoint_url: str, environment: Mapping[str, str], manifest: Path | None, streams: Sequence[str]
    ) -> Ready:
        """Return the ready file's contents for this process."""
        began = psutil.Process().create_time()
        return Ready(os.getpid(), began, endpoint_url, environment, str(manifest) if manifest else None, streams)

    @property
    def port(self) -> int:
        return urlsplit(self.endpointUrl).port or 0

    @property
    def assignments(self) -> list[str]:
        """The environment variables as `NAME=value`, quoted for a shell's `export`."""
        variables = {**self.environment, **({MANIFEST_VARIABLE: self.manifest} if self.manifest else {})}
        return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def write(self, path: Path) -> None:
        """Write the ready file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{self.pid}")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n")
        partial.replace(path)

    @staticmethod
    def read(path: Path) -> Ready:
        """Read a ready file. Raises ConfigurationError if the file is not valid."""
        try:
            return Ready(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as wrong:
            raise ConfigurationError(f"{path} does not describe a local AWS: {wrong}; delete it") from None


def state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's directory for ready files and logs of local AWS processes in the background."""
    base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "kinesis-efo"


def running(directory: Path) -> dict[Path, Ready]:
    """Return the local AWS processes that run in the background, by ready file. Removes the files of processes that have ended."""
    found = {}
    for path in sorted(directory.glob("local-*.json")):
        with suppress(FileNotFoundError):
            ready = Ready.read(path)
            if ready.alive:
                found[path] = ready
            else:
                _forget(path)
    return found


def start(arguments: Sequence[str], directory: Path) -> tuple[Ready, Path]:
    """Start a local AWS in the background, and wait until it is ready.

    Returns the contents of its ready file, and the path of its log. `arguments` are command-line arguments of `kinesis-efo local`;
    `directory` is from `state_directory`. Raises ChildFailed if the process ended before it was ready.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"local-{uuid.uuid4().hex[:12]}.json"
    log = path.with_suffix(".log")
    program = "from kinesis_efo_tools.cli import main; main()"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "local", *arguments, "--ready-file", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while not path.exists():
            if process.poll() is not None:
                raise ChildFailed(process.returncode, log.read_text(errors="replace").strip())
            time.sleep(_LOOK_EVERY)
    except BaseException:
        process.kill()
        process.wait()
        _forget(path)
        raise
    return Ready.read(path), log


class ChildFailed(Exception):
    """Raised if the background process ended before it was ready. `code` is its exit code, `said` is its output."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(code, said)
        self.code, self.said = code, said


def stop(
    path: Path, ready: Ready, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Any] = time.sleep
) -> None:
    """Stop the local AWS that runs as a background process, and wait until the process has ended."""
    deadline = clock() + _PATIENCE
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(ready.pid)
        if ready.alive:
            process.terminate()
        while ready.alive:
            if clock() > deadline:
                process.kill()
            sleep(_LOOK_EVERY)
    _forget(path)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".log").unlink(missing_ok=True)
