"""Warns once if a query's checkpoint is behind the lease table, or if a new query's streams were read before."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.notes import RunNotes, begun_anew, restored
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Offset

logger = logging.getLogger(__name__)


class Resumption:
    """Compares the lease table with a query's checkpoint. The rows of a stream are read when its lease is taken.

    Args:
        keys: Maps rows to shards.
        notes: The notes in the rows of runs.
        continued: The streams for which no new query is warned: another query of the run continues from their rows, or there was a
            warning. The set is shared by all queries, and added to here.
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
        """Record that the query continues at `offset`, and compare that with the rows."""
        self._offset = offset
        self._continued |= {key.stream for key in offset}
        for stream in self._rows:
            self._compare(stream)

    def begins(self, streams: Collection[str], *, from_leases: bool) -> None:
        """Record that the query is new.

        Args:
            streams: The query's streams.
            from_leases: Whether the query continues from the rows.
        """
        self._is_new = not from_leases
        if from_leases:
            self._continued |= set(streams)

    def processed(self, streams: Collection[str]) -> None:
        """Warn if the query is new, its streams have rows, and no query of the run continues from these.

        Called after the query's first micro-batch, because another query that starts at the same time may continue from the rows.

        Args:
            streams: The query's streams.
        """
        for stream in sorted({*streams} - self._continued if self._is_new else ()):
            self._continued.add(stream)
            if said := begun_anew(stream, self._keys.by_shard(self._rows.get(stream, {}))):
                logger.warning("%s", said)

    def found(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Set the rows of a stream, and compare the query's checkpoint with them."""
        self._rows[stream] = rows
        self._compare(stream)

    def _compare(self, stream: str) -> None:
        if self._offset is None or stream in self._compared:
            return
        self._compared.add(stream)
        rows = self._keys.by_shard(self._rows[stream])
        said = restored(self._offset, stream, rows, self._notes.reached(stream))
        # With a mark, the rows of all streams say the same about the checkpoint.
        about = stream if self._offset.mark is None else self._offset.mark.checkpoint
        if said is not None and about not in self._said:
            self._said.add(about)
            logger.warning("%s", said)
