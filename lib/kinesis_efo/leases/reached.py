"""How far checkpoints have come, as a run's row keeps it: so that a start learns that its checkpoint had been further. Pure.

A checkpoint that is deleted leaves its entry behind. Only the newest are kept, so that none has to be cleaned up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kinesis_efo.marks import Mark

KEPT: Final = 16
"""Checkpoints that one row remembers: about 40 bytes each, of the 1 KB that a write is billed by."""


class Reached(NamedTuple):
    """The furthest mark that a checkpoint was seen with.

    Attributes:
        mark: The mark.
        at: When, epoch milliseconds.
    """

    mark: Mark
    at: int


def noted(known: tuple[Reached, ...], mark: Mark, at: int) -> tuple[Reached, ...]:
    """What is known once a checkpoint has a mark: forwards only, the newest first.

    Args:
        known: What was known before.
        mark: The mark.
        at: The present time, epoch milliseconds.
    """
    before = furthest(known, mark.checkpoint)
    if before is not None and before.mark.moved >= mark.moved:
        return known
    others = (each for each in known if each.mark.checkpoint != mark.checkpoint)
    newest = sorted((Reached(mark, at), *others), key=lambda each: each.at, reverse=True)
    return tuple(newest[:KEPT])


def furthest(known: tuple[Reached, ...], checkpoint: str) -> Reached | None:
    """How far a checkpoint has come; None if that is not known."""
    return next((each for each in known if each.mark.checkpoint == checkpoint), None)
