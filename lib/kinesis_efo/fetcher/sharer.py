"""A query that reads from a fetcher which others may read from, too, as the fetcher sees it."""

from __future__ import annotations

from typing import Protocol

from kinesis_efo.positions import Position, ShardKey, ShardRange


class ElsewhereError(Exception):
    """The rest of a range is to be read elsewhere: by a query apart from the others of its run.

    Attributes:
        left: What is left of the range.
        gone: Whether it is not enough to look again: the shared buffer has lost it.
    """

    def __init__(self, left: ShardRange, *, gone: bool) -> None:
        super().__init__(str(left))
        self.left = left
        self.gone = gone


class Sharer(Protocol):
    """A query that may share shards with others."""

    @property
    def alone(self) -> bool:
        """Whether it does not: no other query reads from this fetcher."""

    def reads_shared(self, key: ShardKey, position: Position) -> bool:
        """Whether it is to read a shard here from a position on."""
