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
    """The last scan, the keys of leases that were renewed, the keys of rows whose checkpoint moved, and the seconds of watching."""

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
    """Watch the table until every owned lease was renewed, or `at_most` seconds are over.

    Live owners renew every third of the lease timeout: with that timeout as `at_most`, a silent owner is certainly dead; with 0, the table
    is scanned once. `of_interest` selects the leases to wait for. `waiting` is called once, if one scan is not enough.
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
