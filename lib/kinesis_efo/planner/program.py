"""Finds the runs of this Spark program: the process that has one says so in a small file, and holds a lock on it for its life.

A program is a JVM: Spark starts one process for each source of a query, as a child of the driver's JVM. The kernel frees the lock of
a process that has ended, however it ended: a file that nobody has locked is of a host that is gone. Another lock lets one process at a
time decide whether to join a run or to begin one; its file has the secret that all runs of the program have.
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
from kinesis_efo.private_directory import PrivateDirectory
from kinesis_efo.processes import Process

try:
    import fcntl
except ImportError:  # a system without it has no Spark that keeps processes as this library needs them
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.05
_PREFIX: Final = "run"


class RunEntry(msgspec.Struct, frozen=True):
    """What a host tells of its run.

    Attributes:
        address: Where its service is.
        secret: The secret of the run.
        streams: The ARNs of the streams that it reads, by logical name.
    """

    address: FetcherAddress
    secret: str
    streams: dict[str, str]

    def overlaps(self, streams: dict[str, str]) -> bool:
        """Whether it reads one of some streams."""
        return not self.streams.items().isdisjoint(streams.items())


class HostFile:
    """The file of a run whose host is another process. It stays open: whoever cleans up the directory ends no host.

    Args:
        path: The file.

    Attributes:
        entry: What it said when it was opened.

    Raises:
        OSError: There is no such file.
        msgspec.MsgspecError: It is only just being written.
    """

    def __init__(self, path: Path) -> None:
        with PrivateDirectory(path.parent) as there:
            self._file = there.open(path.name, os.O_RDWR)
        # Of several threads, one looks while another one closes it: the number may be another file's then.
        self._guard = threading.Lock()
        try:
            self.entry = self._read()
        except BaseException:
            self.close()
            raise

    def again(self) -> RunEntry:
        """What it says by now, or has said last."""
        with self._guard, contextlib.suppress(msgspec.MsgspecError):
            if self._file >= 0:
                return self._read()
        return self.entry

    @property
    def host_lives(self) -> bool:
        """Whether its host's process is there. One that is paused is. Of a file that is closed, nothing is known any more."""
        with self._guard:
            return self._file >= 0 and not _is_free(self._file)

    def close(self) -> None:
        """Do not look at it any more."""
        with self._guard:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _read(self) -> RunEntry:
        return msgspec.json.decode(os.pread(self._file, os.fstat(self._file).st_size, 0), type=RunEntry)


class OwnFile:
    """The file of the run of this process, which is the host as long as it is open.

    Args:
        path: Where; nothing may be there yet.
        entry: What it says.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, path: Path, entry: RunEntry) -> None:
        self._path = path
        with PrivateDirectory(path.parent) as there:
            self._file = there.open(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.write(entry)
        except BaseException:
            self.close()
            raise

    def write(self, entry: RunEntry) -> None:
        """Say something else. Who reads half of it takes it for no run's; who decides and joins reads it whole."""
        if self._file < 0:
            return
        data = msgspec.json.encode(entry)
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))

    def touch(self) -> None:
        """Keep it from being taken for an old file, which somebody may clean up."""
        if self._file >= 0:
            os.utime(self._file)

    def close(self) -> None:
        """Be no host any more."""
        with contextlib.suppress(OSError), PrivateDirectory(self._path.parent) as there:
            there.remove(self._path.name)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Program:
    """The runs of one Spark program that may be shared: those of one lease table.

    Args:
        directory: Where its processes leave their files.
        jvm: The JVM that has started this process.
        about: What they have in common, besides.
    """

    def __init__(self, directory: Path, jvm: Process, about: str) -> None:
        self._directory = directory
        self._machine = f"{_PREFIX}.{_pid_namespace()}"
        digest = hashlib.sha256(about.encode()).hexdigest()[:16]
        self._name = f"{self._machine}.{jvm.pid}.{jvm.started}.{digest}"

    @classmethod
    def found(cls, directory: Path, jvm: Process, about: str) -> Self | None:
        """The program of this process, if its processes can find each other; if not, the log says why.

        Args:
            directory: Where its processes leave their files.
            jvm: The JVM that has started this process.
            about: What they have in common, besides.
        """
        program = cls(directory, jvm, about)
        try:
            if fcntl is None:
                raise OSError("this system has no flock")
            program._sweep()
            # Whether locks work at all; nobody is waited for.
            with program._lock_file() as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            logger.warning(
                "queries of this Spark program that read the same stream cannot find each other, and all but one of them will be refused: %s",
                error,
            )
            return None
        return program

    @contextlib.contextmanager
    def deciding(self, check: Callable[[], None], sleep: Callable[[float], Any] = time.sleep) -> Iterator[None]:
        """Be the one process of the program that decides whether to join a run or to begin one.

        Args:
            check: Called again and again while another one decides; raises to give up.
            sleep: Waits for a number of seconds.
        """
        with self._lock_file() as file:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                check()
                sleep(_LOOK_SECONDS)
            yield

    def runs(self) -> list[HostFile]:
        """The runs whose hosts are there. Only for the one that decides; files of those that are gone are removed."""
        found: list[HostFile] = []
        with PrivateDirectory(self._directory) as there:
            for name in there.names(f"{self._name}.*.json"):
                with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
                    file = HostFile(self._directory / name)
                    if file.host_lives:
                        found.append(file)
                        continue
                    file.close()
                    there.remove(name)
        return found

    def secret(self, known: str) -> str:
        """The secret of all runs of the program: guests of a host that is gone have tasks that know no other. Only for the one that decides.

        Args:
            known: What this process takes for it; empty if it has been in no run yet.

        Raises:
            OSError: It cannot be kept.
        """
        with self._lock_file() as file:
            if found := os.pread(file, 1 << 10, 0).decode():
                return found
            os.pwrite(file, (secret := known or secrets.token_urlsafe(32)).encode(), 0)
            return secret

    def begin(self, entry: RunEntry) -> OwnFile:
        """Say that this process is the host of a run. Only for the one that decides.

        Raises:
            OSError: The file cannot be written.
        """
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
        """Remove the files of programs that have ended on this machine: nobody asks for them any more."""
        with PrivateDirectory(self._directory) as there:
            for name in there.names(f"{self._machine}.*"):
                pid, started, *_ = [*name.removeprefix(f"{self._machine}.").split("."), ""]
                if pid.isdecimal() and not Process(int(pid), started).lives():
                    there.remove(name)


def files_of(directory: Path, jvm: Process) -> list[Path]:
    """The files of all runs of one JVM.

    Raises:
        OSError: There is no private directory.
    """
    with PrivateDirectory(directory) as there:
        names = there.names(f"{_PREFIX}.{_pid_namespace()}.{jvm.pid}.{jvm.started}.*.json")
    return [directory / name for name in names]


def _is_free(file: int) -> bool:
    """Whether nobody holds the lock of a file: the process that wrote it has ended."""
    try:
        # Shared: two that look at a time do not take each other for the host.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _pid_namespace() -> str:
    """Tells the containers of a host apart that share the directory: each has pids of its own."""
    try:
        return Path("/proc/self/ns/pid").readlink().name.removeprefix("pid:[").removesuffix("]")
    except OSError:
        return "0"
