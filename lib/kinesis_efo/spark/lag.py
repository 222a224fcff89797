"""Carries the lag of each shard from the planner's process to the listener in the driver's.

Spark 4.2+ has a way for it: what `reportLatestOffset` returns is in the query's progress. Spark 4.0 transports only offsets; there
the planner writes a small file on the host of both processes, named after the end offset that the progress will show.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kinesis_efo.positions import Offset, ShardKey

_USER: Final = getattr(os, "geteuid", lambda: 0)()
_KEPT: Final = 4
"""How many micro-batches keep their file: Spark reports the progress of one a moment after it planned the next."""


def to_report(millis_behind: Mapping[ShardKey, int | None]) -> dict[str, Any]:
    """The lags in milliseconds as JSON data, by stream and shard, without the shards whose lag is not known yet."""
    streams: dict[str, dict[str, int]] = {}
    for key, millis in sorted(millis_behind.items()):
        if millis is not None:
            streams.setdefault(key.stream, {})[key.shard] = millis
    return {"millisBehindLatest": streams}


def from_report(text: str | bytes | None) -> dict[ShardKey, int]:
    """The lags in a report that `to_report` made; empty for any other text."""
    try:
        report = msgspec.json.decode(text or b"{}", type=_Report)
    except msgspec.MsgspecError:
        return {}
    return {
        ShardKey(stream, shard): millis for stream, shards in report.lags.items() for shard, millis in shards.items()
    }


class _Report(msgspec.Struct):
    lags: dict[str, dict[str, int]] = msgspec.field(name="millisBehindLatest", default_factory=dict)


class LagNotes:
    """Writes the lag files of one query, and removes old ones.

    Args:
        directory: Returns the directory; called for each file.
    """

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory
        self._written: deque[Path] = deque()

    def write(self, end: Offset, millis_behind: Mapping[ShardKey, int | None]) -> None:
        """Write the lags at the end of a micro-batch. Errors are ignored: the query can do without."""
        with contextlib.suppress(OSError):
            directory = self._directory()
            directory.mkdir(mode=0o700, exist_ok=True)
            if not is_private(directory):
                return
            path = _path(directory, end)
            path.write_bytes(msgspec.json.encode(to_report(millis_behind)))
            self._written.append(path)
            while len(self._written) > _KEPT:
                self._written.popleft().unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the files that are left."""
        with contextlib.suppress(OSError):
            while self._written:
                self._written.popleft().unlink(missing_ok=True)


def read_note(directory: Path, end: Offset) -> dict[ShardKey, int]:
    """The lags that were written for the end of a micro-batch; empty where there is no file."""
    with contextlib.suppress(OSError):
        if is_private(directory):
            return from_report(_path(directory, end).read_bytes())
    return {}


def notes_directory() -> Path:
    """The directory for lag files: the same for all processes of this user on this host."""
    return Path(tempfile.gettempdir()) / f"kinesis-efo-{_USER}"


def is_private(directory: Path) -> bool:
    """Whether only this user can write there: anybody may create the name in a directory for temporary files."""
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == _USER and not status.st_mode & 0o077


def _path(directory: Path, end: Offset) -> Path:
    return directory / f"{hashlib.sha256(msgspec.json.encode(end.to_dict())).hexdigest()[:32]}.json"
