"""Passes the lag of each shard, and the size of each micro-batch, from the planner to the query listener in the driver.

With Spark 4.2+, the query's progress includes the result of `reportLatestOffset`. In earlier versions, the progress only has offsets, so
the planner writes a small file for the driver, which is on the same host. The file's name is derived from the micro-batch's end offset.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from kinesis_efo.positions import Offset, ShardKey
from kinesis_efo.processes import PrivateDirectory

_KEPT: Final = 4
"""Maximum number of report files. Several are needed, because Spark reports a micro-batch's progress after planning the next one."""


class Report(msgspec.Struct, frozen=True):
    """The planner's report of a micro-batch. With Spark 4.2+, the query's progress contains it as JSON, in `latestOffset`."""

    # The known lags in milliseconds, by stream and shard
    lags: dict[str, dict[str, int]] = msgspec.field(name="millisBehindLatest", default_factory=dict)
    bytes: int | None = None  # Size of the micro-batch as Kinesis sent it; None if unknown
    # Estimated bytes of data in the micro-batch's records, as counted by `maxBytesPerTrigger`; None if unknown
    data: int | None = msgspec.field(name="dataBytes", default=None)

    @classmethod
    def parse(cls, text: str | builtins.bytes | None) -> Report:
        """Parse a report from JSON. Returns an empty report if the text is not the JSON of a report."""
        try:
            return msgspec.json.decode(text or b"{}", type=cls)
        except msgspec.MsgspecError:
            return cls()

    @property
    def millis_behind(self) -> dict[ShardKey, int]:
        """The lag of each shard in milliseconds."""
        return {ShardKey(stream, shard): millis for stream, lags in self.lags.items() for shard, millis in lags.items()}


class Lag:
    """The lags of a query's shards, and the size of its last planned micro-batch.

    `directory` returns the directory of the report files, which are used with Spark before 4.2.
    """

    def __init__(self, directory: Callable[[], Path]) -> None:
        self.size: tuple[int | None, int | None] = (None, None)  # The sizes for `Report.bytes` and `Report.data`
        self._millis: dict[ShardKey, int | None] = {}
        self._directory = directory
        self._written: deque[str] = deque()

    @property
    def at_tips(self) -> bool:
        """Whether the reported lag of every shard is 0. False if no lag was reported."""
        return bool(self._millis) and all(millis == 0 for millis in self._millis.values())

    @property
    def report(self) -> Report:
        """The current lag of each shard, and the size of the last micro-batch."""
        streams: dict[str, dict[str, int]] = {}
        for key, millis in sorted(self._millis.items()):
            if millis is not None:
                streams.setdefault(key.stream, {})[key.shard] = millis
        return Report(streams, *self.size)

    def as_data(self) -> dict[str, Any] | None:
        """The report as a dictionary, for Spark; None before the run has reported lags."""
        return msgspec.to_builtins(self.report) if self._millis else None

    def update(self, changes: Iterable[tuple[ShardKey, int | None]], present: Container[object] | None = None) -> None:
        """Apply changed lags, in milliseconds. If `present` is given, drop all shards that are not in it."""
        self._millis.update(changes)
        if present is not None:
            self._millis = {key: millis for key, millis in self._millis.items() if key in present}

    def write(self, end: Offset) -> None:
        """Write the report of the micro-batch that ends at `end` to a file, and remove old files. Errors are ignored."""
        with contextlib.suppress(OSError), PrivateDirectory(self._directory()) as there:
            there.write(name := _name(end), msgspec.json.encode(self.report))
            self._written.append(name)
            while len(self._written) > _KEPT:
                there.remove(self._written.popleft())

    def clear(self) -> None:
        """Remove all files that this object has written."""
        with contextlib.suppress(OSError), PrivateDirectory(self._directory()) as there:
            there.remove(*self._written)
            self._written.clear()


def read_note(directory: Path, end: Offset) -> Report:
    """Read the report of the micro-batch that ends at `end`. Returns an empty report if there is no file."""
    with (
        contextlib.suppress(OSError),
        PrivateDirectory(directory) as there,
        os.fdopen(there.open(_name(end), os.O_RDONLY), "rb") as file,
    ):
        return Report.parse(file.read())
    return Report()


def _name(end: Offset) -> str:
    # Only use the fields that planner and listener both have: in Spark's log, the end of micro-batch 0 has additional fields.
    known = {name: value for name, value in end.to_dict().items() if name in ("streams", "mark")}
    return f"{hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:32]}.json"
