"""Decides, from scans of the table, which leases a run may acquire. The only I/O is to check the owners' processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf

from kinesis_efo.errors import AlreadyRunningError, LeaseError, LeaseLostError, LeaseTableError
from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Scan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Free:
    """A lease that can be acquired."""

    row: Lease | None  # The current lease row, if any
    epoch: int  # The new epoch, higher than the epoch of every row of the stream
    shards: Mapping[str, Lease]  # The rows of the stream's shards, by lease key


class Search:
    """Selects which leases on the `wanted` streams a run can acquire now. `subject` is the application or its table, for messages."""

    def __init__(
        self, keys: LeaseKeys, observer: Observer, me: str, subject: str, is_sibling: Callable[[str], bool]
    ) -> None:
        self.wanted: frozenset[str] = frozenset()
        self.refused: dict[str, LeaseError] = {}  # Errors for streams added by `extend` whose leases cannot be acquired
        self._further: frozenset[str] = frozenset()
        self._epochs: dict[str, int] = {}
        self._keys = keys
        self._observer = observer
        self._me = me
        self.subject = subject
        self._is_sibling = is_sibling

    def extend(self, streams: Collection[str]) -> None:
        """Add streams. If the lease on an added stream cannot be acquired, the run continues, and `refused` contains the error."""
        for stream in streams:
            self.refused.pop(stream, None)
        self._further |= frozenset(streams) - self.wanted
        self.wanted |= frozenset(streams)

    def record_acquired(self, stream: str, epoch: int) -> None:
        self._epochs[stream] = epoch
        self._further -= {stream}

    def choose(self, scan: Scan, held: Collection[str], now: float) -> tuple[dict[str, Free], float]:
        """Select the leases to acquire on streams that are not `held` yet. `scan` was complete at `now`, in monotonic seconds.

        Returns these leases by stream, and the earliest time at which another run's lease may expire. Raises an error if another run renews
        a wanted lease, or acquired it after this run had lost it, or if a lease row cannot be read.
        """
        for key in sorted(scan.unreadable):
            named = ":" in key or key.startswith("shardId-")
            if named and (stream := self._keys.stream(key)) in self.wanted:
                self._refuse(stream, LeaseTableError(f"{scan.unreadable[key]}; correct or delete the row"))
        rows: dict[str, dict[str, Heartbeat]] = {}
        for key, seen in self._observer.observe(scan.leases, now).items():
            if (stream := self._keys.stream(key)) is not None:
                rows.setdefault(stream, {})[key] = seen
        free: dict[str, Free] = {}
        expiring: list[float] = []
        for stream in sorted(self.wanted.difference(held)):
            match self.decide(stream, rows.get(stream, {}), now):
                case Free() as found:
                    self._check_continued(stream, found.row)
                    free[stream] = found
                case seen if self._observer.proven_alive(seen, now):
                    self._refuse(stream, self._already_running(stream, seen, now))
                case seen:
                    expiring.append(self._observer.expires_at(seen))
        if not held:
            # Acquire a single lease first. Otherwise, two runs that start together could each get some of the leases, and deadlock.
            free = dict([] if expiring else [*free.items()][:1])
        return free, min(expiring, default=inf)

    def decide(self, stream: str, rows: Mapping[str, Heartbeat], now: float) -> Free | Heartbeat:
        """Return a stream's lease if it is free; otherwise, the most recently changed row of an owner that may be alive.

        Owners of shard rows also count: these are KCL applications. A row that this run owns, but failed to renew, is free.
        """
        others = [seen for seen in rows.values() if seen.lease.owner not in (None, self._me)]
        alive = [seen for seen in others if not self._observer.quiet(seen, now)]
        if alive:
            return max(alive, key=lambda seen: seen.changed_at)
        present = {key: seen.lease for key, seen in rows.items() if not seen.gone}
        shards = {key: lease for key, lease in present.items() if not lease.is_run}
        return Free(
            present.get(run_key(stream)), 1 + max((seen.lease.epoch for seen in rows.values()), default=0), shards
        )

    def _refuse(self, stream: str, error: LeaseError) -> None:
        """Give up on a stream added by `extend`. For any other stream, raise the error, which ends the run."""
        if stream not in self._further:
            raise error
        logger.warning("%s", error)
        self._further -= {stream}
        self.wanted -= {stream}
        self.refused[stream] = error

    def _check_continued(self, stream: str, row: Lease | None) -> None:
        """Raise an error if another run had the lease while this run was disconnected from the table."""
        epoch = self._epochs.get(stream)
        if epoch is not None and row is not None and row.owner != self._me and row.epoch > epoch:
            raise LeaseLostError(
                f"{self.subject}: another run owned the lease on stream {stream} while this one could not renew it, "
                "and has ended since. Nothing was lost: restart this query, and run one query per application"
            ).about(stream)

    def _already_running(self, stream: str, rival: Heartbeat, now: float) -> AlreadyRunningError:
        owner = rival.lease.owner or ""
        whose, remedy = readable(owner), "stop that query, or use a separate application for this one"
        if self._is_sibling(owner):
            whose = f"this Spark program itself, by another of its sources (process {whose})"
            remedy = (
                "sources of one program share a run if they can find each other: the driver's log says why these cannot, and sessions of "
                "Spark Connect never do. Write to several tables from one query, with foreachBatch, or use a separate application for "
                "this source"
            )
        return AlreadyRunningError(
            f"{self.subject}, stream {stream}, is already read by {whose}, "
            f"last seen {now - rival.changed_at:.0f} s ago renewing lease {rival.lease.key}",
            remedy=remedy,
        ).about(stream)
