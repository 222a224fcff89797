"""Who is alive: watches a lease table until every owner has renewed a lease, or was silent for the lease timeout.

KCL's rule and ours: nothing in the table tells the time, so a counter has to be seen moving. Relies on the store and the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinesis_efo.clock import Clock
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import LeaseStore, Scan


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen.

    Attributes:
        scan: All rows, as they were seen last.
        live: Keys of leases whose owner was seen renewing them.
        moved: Keys of leases whose checkpoint was seen moving.
        seconds: How long was watched.
    """

    scan: Scan
    live: frozenset[str]
    moved: frozenset[str]
    seconds: float

    @property
    def live_owners(self) -> dict[str, list[str]]:
        """The live workers, each with the keys of its leases."""
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
) -> Watched:
    """Watch until it is known of every owned lease whether its owner is alive.

    Ends early once all were seen renewing; owners do so every third of the lease timeout.

    Args:
        table: The leases.
        clock: Time.
        at_most: Seconds to watch. For a verdict it must be the lease timeout; 0 looks once.
        of_interest: Which leases must be decided.
        waiting: Called once where one look is not enough.

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
        if (old := first.leases.get(key)) is not None and old.checkpoint != lease.checkpoint
    }
    return Watched(scan, frozenset(live & owned), frozenset(moved), clock.monotonic() - began)
