"""Warns once if the lease table tells that the checkpoint which a query goes on from had been further, or that a new query had one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from kinesis_efo.leases.ahead import begun_anew, restored
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Offset

logger = logging.getLogger(__name__)


class Resumption:
    """Compares the table with the checkpoint, whichever is known first: the rows of a stream come with its lease.

    Args:
        keys: Which row belongs to which shard.
        notes: What the runs' rows remember.
        continued: The streams, of all queries of the run, whose rows one of them goes on from, or was warned of. It grows.
    """

    def __init__(self, keys: LeaseKeys, notes: RunNotes, continued: set[str]) -> None:
        self._keys = keys
        self._notes = notes
        self._continued = continued
        self._is_new = False
        self._offset: Offset | None = None
        self._rows: dict[str, Mapping[str, Lease]] = {}
        self._compared: set[str] = set()
        self._said: set[str] = set()

    def goes_on(self, offset: Offset) -> None:
        """Take note of where the query goes on."""
        self._offset = offset
        self._continued |= {key.stream for key in offset}
        for stream in self._rows:
            self._compare(stream)

    def begins(self, streams: Collection[str], *, from_leases: bool) -> None:
        """Take note that the query is new.

        Args:
            streams: What it reads.
            from_leases: Whether it goes on from the rows.
        """
        self._is_new = not from_leases
        if from_leases:
            self._continued |= set(streams)

    def processed(self, streams: Collection[str]) -> None:
        """Warn if a new query has its first micro-batch where others had read, and none of the run goes on from there.

        Not before: of several queries that start together, any may be the first.

        Args:
            streams: What it reads.
        """
        for stream in sorted({*streams} - self._continued if self._is_new else ()):
            self._continued.add(stream)
            if said := begun_anew(stream, self._keys.by_shard(self._rows.get(stream, {}))):
                logger.warning("%s", said)

    def found(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Take note of a stream's rows."""
        self._rows[stream] = rows
        self._compare(stream)

    def _compare(self, stream: str) -> None:
        if self._offset is None or stream in self._compared:
            return
        self._compared.add(stream)
        rows = self._keys.by_shard(self._rows[stream])
        said = restored(self._offset, stream, rows, self._notes.reached(stream))
        # Of a checkpoint with a mark, the row of each stream tells the same.
        about = stream if self._offset.mark is None else self._offset.mark.checkpoint
        if said is not None and about not in self._said:
            self._said.add(about)
            logger.warning("%s", said)
