"""Identifies processes of this host by pid and start time, because a pid may be reused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
UNKNOWN: Final = "-"
"""The start time if the system has no /proc."""


class Stat(NamedTuple):
    """The state of a process; see proc_pid_stat(5). Its start time is in clock ticks since boot."""

    state: str
    parent: str
    started: str

    @property
    def dead(self) -> bool:
        """Whether it has ended (a zombie)."""
        return self.state in ("Z", "X")


class Process(NamedTuple):
    """A process of this host.

    Attributes:
        pid: Its id.
        started: Its start time; no other process with this id has the same.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int, proc: Path = _PROC) -> Process:
        """Return the process that has an id now."""
        stat = read_stat(pid, proc)
        return cls(pid, UNKNOWN if stat is None else stat.started)

    def lives(self, proc: Path = _PROC) -> bool:
        """Whether it still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # a process of another user
        stat = read_stat(self.pid, proc)
        return stat is None or (not stat.dead and self.started in (stat.started, UNKNOWN))


def read_stat(pid: int | str, proc: Path = _PROC) -> Stat | None:
    """Read the state of a process; None if it does not exist, or if the system has no /proc.

    Args:
        pid: Its id.
        proc: The directory `/proc`.
    """
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may contain anything, even parentheses and spaces.
    fields = text.rpartition(")")[2].split()
    return Stat(fields[0], fields[1], fields[19]) if len(fields) > 19 else None
