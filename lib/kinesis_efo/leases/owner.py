"""Names of lease owners. A name identifies the owner's process, so that others can check if it has ended or belongs to their program.

An owner is `<host>:<boot id>:<pid namespace>:<pid>:<start time>:<random>`. A boot id alone does not identify a host: containers share it,
and virtual machines that were restored from the same snapshot do as well.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from kinesis_efo.errors import visible
from kinesis_efo.processes import UNKNOWN, read_stat

_PROC: Final = Path("/proc")


class _OwnerProcess(NamedTuple):
    """The process of an owner. The start time distinguishes it from a later process with the same pid."""

    host: str
    boot: str
    namespace: str
    pid: str
    started: str


def owner_id(random: Random, proc: Path = _PROC) -> str:
    """Create a unique owner name for this process."""
    return ":".join((*_own(os.getpid(), proc), f"{random.getrandbits(64):016x}"))


def readable(owner: str) -> str:
    """Shorten an owner to `<host>:<pid>`, for messages. Returns owners of another form unchanged.

    >>> readable("ip-10-0-0-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee")
    'ip-10-0-0-7:4711'
    >>> readable("kcl-worker-3")
    'kcl-worker-3'
    """
    process = _process(owner)
    return visible(f"{process.host}:{process.pid}" if process is not None else owner)


def provably_gone(owner: str, proc: Path = _PROC) -> bool:
    """Whether an owner's process has certainly ended. Always False for a process on another machine or in another container."""
    if (process := _of_this_machine(owner)) is None:
        return False
    try:
        os.kill(int(process.pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    stat = read_stat(process.pid, proc)
    # Count a zombie as ended, and an owner whose pid belongs to a later process.
    return stat is not None and (stat.started != process.started or stat.dead)


def of_this_program(owner: str, proc: Path = _PROC) -> bool:
    """Whether an owner's process belongs to this process' Spark program. Both then have the same parent, Spark's JVM."""
    if (process := _of_this_machine(owner)) is None:
        return False
    if process.pid == str(os.getpid()):
        return True
    stat = read_stat(process.pid, proc)
    # Exclude process 1 as parent, usually that of a process whose parent has ended: it is not Spark's JVM.
    return stat is not None and stat.started == process.started and stat.parent == str(os.getppid()) != "1"


def _of_this_machine(owner: str) -> _OwnerProcess | None:
    """Return an owner's process if it ran on this machine and in this container; None if not, or if unknown."""
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
