"""Finds the live workers that own an application's leases. Changes nothing.

A lease names its owner even after the owner has died; only a changing counter shows that the owner is alive (`leases.expiry`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.leases.expiry import Observer
from kinesis_efo.leases.store import LeaseStore

_SCANS: Final = 10  # number of lease table scans per lease timeout
_PATIENCE: Final = 3  # number of lease timeouts to wait; a worker that still renews its leases then is not stopping


async def living_owners(
    store: LeaseStore, clock: Clock, lease_timeout: float, *, every: bool = False
) -> Collection[str]:
    """Return the workers that own leases and renew them.

    Returns immediately if no lease has an owner, as soon as one worker is known to be alive, or after `lease_timeout` seconds. With
    `every`, watches for the whole timeout, to find every live worker.
    """
    observer = Observer(lease_timeout)
    first: float | None = None
    while True:
        scan = await store.scan()
        now = clock.monotonic()
        first = now if first is None else first
        heartbeats = observer.observe(scan.leases, now)
        owned = [each for each in heartbeats.values() if each.lease.owner is not None and not each.gone]
        # A worker that has renewed or acquired a lease since the first scan is alive.
        alive = {str(each.lease.owner) for each in owned if each.changed_at > first}
        if not owned or (alive and not every) or now - first >= lease_timeout:
            return alive
        await clock.sleep(lease_timeout / _SCANS)


async def until_free(store: LeaseStore, clock: Clock, lease_timeout: float) -> Collection[str]:
    """Wait until leases are no longer renewed. A single renewal does not prove that a run continues, because it may be the last one.

    Returns the workers that still renew leases after three lease timeouts; empty as soon as all leases are free.
    """
    deadline = clock.monotonic() + _PATIENCE * lease_timeout
    while owners := await living_owners(store, clock, lease_timeout):
        if clock.monotonic() >= deadline:
            return owners
        await clock.sleep(lease_timeout / _SCANS)
    return ()
