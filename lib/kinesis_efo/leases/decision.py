"""Decides from the rows of a stream whether its lease is free. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Free:
    """The lease can be taken.

    Attributes:
        row: Its present row; None if there is none.
        epoch: The epoch to take it with: higher than that of every row of the stream.
    """

    row: Lease | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Rival:
    """Another run may be alive: its row has an owner and changed lately.

    Attributes:
        seen: The heartbeat of that row; of several, the one that changed last.
    """

    seen: Heartbeat


def decide(key: str, rows: Mapping[str, Heartbeat], observer: Observer, now: float, *, me: str) -> Free | Rival:
    """Decide whether the lease on a stream is free.

    Rows of shards count, too, because a KCL application owns those.

    Args:
        key: Key of the run's row.
        rows: The run's row and those of the stream's shards, by lease key.
        observer: Judges expiry.
        now: Monotonic time, seconds.
        me: The owner name of this run. A row with it is one that was lost while the table was out of reach.
    """
    owned = [seen for seen in rows.values() if seen.lease.owner not in (None, me) and not observer.quiet(seen, now)]
    if owned:
        return Rival(max(owned, key=lambda seen: seen.changed_at))
    mine = rows.get(key)
    row = mine.lease if mine is not None and not mine.gone else None
    return Free(row, 1 + max((seen.lease.epoch for seen in rows.values()), default=0))
