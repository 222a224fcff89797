"""Names the owner of a lease so that others can tell where it runs, whether its process is gone, and whether it is one of their program.

An owner is `<host>:<boot id>:<pid namespace>:<pid>:<start time>:<random>`. A boot id alone is no host: containers share it, and so do
virtual machines that were restored from one snapshot.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from kinesis_efo.processes import UNKNOWN, read_stat

_PROC: Final = Path("/proc")


class _Process(NamedTuple):
    """What an owner says of its process. A pid alone may be another process' by now; with its start time it is one process."""

    host: str
    boot: str
    namespace: str
    pid: str
    started: str


def owner_id(random: Random) -> str:
    """A new owner of leases in this process: never the same twice, and readable in the table."""
    return ":".join((*_own(os.getpid()), f"{random.getrandbits(64):016x}"))


def readable(owner: str) -> str:
    """The part of an owner that people look for: `<host>:<pid>`. Owners of another form stay as they are.

    >>> readable("ip-10-0-0-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee")
    'ip-10-0-0-7:4711'
    >>> readable("kcl-worker-3")
    'kcl-worker-3'
    """
    process = _process(owner)
    return f"{process.host}:{process.pid}" if process is not None else owner


def provably_gone(owner: str, proc: Path = _PROC) -> bool:
    """Whether an owner's process has ended for certain, which only processes of the same machine and container can tell.

    Args:
        owner: From `owner_id`, of any process. Of owners of another form nothing is known.
        proc: Where the system describes its processes.
    """
    if (process := _of_this_machine(owner)) is None:
        return False
    try:
        os.kill(int(process.pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    stat = read_stat(process.pid, proc)
    # A pid that is taken again is another process; and one that nobody has waited for does nothing any more.
    return stat is not None and (stat.started != process.started or stat.dead)


def of_this_program(owner: str, proc: Path = _PROC) -> bool:
    """Whether an owner's process belongs to the Spark program that this process belongs to: Spark's JVM has started both.

    Args:
        owner: From `owner_id`, of any process.
        proc: Where the system describes its processes.
    """
    if (process := _of_this_machine(owner)) is None:
        return False
    if process.pid == str(os.getpid()):
        return True
    stat = read_stat(process.pid, proc)
    # Whose parent has ended gets another one, which has nothing to do with Spark.
    return stat is not None and stat.started == process.started and stat.parent == str(os.getppid()) != "1"


def _of_this_machine(owner: str) -> _Process | None:
    """An owner's process if it ran on this machine and in this container; None if it did not, or that is not known."""
    process = _process(owner)
    if process is None or UNKNOWN in process:
        return None
    here = _own(os.getpid())
    same = (process.host, process.boot, process.namespace) == (here.host, here.boot, here.namespace)
    return process if same else None


def _process(owner: str) -> _Process | None:
    match owner.split(":"):
        case [host, boot, namespace, pid, started, _] if pid.isdecimal() and int(pid) > 0:
            return _Process(host, boot, namespace, pid, started)
    return None


@cache
def _own(pid: int) -> _Process:
    host = socket.gethostname().replace(":", "_")
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = (_PROC / "self/ns/pid").readlink().name.removeprefix("pid:[").removesuffix("]")
    except OSError:
        return _Process(host, UNKNOWN, UNKNOWN, str(pid), UNKNOWN)
    stat = read_stat(str(pid), _PROC)
    return _Process(host, boot, namespace, str(pid), stat.started if stat is not None else UNKNOWN)
