"""Detects expired leases: the counter did not change for the lease timeout, or the owner's process has provably ended.

The table contains no times, so an observer measures with its own monotonic clock how long a row has not changed (KCL's rule). Does
no I/O, except in the function `gone`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A row as last seen, the times at which its owner was first seen and the row last changed, and whether the row has left the table."""

    lease: Lease
    owner_since: float
    changed_at: float
    gone: bool = False


class Observer:
    """Remembers the rows of earlier scans and detects those that stopped changing. All times are monotonic, in seconds.

    A lease counts as expired after `lease_timeout` without change. `gone` returns whether an owner's process has certainly ended; it is
    called once per owner and scan.
    """

    def __init__(self, lease_timeout: float, gone: Callable[[str], bool] = lambda _owner: False) -> None:
        self._timeout = lease_timeout
        self._gone = gone
        self._ended: frozenset[str] = frozenset()
        self._heartbeats: dict[str, Heartbeat] = {}

    def observe(self, leases: Mapping[str, Lease], now: float) -> Mapping[str, Heartbeat]:
        """Note all rows of a scan that was complete at the time `now`; returns all heartbeats, by lease key.

        A row that is seen for the first time counts as renewed now. A row with an owner that has left the table is remembered until it
        would have expired, because its owner may not know yet that the row was deleted by hand.
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
        # A row that is in the table again was written just now.
        moved = old.gone or old.lease.counter != lease.counter
        return Heartbeat(lease, old.owner_since, now if moved else old.changed_at)

    def quiet(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether the owner and the counter of a row have not changed for the lease timeout, or its owner has ended."""
        return now - heartbeat.changed_at >= self._timeout or heartbeat.lease.owner in self._ended

    def expires_at(self, heartbeat: Heartbeat) -> float:
        """Return the time at which the row's lease expires if the row does not change before then."""
        return heartbeat.changed_at + self._timeout

    def proven_alive(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether the owner was watched for a lease timeout or longer, and has renewed within the last two thirds of a timeout."""
        return (
            now - heartbeat.owner_since >= self._timeout
            and heartbeat.changed_at > heartbeat.owner_since
            and now - heartbeat.changed_at < self._timeout * 2 / 3
        )
