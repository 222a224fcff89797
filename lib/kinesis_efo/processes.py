"""Identifies processes of this host by pid and start time, because pids are reused. Detects the use of an object in a forked process. Also
opens the directory in which the processes of one user exchange small files."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple, Self

_PROC: Final = Path("/proc")
UNKNOWN: Final = "-"
"""Used as the start time of every process on systems without /proc."""
_USER: Final = getattr(os, "geteuid", lambda: 0)()


class Stat(NamedTuple):
    """The state of a process; see proc_pid_stat(5). Its start time is in clock ticks since boot."""

    state: str
    parent: str
    started: str

    @property
    def dead(self) -> bool:
        """Whether the process has ended, but its parent has not waited for it yet (a zombie)."""
        return self.state in ("Z", "X")


class Process(NamedTuple):
    """A process of this host: its id and its start time, which together are unique."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int, proc: Path = _PROC) -> Process:
        """Return the process that currently has the id `pid`."""
        stat = read_stat(pid, proc)
        return cls(pid, UNKNOWN if stat is None else stat.started)

    def lives(self, proc: Path = _PROC) -> bool:
        """Whether the process is still running."""
        stat = read_stat(self.pid, proc)  # read before `kill`: if the process ends in between, `kill` fails
        try:
            with contextlib.suppress(PermissionError):  # the process belongs to another user
                os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # OverflowError: the id is too large for this system
            return False
        return stat is None or (not stat.dead and self.started in (stat.started, UNKNOWN))


class Home(NamedTuple):
    """Where an object with a thread or event loop was opened: the process and the source line. A fork copies the object, not its thread."""

    pid: int
    place: str

    @classmethod
    def here(cls) -> Home:
        """Return the current process, and the program's source line that called this library."""
        frame = sys._getframe()
        package = __name__.partition(".")[0]
        while (
            frame.f_globals.get("__name__", "").partition(".")[0] in (package, "asyncio", "contextlib") and frame.f_back
        ):
            frame = frame.f_back
        return cls(os.getpid(), f"{frame.f_code.co_filename}:{frame.f_lineno}")

    @property
    def left(self) -> bool:
        """Whether the current process is not the one that opened the object."""
        return os.getpid() != self.pid

    def __str__(self) -> str:
        return f"in process {self.pid}, at {self.place}"


def read_stat(pid: int | str, proc: Path = _PROC) -> Stat | None:
    """Read the state of a process; None if it does not exist, or on a system without /proc."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Split after the last parenthesis: the name in parentheses may contain anything, even parentheses and spaces.
    fields = text.rpartition(")")[2].split()
    return Stat(fields[0], fields[1], fields[19]) if len(fields) > 19 else None


def notes_directory() -> Path:
    """Return the path of the directory in which the processes of this user on this host exchange small files."""
    return Path(tempfile.gettempdir()) / f"kinesis-efo-{_USER}"


class PrivateDirectory:
    """A directory that only this user can enter. Files are opened relative to its handle, so replacing its path is harmless.

    Creates the directory if it is missing and `create` is set. Raises OSError if it cannot be opened, does not belong to `user`, or allows
    other users to enter.
    """

    def __init__(self, path: Path, *, create: bool = True, user: int = _USER) -> None:
        if os.open not in os.supports_dir_fd:
            raise OSError("this system has no handles of directories")
        self._path = path
        if create:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        try:
            # Do not follow links: another user may have created a link with this name in the directory for temporary files.
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except NotADirectoryError:
            raise _refused(path, "it is a link or a file") from None
        status = os.fstat(self._handle)
        if status.st_uid != user or status.st_mode & 0o077:
            os.close(self._handle)
            raise _refused(path, f"its owner is user {status.st_uid} and its mode {status.st_mode & 0o777:o}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def open(self, name: str, flags: int) -> int:
        """Open a file of the directory, like `os.open`. Raises FileNotFoundError if the name is not a regular file."""
        # Do not block: opening a named pipe would wait until another process opens its other end.
        try:
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=self._handle)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise self._no_file(name) from None
            raise
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
        raise self._no_file(name)

    def _no_file(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(f"{self._path / name} is not a regular file; remove it")

    def connect(self, sock: socket.socket, name: str) -> None:
        """Connect to a Unix socket in the directory."""
        sock.connect(self._socket(name))

    def bind(self, sock: socket.socket, name: str) -> None:
        """Bind a Unix socket to a name in the directory. On Linux, the path may exceed the length limit of socket addresses."""
        sock.bind(self._socket(name))

    def _socket(self, name: str) -> str:
        handle = Path(f"/proc/self/fd/{self._handle}")
        return str((handle if handle.exists() else self._path) / name)

    def names(self, pattern: str) -> list[str]:
        """Return the names of the files that match a pattern, sorted."""
        return sorted(fnmatch.filter(os.listdir(self._handle), pattern))  # noqa: PTH208 - of a handle

    def write(self, name: str, data: bytes = b"") -> None:
        with os.fdopen(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)

    def remove(self, *names: str) -> None:
        """Remove files, if they exist."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._handle)


def _refused(path: Path, reason: str) -> PermissionError:
    return PermissionError(
        f"{path} is not a directory of this user alone: {reason}; remove it, or set TMPDIR to a directory of this user"
    )
