"""Finds the runs of this Spark program: the process of a run writes a small file, and locks it until the process ends.

The driver's JVM identifies a program: Spark starts one process for each source of a query, as a child of this JVM. The kernel frees the
locks of an ended process, so an unlocked file belongs to an ended run. Under a second lock, one process at a time decides whether to join a
run or to start one; the file of the second lock contains the secret of all runs of the program.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import FetcherError, naming
from kinesis_efo.processes import PrivateDirectory, Process

try:
    import fcntl
except ImportError:  # missing on Windows, where `Program.locate` raises FetcherError
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.05
_PREFIX: Final = "run"
_MOST_BYTES: Final = 1 << 20
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RunEntry(msgspec.Struct, frozen=True):
    """The content of the file by which clients on this host find a run."""

    address: FetcherAddress  # The address of the run's service
    secret: str
    streams: dict[str, str]  # ARNs by logical name
    pid: int = 0  # The id of the run's process; 0 if unknown

    def overlaps(self, streams: dict[str, str]) -> bool:
        """Whether the run reads at least one of `streams` (ARNs by logical name)."""
        return not self.streams.items().isdisjoint(streams.items())


class RunFile:
    """The file of a run, opened by a client. It stays open, so that `lives` works even after the file was removed.

    `entry` is the content of the file when it was opened. Raises msgspec.MsgspecError if the file is not fully written yet.
    """

    def __init__(self, path: Path) -> None:
        with PrivateDirectory(path.parent) as there:
            self._file = there.open(path.name, os.O_RDWR)
        # Guard the descriptor: if one thread closed the file while another was using it, the number could be reused for a different file.
        self._guard = threading.Lock()
        try:
            self.entry = self._read()
        except BaseException:
            self.close()
            raise

    def again(self) -> RunEntry:
        """Return the current content of the file; `entry` if it cannot be read."""
        with self._guard, contextlib.suppress(*_UNREADABLE):
            if self._file >= 0:
                return self._read()
        return self.entry

    @property
    def lives(self) -> bool:
        """Whether the process of the run exists, running or paused. False once this file is closed."""
        with self._guard:
            return self._file >= 0 and not _is_free(self._file)

    def close(self) -> None:
        with self._guard:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _read(self) -> RunEntry:
        return msgspec.json.decode(os.pread(self._file, _MOST_BYTES, 0), type=RunEntry)


class OwnFile:
    """This process's run file. Clients can find the run until this file is closed. Raises OSError if the file exists."""

    def __init__(self, path: Path, entry: RunEntry) -> None:
        self.path = path
        self._entry = entry
        # Holds several descriptors if the file was removed and written again: clients that opened the removed file still read and lock it.
        self._files: list[int] = []
        self._guard = threading.Lock()
        self._create()

    def write(self, entry: RunEntry) -> None:
        """Replace the content. A reader ignores a half-written file."""
        self._entry = entry
        data = msgspec.json.encode(entry)
        with self._guard, naming(str(self.path)):
            for file in self._files:
                os.pwrite(file, data, 0)
                os.ftruncate(file, len(data))

    def touch(self) -> None:
        """Update the modification time, so that a cleaner of temporary files does not remove the file."""
        for file in self._files:
            os.utime(file)

    def restore(self) -> None:
        """Write the file again if it was removed, so that new queries find this run."""
        if self._files and not self.path.exists():
            logger.warning(
                "%s was removed; writing it again. Exclude it from the cleaning of temporary files", self.path
            )
            self._create()

    def close(self) -> None:
        """Remove the file, so that queries no longer join this run."""
        with contextlib.suppress(OSError), PrivateDirectory(self.path.parent) as there:
            there.remove(self.path.name)
        with self._guard:
            while self._files:
                os.close(self._files.pop())

    def _create(self) -> None:
        with PrivateDirectory(self.path.parent) as there:
            file = there.open(self.path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._files.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.write(self._entry)
        except BaseException:
            self._files.remove(file)
            os.close(file)
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise


class Program:
    """The runs of one Spark program that use the same lease table.

    `jvm` is the JVM that started this process. `about` is a string that is the same for all queries that may share a run.
    """

    def __init__(self, directory: Path, jvm: Process, about: str) -> None:
        self.jvm: Final = jvm
        self._directory = directory
        self._machine = f"{_PREFIX}.{_pid_namespace()}"
        digest = hashlib.sha256(about.encode()).hexdigest()[:16]
        self._name = f"{self._machine}.{jvm.pid}.{jvm.started}.{digest}"

    @classmethod
    def locate(cls, directory: Path, jvm: Process, about: str) -> Self:
        """Return the program of this process. Raises FetcherError if files or locks do not work in `directory`."""
        program = cls(directory, jvm, about)
        try:
            if fcntl is None:
                raise OSError("this system has no flock")
            program._sweep()
            # Test whether locks work at all, without waiting for one.
            with program._lock_file() as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise FetcherError(
                f"the processes of this Spark program find each other through locked files in {directory}, which fails: {error}. Set "
                "TMPDIR to a directory on a local disk that this user may write to"
            ) from error
        return program

    @contextlib.contextmanager
    def deciding(self, check: Callable[[], None], sleep: Callable[[float], Any] = time.sleep) -> Iterator[None]:
        """Acquire the lock under which a process decides whether to join a run or to start one.

        While another process owns the lock, this calls `check` repeatedly, which raises an error to give up.
        """
        while True:
            with self._lock_file() as file:
                # Check that the locked file still exists. If a run that has just ended has removed it, other processes lock a new file.
                if _locked(file) and os.fstat(file).st_nlink:
                    yield
                    return
            check()
            sleep(_LOOK_SECONDS)

    def clear(self) -> None:
        """Remove the lock file, unless the program has a run or another process owns the lock."""
        with PrivateDirectory(self._directory) as there, self._lock_file() as file:
            if _locked(file) and not there.names(f"{self._name}.*.json"):
                there.remove(f"{self._name}.lock")

    def runs(self) -> list[RunFile]:
        """Return the files of live runs, and remove those of dead runs. Call this only within `deciding`."""
        found: list[RunFile] = []
        with PrivateDirectory(self._directory) as there:
            for name in there.names(f"{self._name}.*.json"):
                with contextlib.suppress(FileNotFoundError, *_UNREADABLE):
                    file = RunFile(self._directory / name)
                    if file.lives:
                        found.append(file)
                        continue
                    file.close()
                    there.remove(name)
        return found

    def secret(self, known: str) -> str:
        """Return the secret with which tasks can access every run of the program. Call this only within `deciding`.

        If no secret is stored yet, stores `known`, the secret of this process's last run, or a new secret if `known` is empty.
        """
        with self._lock_file() as file:
            if found := os.pread(file, 1 << 10, 0).decode(errors="replace"):
                if found.isascii() and found.isprintable():
                    return found
                raise FetcherError(
                    f"{self._directory / self._name}.lock does not contain a secret of this library; remove it"
                )
            with naming(f"{self._directory / self._name}.lock"):
                os.pwrite(file, (secret := known or secrets.token_urlsafe(32)).encode(), 0)
            return secret

    def begin(self, entry: RunEntry) -> OwnFile:
        """Write this process's run file. Call this while the planner that started this process owns the lock of `deciding`."""
        return OwnFile(self._directory / f"{self._name}.{secrets.token_hex(4)}.json", entry)

    @contextlib.contextmanager
    def _lock_file(self) -> Iterator[int]:
        with PrivateDirectory(self._directory) as there:
            file = there.open(f"{self._name}.lock", os.O_RDWR | os.O_CREAT)
        try:
            yield file
        finally:
            os.close(file)

    def _sweep(self) -> None:
        with PrivateDirectory(self._directory) as there:
            for name in there.names(f"{self._machine}.*"):
                pid, started, *_ = [*name.removeprefix(f"{self._machine}.").split("."), ""]
                if pid.isdecimal() and not Process(int(pid), started).lives():
                    # Ignore errors: the file may not belong to this library.
                    with contextlib.suppress(OSError):
                        there.remove(name)


def files_of(directory: Path, jvm: Process) -> list[Path]:
    """Return the paths of the files of all runs of one JVM. Raises `OSError` if the directory cannot be used; see `PrivateDirectory`."""
    with PrivateDirectory(directory) as there:
        names = there.names(f"{_PREFIX}.{_pid_namespace()}.{jvm.pid}.{jvm.started}.*.json")
    return [directory / name for name in names]


def _locked(file: int) -> bool:
    """Lock a file without waiting. Return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(file: int) -> bool:
    """Whether a file is not locked, which means that the process that wrote it has ended."""
    try:
        # Use a shared lock: if two processes checked with exclusive locks at the same time, each would mistake the other for the run.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _pid_namespace() -> str:
    """Return the id of this process's pid namespace. Containers that share a directory of run files have different ids."""
    try:
        return Path("/proc/self/ns/pid").readlink().name.removeprefix("pid:[").removesuffix("]")
    except OSError:
        return "0"
