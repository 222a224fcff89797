"""The source with a watch: each of its processes notes what its calls took, in a file of its own.

Spark's workers and the planner import this module; `benchmarks.profile` reads the notes.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from kinesis_efo.spark import stream_reader
from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.spark.source import KinesisEfoSource
from kinesis_efo.spark.stream_reader import KinesisStreamReader
from kinesis_efo.tasks.client import RangePayloads
from kinesis_efo.tasks.ranges import RangeReader

_T = TypeVar("_T")

NAME: Final = "kinesis-efo-profiled"
DIRECTORY: Final = "profile.directory"
PLANNER, RECEIVING, DECODING, HANDING_OVER, GARBAGE = (
    "planner", "worker: receiving", "worker: decoding", "worker: handing rows over", "worker: garbage collection",
)  # fmt: skip

_spent: defaultdict[str, float] = defaultdict(float)
"""Seconds by stretch that this process has not noted yet."""


class Note(NamedTuple):
    """What one stretch of a process took.

    Attributes:
        at: When it ended, seconds since the epoch.
        stretch: Its name.
        wall: Seconds.
        cpu: Seconds of CPU of its thread, or None where it was not measured.
    """

    at: float
    stretch: str
    wall: float
    cpu: float | None = None


def notes(directory: Path) -> list[Note]:
    """The notes of all processes."""
    return [Note(*json.loads(line)) for file in directory.iterdir() for line in file.read_text().splitlines()]


class ProfiledSource(KinesisEfoSource):
    """The source, with the option `profile.directory`: where notes go."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name != DIRECTORY})
        self._directory = Path(options[DIRECTORY])

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: Any) -> ProfiledReader:
        reader = super().streamReader(schema)
        return ProfiledReader(reader._options, reader._manifest, self._directory)


class ProfiledReader(KinesisStreamReader):
    """Notes what Spark's calls take: in the planner each one, in workers the stretches of a task."""

    def __init__(self, options: Any, manifest: Any, directory: Path) -> None:
        super().__init__(options, manifest)
        self._directory = directory

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_directory": self._directory}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        return self._timed("latestOffset", lambda: super(ProfiledReader, self).latestOffset(start, limit))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[KinesisPartition]:
        return self._timed("partitions", lambda: super(ProfiledReader, self).partitions(start, end))

    def commit(self, end: dict[str, Any]) -> None:
        self._timed("commit", lambda: super(ProfiledReader, self).commit(end))

    def read(self, partition: KinesisPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        _watch()
        begin, before = time.monotonic(), _spent[RECEIVING]
        handing_over = 0.0
        for batch in super().read(partition):
            given = time.monotonic()
            yield batch
            handing_over += time.monotonic() - given
        _spent[HANDING_OVER] += handing_over
        # A worker without a collection says so, too.
        _spent[GARBAGE] += 0.0
        _spent[DECODING] += time.monotonic() - begin - handing_over - (_spent[RECEIVING] - before)
        # The garbage of this task is collected after it, and noted with the next one.
        self._write(*(Note(time.time(), stretch, seconds) for stretch, seconds in _spent.items()))
        _spent.clear()

    def _timed(self, call: str, work: Callable[[], _T]) -> _T:
        wall, cpu = time.monotonic(), time.thread_time()
        try:
            return work()
        finally:
            self._write(Note(time.time(), f"{PLANNER}: {call}", time.monotonic() - wall, time.thread_time() - cpu))

    def _write(self, *said: Note) -> None:
        with (self._directory / str(os.getpid())).open("a") as file:
            file.writelines(json.dumps(note) + "\n" for note in said)


class _TimedRangeReader(RangeReader):
    """Times how long a task waits for payloads."""

    def read(self, *arguments: Any) -> Iterator[RangePayloads]:
        for wanted, payloads in _timed_steps(super().read(*arguments)):
            yield RangePayloads(wanted, _timed_steps(iter(payloads)))


def _timed_steps(steps: Iterator[_T]) -> Iterator[_T]:
    while True:
        begin = time.monotonic()
        try:
            step = next(steps)
        except StopIteration:
            return
        finally:
            _spent[RECEIVING] += time.monotonic() - begin
        yield step


def _watch() -> None:
    """Time receiving and the garbage collector in this process, a worker."""
    parts = vars(stream_reader)
    if parts["RangeReader"] is _TimedRangeReader:
        return
    parts["RangeReader"] = _TimedRangeReader
    begun = 0.0

    def collecting(phase: str, _: Mapping[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.monotonic()
        else:
            _spent[GARBAGE] += time.monotonic() - begun

    gc.callbacks.append(collecting)
