"""The furthest marks of checkpoints, stored in a run's row, so that a later start detects a checkpoint that went back. Pure.

The entry of a deleted checkpoint stays. Only the newest entries are kept, so no cleanup is needed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kinesis_efo.marks import Mark

KEPT: Final = 16
"""Most checkpoints in one row: about 40 bytes each, of the 1 KB that a write is billed by."""


class CheckpointMark(NamedTuple):
    """The furthest mark of a checkpoint.

    Attributes:
        mark: The mark.
        at: When it was noted, epoch milliseconds.
    """

    mark: Mark
    at: int


def noted(known: tuple[CheckpointMark, ...], mark: Mark, at: int) -> tuple[CheckpointMark, ...]:
    """Add a checkpoint's mark, if it is further than its former one. Returns the newest first.

    Args:
        known: The marks so far.
        mark: The mark.
        at: The present time, epoch milliseconds.
    """
    before = furthest(known, mark.checkpoint)
    if before is not None and before.mark.moved >= mark.moved:
        return known
    others = (each for each in known if each.mark.checkpoint != mark.checkpoint)
    newest = sorted((CheckpointMark(mark, at), *others), key=lambda each: each.at, reverse=True)
    return tuple(newest[:KEPT])


def furthest(known: tuple[CheckpointMark, ...], checkpoint: str) -> CheckpointMark | None:
    """Return the mark of a checkpoint; None if it is not known."""
    return next((each for each in known if each.mark.checkpoint == checkpoint), None)
