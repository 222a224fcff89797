"""Detects which lease owners are alive, by watching the table until each owner has renewed its leases, or until the lease timeout.

Rows do not contain the time of their renewal. As in the KCL, only a changing counter proves that an owner is alive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinesis_efo.clock import Clock
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import LeaseStore, Scan


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What changed in the lease table while it was watched."""

    scan: Scan  # The last scan
    live: frozenset[str]  # Keys of the leases that were renewed
    moved: frozenset[str]  # Keys of the shard rows whose checkpoint moved
    seconds: float  # How long the table was watched

    @property
    def live_owners(self) -> dict[str, list[str]]:
        """The live owners, each with the keys of the leases that it renewed."""
        owners: dict[str, list[str]] = {}
        for key in sorted(self.live):
            owners.setdefault(self.scan.leases[key].owner or "", []).append(key)
        return owners


async def watch(
    table: LeaseStore,
    clock: Clock,
    at_most: float,
    of_interest: Callable[[Lease], bool] = lambda _lease: True,
    waiting: Callable[[], None] = lambda: None,
) -> WatchResult:
    """Watch the table until every owned lease was renewed, for at most `at_most` seconds.

    A live owner renews its leases at least three times per lease timeout, so an owner that does not renew them in that time is dead.

    Args:
        at_most: Usually the lease timeout; 0 to scan the table once.
        of_interest: Selects the leases to wait for.
        waiting: Called once, before the second scan.
    """
    began = clock.monotonic()
    first = scan = await table.scan()
    live: set[str] = set()
    while True:
        owned = {key: lease for key, lease in scan.leases.items() if lease.owner is not None}
        left = began + at_most - clock.monotonic()
        if left <= 0 or not any(key not in live and of_interest(lease) for key, lease in owned.items()):
            break
        if scan is first:
            waiting()
        await clock.sleep(min(left, at_most / 10))
        before, scan = scan.leases, await table.scan()
        live |= {
            key
            for key, lease in scan.leases.items()
            if (was := before.get(key)) is None or (was.owner, was.counter) != (lease.owner, lease.counter)
        }
    both = scan.leases.keys() & first.leases.keys()
    moved = frozenset(key for key in both if scan.leases[key].reached != first.leases[key].reached)
    return WatchResult(scan, frozenset(live & owned.keys()), moved, clock.monotonic() - began)
