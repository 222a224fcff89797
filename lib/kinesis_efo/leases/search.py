"""Decides which of the leases that a run wants it may take, from scans of the table. Pure, except for the questions about owners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kinesis_efo.errors import AlreadyRunningError, LeaseError, LeaseLostError, LeaseTableError
from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Scan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Free:
    """The lease on a stream can be taken.

    Attributes:
        row: Its present row; None if there is none.
        epoch: The epoch to take it with: higher than that of every row of the stream.
        shards: The rows of the stream's shards, by lease key.
    """

    row: Lease | None
    epoch: int
    shards: Mapping[str, Lease]


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
    present = {each: seen.lease for each, seen in rows.items() if not seen.gone}
    shards = {each: lease for each, lease in present.items() if not lease.is_run}
    return Free(present.get(key), 1 + max((seen.lease.epoch for seen in rows.values()), default=0), shards)


class Search:
    """Looks for the leases that a run wants.

    Args:
        keys: The streams, and the keys of the rows.
        observer: Judges expiry.
        me: The owner name of this run.
        subject: The application, for messages.
        is_sibling: Returns whether an owner is a process of the same program.

    Attributes:
        subject: As given.
        wanted: The streams whose lease should be held.
        refused: The reason for each stream of `extend` that was given up.
    """

    def __init__(
        self, keys: LeaseKeys, observer: Observer, me: str, subject: str, is_sibling: Callable[[str], bool]
    ) -> None:
        self.wanted: frozenset[str] = frozenset()
        self.refused: dict[str, LeaseError] = {}
        self._further: frozenset[str] = frozenset()
        self._epochs: dict[str, int] = {}
        self._keys = keys
        self._observer = observer
        self._me = me
        self.subject = subject
        self._is_sibling = is_sibling

    def extend(self, streams: Collection[str]) -> None:
        """Look for further leases. If one cannot be taken, only who asks for it gets the error."""
        for stream in streams:
            self.refused.pop(stream, None)
        self._further |= frozenset(streams) - self.wanted
        self.wanted |= frozenset(streams)

    def took(self, stream: str, epoch: int) -> None:
        """Note that the run has taken a lease."""
        self._epochs[stream] = epoch
        self._further -= {stream}

    def choose(self, scan: Scan, held: Collection[str], now: float) -> tuple[dict[str, Free], float]:
        """Choose the leases to take.

        Args:
            scan: All rows.
            held: The streams whose lease is held.
            now: Monotonic time at which the scan was complete, seconds.

        Returns:
            The leases to take, by stream; and the time at which one that another run seems to have expires, seconds.

        Raises:
            AlreadyRunningError: Another run holds one, and was seen to renew it.
            LeaseLostError: Another run has held one since this run lost it.
            LeaseTableError: A row cannot be read.
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
            match decide(run_key(stream), rows.get(stream, {}), self._observer, now, me=self._me):
                case Free() as found:
                    self._check_continued(stream, found.row)
                    free[stream] = found
                case Rival(seen) if self._observer.proven_alive(seen, now):
                    self._refuse(stream, self._already_running(stream, seen, now))
                case Rival(seen):
                    expiring.append(self._observer.expires_at(seen))
        if not held:
            # Take the first stream alone: if runs start at the same moment, each would hold some streams, and none all.
            free = dict([] if expiring else [*free.items()][:1])
        return free, min(expiring, default=float("inf"))

    def _refuse(self, stream: str, error: LeaseError) -> None:
        """Give up a stream of `extend`. For any other stream, raise the error: it ends the run."""
        if stream not in self._further:
            raise error
        logger.warning("%s", error)
        self._further -= {stream}
        self.wanted -= {stream}
        self.refused[stream] = error

    def _check_continued(self, stream: str, row: Lease | None) -> None:
        """Raise an error if another run has held the lease while this run was cut off from the table."""
        epoch = self._epochs.get(stream)
        if epoch is not None and row is not None and row.owner != self._me and row.epoch > epoch:
            raise LeaseLostError(
                f"{self.subject}: another run held the lease on stream {stream} while this one could not renew it, "
                "and has ended since. Nothing was lost: start this query again, and run one query per application"
            )

    def _already_running(self, stream: str, rival: Heartbeat, now: float) -> AlreadyRunningError:
        owner = rival.lease.owner or ""
        whose, remedy = readable(owner), "stop that query, or give this one an application of its own"
        if self._is_sibling(owner):
            whose = f"this Spark program itself, by another of its sources (process {whose})"
            remedy = (
                "sources of one program share a run if they can find each other: the driver's log says why these cannot, and sessions of "
                "Spark Connect never do. Write to several tables from one query, with foreachBatch, or give this source an application of its own"
            )
        return AlreadyRunningError(
            f"{self.subject}, stream {stream}, is already read by {whose}, "
            f"last seen {now - rival.changed_at:.0f} s ago renewing lease {rival.lease.key}; {remedy}"
        )
