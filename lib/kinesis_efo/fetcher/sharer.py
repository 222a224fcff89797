"""The interface of a fetcher to the queries that share it."""

from __future__ import annotations

from typing import Protocol

from kinesis_efo.positions import Position, ShardKey, ShardRange


class ElsewhereError(Exception):
    """The rest of a range, `left`, has to be read from another fetcher, because the query catches up or has caught up."""

    def __init__(self, left: ShardRange) -> None:
        super().__init__(str(left))
        self.left = left


class Sharer(Protocol):
    """A query that may share a fetcher."""

    @property
    def alone(self) -> bool:
        """Whether no other query reads from this fetcher."""

    def reads_shared(self, key: ShardKey, position: Position) -> bool:
        """Whether the query has to read a shard from this fetcher from a position on."""
