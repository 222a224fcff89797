"""Passes the lag of each shard, and the bytes of the micro-batch, from the planner to the listener in the driver.

With Spark 4.2+, the result of `reportLatestOffset` is in the query's progress. With Spark 4.0 the progress has only offsets, so the
planner writes a small file, which is named after the end offset. The planner and the driver are on one host.
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
"""The number of files that are kept; several, because Spark reports a micro-batch's progress after it has planned the next one."""


class Report(msgspec.Struct, frozen=True):
    """The planner's report of a micro-batch. In the progress it is `latestOffset`, as JSON.

    `lags` has the milliseconds by which each shard is behind its tip, by stream and shard, if known. `bytes` is the size of the micro-batch
    as Kinesis sent it, and `data` the estimated bytes of its records' data, which `maxBytesPerTrigger` counts; None if unknown.
    """

    lags: dict[str, dict[str, int]] = msgspec.field(name="millisBehindLatest", default_factory=dict)
    bytes: int | None = None
    data: int | None = msgspec.field(name="dataBytes", default=None)

    @classmethod
    def parse(cls, text: str | builtins.bytes | None) -> Report:
        """Parse the JSON of a report; any other text gives an empty report."""
        try:
            return msgspec.json.decode(text or b"{}", type=cls)
        except msgspec.MsgspecError:
            return cls()

    @property
    def millis_behind(self) -> dict[ShardKey, int]:
        """The lag of each shard in milliseconds."""
        return {ShardKey(stream, shard): millis for stream, lags in self.lags.items() for shard, millis in lags.items()}


class Lag:
    """The lags of a query's shards, and the size of its last planned micro-batch: its bytes, and the estimated bytes of its data.

    `directory` returns the directory of the files for Spark 4.0.
    """

    def __init__(self, directory: Callable[[], Path]) -> None:
        self.size: tuple[int | None, int | None] = (None, None)
        self._millis: dict[ShardKey, int | None] = {}
        self._directory = directory
        self._written: deque[str] = deque()

    @property
    def at_tips(self) -> bool:
        """Whether all shards are known to be read up to their tips."""
        return bool(self._millis) and all(millis == 0 for millis in self._millis.values())

    @property
    def report(self) -> Report:
        """The lags and sizes that are known so far."""
        streams: dict[str, dict[str, int]] = {}
        for key, millis in sorted(self._millis.items()):
            if millis is not None:
                streams.setdefault(key.stream, {})[key.shard] = millis
        return Report(streams, *self.size)

    def as_data(self) -> dict[str, Any] | None:
        """The report as plain data; None as long as no shard is known."""
        return msgspec.to_builtins(self.report) if self._millis else None

    def update(self, changes: Iterable[tuple[ShardKey, int | None]], present: Container[object] | None = None) -> None:
        """Note changed lags, in milliseconds. If `present` is given, forget all shards that are not in it."""
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
        """Remove the files that this object has written and not removed yet."""
        with contextlib.suppress(OSError), PrivateDirectory(self._directory()) as there:
            there.remove(*self._written)
            self._written.clear()


def read_note(directory: Path, end: Offset) -> Report:
    """Read the report of the micro-batch that ends at `end`; empty if there is no file."""
    with (
        contextlib.suppress(OSError),
        PrivateDirectory(directory) as there,
        os.fdopen(there.open(_name(end), os.O_RDONLY), "rb") as file,
    ):
        return Report.parse(file.read())
    return Report()


def _name(end: Offset) -> str:
    # Spark's log has more than this about micro-batch 0, such as the horizons at its begin.
    known = {name: value for name, value in end.to_dict().items() if name in ("streams", "mark")}
    return f"{hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:32]}.json"
