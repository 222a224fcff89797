"""Detects expired leases: the counter has not changed for the lease timeout, or the owner's process has provably ended.

The table does not contain renewal times. Like the KCL, an observer measures with its monotonic clock how long a row stays unchanged. The
only I/O is in the function `gone`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A lease row as last seen. Times are in monotonic seconds."""

    lease: Lease
    owner_since: float  # When its current owner was first seen
    changed_at: float  # When it last changed
    gone: bool = False  # Whether it was deleted


class Observer:
    """Compares each scan with earlier ones, and detects lease rows that stopped changing. All times are in monotonic seconds.

    A lease expires after `lease_timeout` seconds without a change. `gone` returns whether an owner's process has certainly ended; it is
    called once per owner and scan.
    """

    def __init__(self, lease_timeout: float, gone: Callable[[str], bool] = lambda _owner: False) -> None:
        self._timeout = lease_timeout
        self._gone = gone
        self._ended: frozenset[str] = frozenset()
        self._heartbeats: dict[str, Heartbeat] = {}

    def observe(self, leases: Mapping[str, Lease], now: float) -> Mapping[str, Heartbeat]:
        """Process all rows of a scan that was complete at `now`. Returns all heartbeats, by lease key.

        A row that is seen for the first time counts as renewed now. A deleted row with an owner is remembered until it would have expired:
        the owner may still be running, unaware that the row was deleted by hand.
        """
        owners = {lease.owner for lease in leases.values() if lease.owner is not None}
        self._ended = frozenset(filter(self._gone, owners))
        kept = {
            key: replace(old, gone=True)
            for key, old in self._heartbeats.items()
            if key not in leases and old.lease.owner is not None and not self.quiet(old, now)
        }
        self._heartbeats = kept | {key: self._sight(lease, now) for key, lease in leases.items()}
        return self._heartbeats

    def _sight(self, lease: Lease, now: float) -> Heartbeat:
        old = self._heartbeats.get(lease.key)
        if old is None or old.lease.owner != lease.owner:
            return Heartbeat(lease, now, now)
        # Count a deleted row that exists again as just written.
        moved = old.gone or old.lease.counter != lease.counter
        return Heartbeat(lease, old.owner_since, now if moved else old.changed_at)

    def quiet(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether the owner and the counter of a row have not changed for the lease timeout, or its owner has ended."""
        return now - heartbeat.changed_at >= self._timeout or heartbeat.lease.owner in self._ended

    def expires_at(self, heartbeat: Heartbeat) -> float:
        """Return the time at which the row's lease expires if the row does not change before then."""
        return heartbeat.changed_at + self._timeout

    def proven_alive(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether the owner was observed for at least a lease timeout, and renewed within the last two thirds of a timeout."""
        return (
            now - heartbeat.owner_since >= self._timeout
            and heartbeat.changed_at > heartbeat.owner_since
            and now - heartbeat.changed_at < self._timeout * 2 / 3
        )
