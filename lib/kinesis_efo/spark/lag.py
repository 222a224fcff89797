"""How far each shard lags, carried from the process that plans a query to the driver's, for the listener.

Spark 4.2+ carries it itself: `reportLatestOffset` ends up in the query's progress. Spark 4.0 carries nothing but offsets; there the
planner leaves a small file beside them, on the host that both processes run on, named after the offset that the progress will show.
Relies on positions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kinesis_efo.positions import Offset, ShardKey

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
        directory: Where; `notes_directory()`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: deque[Path] = deque()

    def write(self, end: Offset, millis_behind: Mapping[ShardKey, int | None]) -> None:
        """Note the lags at the end of a micro-batch. What goes wrong with a note is no concern of the query's."""
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path = _path(self._directory, end)
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
    try:
        return from_report(_path(directory, end).read_bytes())
    except OSError:
        return {}


def notes_directory() -> Path:
    """A directory of this user's, the same for all processes on this host."""
    return Path(tempfile.gettempdir()) / f"kinesis-efo-{os.getuid()}"


def _path(directory: Path, end: Offset) -> Path:
    return directory / f"{hashlib.sha256(msgspec.json.encode(end.to_dict())).hexdigest()[:32]}.json"
