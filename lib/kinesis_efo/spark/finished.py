"""Carries word of finished micro-batches from the driver to the reader's process, for the last one before a stop.

Spark tells a reader that a micro-batch is done by asking for the end of the next one. Before a stop it may never ask: not with the
`Trigger.AvailableNow` of Spark 4.0, which runs one micro-batch, and not between two triggers that are far apart. So the reader leaves
a note of the micro-batch that it has planned, and a listener in the driver marks the note when Spark reports the micro-batch's
progress, which it does after it has committed it. Notes are small files on the host of both processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from kinesis_efo.private_directory import PrivateDirectory, notes_directory

_LOOK_EVERY: Final = 0.01


class PlannedNote:
    """The note of the last micro-batch that one reader has planned. Without a listener in the driver there is none.

    Args:
        directory: Where notes are.
        driver: Process id of the JVM that started the reader's process.
    """

    def __init__(self, directory: Path, driver: int) -> None:
        self._directory = directory
        self._driver = driver
        self._planned: str | None = None

    def write(self, end: object) -> None:
        """Note that a micro-batch is planned. Errors are ignored: the query can do without.

        Args:
            end: Its end, as Spark hands it over.
        """
        self.clear()
        with contextlib.suppress(OSError), PrivateDirectory(self._directory) as there:
            if there.names(presence(self._directory, self._driver).name):
                there.write(name := f"{_name(end)}.{os.getpid()}.planned")
                self._planned = name

    @property
    def has_listener(self) -> bool:
        """Whether word can come that the micro-batch is done."""
        return self._planned is not None

    def finished(self, at_most: float) -> bool:
        """Wait for word that the micro-batch is done.

        Args:
            at_most: Seconds; if no word can come, it does not wait.
        """
        deadline = time.monotonic() + at_most
        while self._planned is not None:
            with contextlib.suppress(OSError), PrivateDirectory(self._directory) as there:
                if there.names(_marked(self._planned)):
                    return True
            if time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_EVERY)
        return False

    def clear(self) -> None:
        """Remove the note."""
        planned, self._planned = self._planned, None
        if planned is not None:
            with contextlib.suppress(OSError), PrivateDirectory(self._directory) as there:
                there.remove(planned, _marked(planned))


def mark_finished(directory: Path, end: str | None) -> None:
    """Mark the note of a micro-batch. If two readers have planned the same end, nothing is marked: it may be either's.

    Args:
        directory: Where notes are.
        end: The micro-batch's end in Spark's progress; offsets of other sources have no notes.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError), PrivateDirectory(directory) as there:
        planned = list(filter(_alive, there.names(f"{_name(msgspec.json.decode(end or 'null'))}.*.planned")))
        if len(planned) == 1:
            there.rename(planned[0], _marked(planned[0]))


def planned_note(directory: Callable[[], Path] = notes_directory) -> PlannedNote:
    """The note of the reader in this process, which a JVM has started."""
    return PlannedNote(directory(), os.getppid())


def presence(directory: Path, driver: int) -> Path:
    """The file that says that a driver listens, by the process id of its JVM."""
    return directory / f"listening.{driver}"


def _marked(planned: str) -> str:
    return f"{planned.removesuffix('.planned')}.finished"


def _name(end: object) -> str:
    return hashlib.sha256(msgspec.json.encode(end, order="sorted")).hexdigest()[:32]


def sweep(directory: Path) -> None:
    """Remove what processes left that were killed."""
    with PrivateDirectory(directory) as there:
        for pattern in ("*.planned", "*.finished", "listening.*"):
            there.remove(*(name for name in there.names(pattern) if not _alive(name)))


def _alive(name: str) -> bool:
    """Whether the process that a file is named after still runs."""
    pid = name.removesuffix(".planned").removesuffix(".finished").rpartition(".")[2]
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        pass  # somebody else's, or no file of ours
    return True
