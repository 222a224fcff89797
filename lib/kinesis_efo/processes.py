"""Tells one process of this host from all others: a pid alone may be another process' by now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
UNKNOWN: Final = "-"
"""Stands for what a system without /proc does not tell."""


class Stat(NamedTuple):
    """What the system says of a process; see proc_pid_stat(5). Its start time is in clock ticks since boot."""

    state: str
    parent: str
    started: str

    @property
    def dead(self) -> bool:
        """Whether it does nothing any more: nobody has waited for it yet."""
        return self.state in ("Z", "X")


class Process(NamedTuple):
    """A process of this host.

    Attributes:
        pid: Its id.
        started: Its start time, which no other process with this id has.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int, proc: Path = _PROC) -> Process:
        """The process that has an id now."""
        stat = read_stat(pid, proc)
        return cls(pid, UNKNOWN if stat is None else stat.started)

    def lives(self, proc: Path = _PROC) -> bool:
        """Whether it still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # somebody else's
        stat = read_stat(self.pid, proc)
        return stat is None or (not stat.dead and self.started in (stat.started, UNKNOWN))


def read_stat(pid: int | str, proc: Path = _PROC) -> Stat | None:
    """What the system says of a process; None if it says nothing.

    Args:
        pid: Its id.
        proc: Where the system describes its processes.
    """
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses and spaces included.
    fields = text.rpartition(")")[2].split()
    return Stat(fields[0], fields[1], fields[19]) if len(fields) > 19 else None
