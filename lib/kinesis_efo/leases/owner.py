"""Names of lease owners. A name identifies a process, so that other processes can check whether it has ended or is in their Spark program.

A name is `<host>:<boot id>:<pid namespace>:<pid>:<start time>:<random>`. The boot id alone does not identify a host: containers on one
machine, and virtual machines restored from one snapshot, have the same boot id.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from kinesis_efo.errors import visible
from kinesis_efo.processes import UNKNOWN, Process, read_stat

_PROC: Final = Path("/proc")


class _OwnerProcess(NamedTuple):
    """The process of a lease owner. Its start time distinguishes it from a later process with the same pid."""

    host: str
    boot: str
    namespace: str
    pid: str
    started: str


def owner_id(random: Random, proc: Path = _PROC) -> str:
    """Create a unique lease owner name for this process."""
    return ":".join((*_own(os.getpid(), proc), f"{random.getrandbits(64):016x}"))


def readable(owner: str) -> str:
    """Shorten an owner name to `<host>:<pid>`, for messages. Returns names of another form unchanged.

    >>> readable("ip-10-0-0-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee")
    'ip-10-0-0-7:4711'
    >>> readable("kcl-worker-3")
    'kcl-worker-3'
    """
    process = _process(owner)
    return visible(f"{process.host}:{process.pid}" if process is not None else owner)


def provably_gone(owner: str, proc: Path = _PROC) -> bool:
    """Whether an owner's process has certainly ended. Always False for a process on another machine or in another container."""
    process = _of_this_machine(owner)
    return process is not None and not Process(int(process.pid), process.started).lives(proc)


def of_this_program(owner: str, proc: Path = _PROC) -> bool:
    """Whether an owner's process belongs to the same Spark program as this process: both have the same parent, Spark's JVM."""
    if (process := _of_this_machine(owner)) is None:
        return False
    if process.pid == str(os.getpid()):
        return True
    stat = read_stat(process.pid, proc)
    # Parent process 1 is not Spark's JVM: it adopts processes whose parents have ended.
    return stat is not None and stat.started == process.started and stat.parent == str(os.getppid()) != "1"


def _of_this_machine(owner: str) -> _OwnerProcess | None:
    """Return an owner's process if it was started on this machine and in this container; None otherwise, or if unknown."""
    process, here = _process(owner), _own(os.getpid(), _PROC)
    if process is None or UNKNOWN in process:
        return None
    return process if (process.host, process.boot, process.namespace) == here[:3] else None


def _process(owner: str) -> _OwnerProcess | None:
    match owner.split(":"):
        case [host, boot, namespace, pid, started, _] if pid.isdecimal() and int(pid) > 0:
            return _OwnerProcess(host, boot, namespace, pid, started)
    return None


@cache
def _own(pid: int, proc: Path) -> _OwnerProcess:
    host = socket.gethostname().replace(":", "_")
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = (proc / "self/ns/pid").readlink().name.removeprefix("pid:[").removesuffix("]")
    except OSError:
        return _OwnerProcess(host, UNKNOWN, UNKNOWN, str(pid), UNKNOWN)
    stat = read_stat(str(pid), proc)
    return _OwnerProcess(host, boot, namespace, str(pid), stat.started if stat is not None else UNKNOWN)
