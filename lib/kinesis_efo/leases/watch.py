"""Finds out which lease owners are alive: watches the table until each has renewed a lease, or the lease timeout is over.

Rows have no time of renewal, so only a changing counter shows a live owner, as in KCL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinesis_efo.clock import Clock
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import LeaseStore, Scan


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The result of watching a lease table.

    Attributes:
        scan: The last scan.
        live: Keys of leases that were seen to be renewed.
        moved: Keys of leases whose checkpoint was seen to move.
        seconds: Duration of the watch.
    """

    scan: Scan
    live: frozenset[str]
    moved: frozenset[str]
    seconds: float

    @property
    def live_owners(self) -> dict[str, list[str]]:
        """The live owners, each with the keys of its leases."""
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
    """Watch until every owned lease was renewed, or the time is over.

    Live owners renew every third of the lease timeout, so this usually ends early.

    Args:
        table: The leases.
        clock: Time.
        at_most: Seconds to watch: the lease timeout, to be sure that a silent owner is dead; 0 to scan once.
        of_interest: Selects the leases to wait for.
        waiting: Called once, if one scan is not enough.

    Raises:
        LeaseError: The table cannot be read.
    """
    began = clock.monotonic()
    first = scan = await table.scan()
    live: set[str] = set()
    while True:
        undecided = [
            key
            for key, lease in scan.leases.items()
            if lease.owner is not None and of_interest(lease) and key not in live
        ]
        left = began + at_most - clock.monotonic()
        if not undecided or left <= 0:
            break
        if scan is first:
            waiting()
        await clock.sleep(min(left, at_most / 10))
        before, scan = scan, await table.scan()
        live |= {
            key
            for key, lease in scan.leases.items()
            if lease.owner is not None
            and (old := before.leases.get(key)) is not None
            and (old.owner, old.counter) != (lease.owner, lease.counter)
        }
    owned = {key for key, lease in scan.leases.items() if lease.owner is not None}
    moved = {
        key
        for key, lease in scan.leases.items()
        if (old := first.leases.get(key)) is not None and old.reached != lease.reached
    }
    return WatchResult(scan, frozenset(live & owned), frozenset(moved), clock.monotonic() - began)
