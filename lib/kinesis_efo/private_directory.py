"""A directory with which the processes of one user on one host exchange small files."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import tempfile
from pathlib import Path
from typing import Final, Self

_USER: Final = getattr(os, "geteuid", lambda: 0)()


def notes_directory() -> Path:
    """Return the path of the directory: the same for all processes of this user on this host."""
    return Path(tempfile.gettempdir()) / f"kinesis-efo-{_USER}"


class PrivateDirectory:
    """A directory that only this user can enter. It is used by its handle, so a later change of the path has no effect.

    Args:
        path: Its path; it is created if it does not exist.

    Raises:
        OSError: It cannot be created, or another user created it or may enter it.
    """

    def __init__(self, path: Path) -> None:
        if os.open not in os.supports_dir_fd:
            raise OSError("this system has no handles of directories")
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            # In a directory for temporary files, another user may have created the name, even as a link.
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except NotADirectoryError:
            raise _refused(path, "it is a link or a file") from None
        status = os.fstat(self._handle)
        if status.st_uid != _USER or status.st_mode & 0o077:
            os.close(self._handle)
            raise _refused(path, f"its owner is user {status.st_uid} and its mode {status.st_mode & 0o777:o}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def open(self, name: str, flags: int) -> int:
        """Open a file of the directory, like `os.open`."""
        return os.open(name, flags, 0o600, dir_fd=self._handle)

    def names(self, pattern: str) -> list[str]:
        """Return the names of the files that match a pattern, sorted."""
        return sorted(fnmatch.filter(os.listdir(self._handle), pattern))  # noqa: PTH208 - of a handle

    def write(self, name: str, data: bytes = b"") -> None:
        """Write a file."""
        with os.fdopen(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)

    def rename(self, name: str, to: str) -> None:
        """Rename a file."""
        os.rename(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def remove(self, *names: str) -> None:
        """Remove files, if they exist."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._handle)


def _refused(path: Path, reason: str) -> PermissionError:
    return PermissionError(
        f"{path} is not a directory of this user alone: {reason}; remove it, or set TMPDIR to a directory of this user"
    )
