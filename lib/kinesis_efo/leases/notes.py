"""Notes for later runs in a run's rows: whether Kinesis distributes a stream's records itself, and the furthest marks of checkpoints.

The notes are written when a lease is renewed or released. A later run compares the marks with a checkpoint to detect that this went back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.row import Lease
from kinesis_efo.marks import Mark

KEPT: Final = 16
"""Maximum number of marks in one row. Each takes about 40 bytes, and DynamoDB bills writes per 1 KB. The mark of a deleted checkpoint stays
until newer marks take its place."""


class RunNotes:
    """The notes of one run. Streams are named by their logical names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._distributed: set[str] = set()
        self._found: dict[str, tuple[CheckpointMark, ...]] = {}
        self._planned: dict[str, tuple[Mark, int]] = {}

    def found(self, stream: str, row: Lease) -> None:
        """Read the notes of earlier runs from the row of a stream whose lease was just taken."""
        if row.distributed:
            self._distributed.add(stream)
        self._found[stream] = row.marks

    def was_distributed(self, stream: str) -> bool:
        """Whether this or an earlier run noted that Kinesis distributes a stream's records itself. The stream's lease must be held."""
        return stream in self._distributed

    def note_distributed(self, stream: str) -> None:
        """Note that Kinesis distributes a stream's records itself. The next renewal of the lease writes this note."""
        self._distributed.add(stream)

    def reached(self, stream: str) -> tuple[CheckpointMark, ...]:
        """Return the marks that the row of a stream had when its lease was taken; earlier runs wrote them."""
        return self._found.get(stream, ())

    def note_mark(self, mark: Mark) -> None:
        """Note that a checkpoint has reached a mark. The next renewal writes this note. May be called in any thread."""
        self._planned[mark.checkpoint] = mark, round(self._clock.time() * 1000)

    def stored_in(self, stream: str, row: Lease) -> Lease:
        """Return the row of a stream with these notes added."""
        marks = row.marks
        for mark, at in list(self._planned.values()):
            marks = noted(marks, mark, at)
        return replace(row, distributed=row.distributed or stream in self._distributed, marks=marks)


def noted(known: tuple[CheckpointMark, ...], mark: Mark, at: int) -> tuple[CheckpointMark, ...]:
    """Add a mark, noted at `at` (epoch milliseconds), if it is further than its checkpoint's known mark; returns all, the newest first."""
    before = furthest(known, mark.checkpoint)
    if before is not None and before.mark.moved >= mark.moved:
        return known
    others = (each for each in known if each.mark.checkpoint != mark.checkpoint)
    newest = sorted((CheckpointMark(mark, at), *others), key=lambda each: each.at, reverse=True)
    return tuple(newest[:KEPT])


def furthest(known: tuple[CheckpointMark, ...], checkpoint: str) -> CheckpointMark | None:
    """Return the known mark of a checkpoint; None if there is none."""
    return next((each for each in known if each.mark.checkpoint == checkpoint), None)
