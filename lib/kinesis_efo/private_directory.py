"""The directory in which processes of one user on one host leave each other small files."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

_USER: Final = getattr(os, "geteuid", lambda: 0)()


def notes_directory() -> Path:
    """The directory: the same for all processes of this user on this host. Who writes there first makes it."""
    return Path(tempfile.gettempdir()) / f"kinesis-efo-{_USER}"


def is_private(directory: Path) -> bool:
    """Whether only this user can write there: anybody may create the name in a directory for temporary files.

    Raises:
        OSError: It does not exist.
    """
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == _USER and not status.st_mode & 0o077
