"""How far each shard lags, carried from the process that plans a query to the driver's, for the listener.

Spark 4.2+ carries it itself: `reportLatestOffset` ends up in the query's progress. Spark 4.0 carries nothing but offsets; there the
planner leaves a small file beside them, on the host that both processes run on, named after the offset that the progress will show.
Relies on positions.
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
"""Micro-batches whose files stay: progress is told a moment after the next one was planned."""


def to_report(millis_behind: Mapping[ShardKey, int | None]) -> dict[str, Any]:
    """Lags in milliseconds as plain data, by stream and shard; shards that said nothing yet are left out."""
    streams: dict[str, dict[str, int]] = {}
    for key, millis in sorted(millis_behind.items()):
        if millis is not None:
            streams.setdefault(key.stream, {})[key.shard] = millis
    return {"millisBehindLatest": streams}


def from_report(text: str | bytes | None) -> dict[ShardKey, int]:
    """What `to_report` made, as JSON; nothing where it is something else."""
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
    """The files of one query, written by the process that plans it.

    Args:
        directory: Where; `notes_directory` says so when the first one is written.
    """

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory
        self._written: deque[Path] = deque()

    def write(self, end: Offset, millis_behind: Mapping[ShardKey, int | None]) -> None:
        """Note the lags at the end of a micro-batch. What goes wrong with a note is no concern of the query's."""
        with contextlib.suppress(OSError):
            directory = self._directory()
            directory.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(directory):
                return
            path = _path(directory, end)
            path.write_bytes(msgspec.json.encode(to_report(millis_behind)))
            self._written.append(path)
            while len(self._written) > _KEPT:
                self._written.popleft().unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what is left."""
        with contextlib.suppress(OSError):
            while self._written:
                self._written.popleft().unlink(missing_ok=True)


def read_note(directory: Path, end: Offset) -> dict[ShardKey, int]:
    """The lags that were noted for the end of a micro-batch; empty where there is no note."""
    with contextlib.suppress(OSError):
        if _is_private(directory):
            return from_report(_path(directory, end).read_bytes())
    return {}


def notes_directory() -> Path:
    """A directory of this user's, the same for all processes on this host."""
    return Path(tempfile.gettempdir()) / f"kinesis-efo-{_USER}"


def _is_private(directory: Path) -> bool:
    """Whether nobody else can have put anything there: a directory for temporary files is everybody's."""
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == _USER and not status.st_mode & 0o077


def _path(directory: Path, end: Offset) -> Path:
    return directory / f"{hashlib.sha256(msgspec.json.encode(end.to_dict())).hexdigest()[:32]}.json"
