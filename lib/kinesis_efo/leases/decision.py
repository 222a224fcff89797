"""Decides what to do for the lease on one stream, from the rows that were seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Free:
    """The lease can be taken.

    Attributes:
        row: Its row as it is; None if there is none.
        epoch: The epoch to take it with: above that of every row of the stream.
    """

    row: Lease | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Rival:
    """Another run may be alive: its row has an owner, and was not quiet for long enough.

    Attributes:
        seen: What was seen of that row; of several, of the one that changed last.
    """

    seen: Heartbeat


def decide(key: str, rows: Mapping[str, Heartbeat], observer: Observer, now: float, *, me: str) -> Free | Rival:
    """Tell whether the lease on a stream is free.

    Rows of shards count as well: a KCL application owns those instead.

    Args:
        key: Key of the run's row.
        rows: The run's row and those of the stream's shards, by lease key.
        observer: Judges expiry.
        now: Monotonic time, seconds.
        me: Our owner. A row that names it is one that we lost while the table was out of reach.
    """
    owned = [seen for seen in rows.values() if seen.lease.owner not in (None, me) and not observer.quiet(seen, now)]
    if owned:
        return Rival(max(owned, key=lambda seen: seen.changed_at))
    mine = rows.get(key)
    row = mine.lease if mine is not None and not mine.gone else None
    return Free(row, 1 + max((seen.lease.epoch for seen in rows.values()), default=0))
