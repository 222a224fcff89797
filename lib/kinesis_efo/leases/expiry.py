"""Detects expired leases: the counter has not changed for the lease timeout, or the owner's process has provably ended.

The table does not contain renewal times. Like the KCL, an observer measures with its monotonic clock how long a row stays unchanged. The
only I/O is in the callback `gone`, which checks processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A lease row as of the last scan that contained it, and when the row changed. Times are in monotonic seconds."""

    lease: Lease
    owner_since: float  # When a scan first contained the current owner
    changed_at: float  # When a scan first contained the row's current counter
    unchanged_at: float  # When the last scan with the previous counter was complete
    gone: bool = False  # Whether the newest scan did not contain the row


class Observer:
    """Detects lease rows that stopped changing, by comparing scans of the table. All times are in monotonic seconds.

    A lease expires after `lease_timeout` seconds without a change. `gone` returns whether an owner's process has certainly ended; it is
    called once per owner and scan.
    """

    def __init__(self, lease_timeout: float, gone: Callable[[str], bool] = lambda _owner: False) -> None:
        self._timeout = lease_timeout
        self._gone = gone
        self._ended: frozenset[str] = frozenset()
        self._scanned_at = 0.0
        self._heartbeats: dict[str, Heartbeat] = {}

    def observe(self, leases: Mapping[str, Lease], now: float) -> Mapping[str, Heartbeat]:
        """Process the rows of a scan that was complete at `now`. Returns a heartbeat for each row, by lease key.

        A row that is observed for the first time counts as just renewed. The heartbeat of a deleted row with an owner is retained until the
        lease would have expired: if the row was deleted by hand, the owner may still be running.
        """
        owners = {lease.owner for lease in leases.values() if lease.owner is not None}
        self._ended = frozenset(filter(self._gone, owners))
        kept = {
            key: replace(old, gone=True)
            for key, old in self._heartbeats.items()
            if key not in leases and old.lease.owner is not None and not self.quiet(old, now)
        }
        self._heartbeats = kept | {key: self._sight(lease, now) for key, lease in leases.items()}
        self._scanned_at = now
        return self._heartbeats

    def _sight(self, lease: Lease, now: float) -> Heartbeat:
        old = self._heartbeats.get(lease.key)
        if old is None or old.lease.owner != lease.owner:
            return Heartbeat(lease, now, now, now)
        # A row that was deleted and exists again was just written, even if its counter is the same.
        moved = old.gone or old.lease.counter != lease.counter
        changed_at, unchanged_at = (now, self._scanned_at) if moved else (old.changed_at, old.unchanged_at)
        return Heartbeat(lease, old.owner_since, changed_at, unchanged_at)

    def quiet(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether a lease has expired: its owner and counter have not changed for the lease timeout, or its owner's process has ended."""
        return now - heartbeat.changed_at >= self._timeout or heartbeat.lease.owner in self._ended

    def expires_at(self, heartbeat: Heartbeat) -> float:
        """Return when the lease expires, unless its row changes before then."""
        return heartbeat.changed_at + self._timeout

    def proven_alive(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether an owner is certainly alive: observed for at least a lease timeout, with a renewal within the last 2/3 of a timeout."""
        return (
            now - heartbeat.owner_since >= self._timeout
            and heartbeat.changed_at > heartbeat.owner_since
            and now - heartbeat.unchanged_at < self._timeout * 2 / 3
        )
