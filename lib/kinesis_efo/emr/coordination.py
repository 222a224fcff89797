"""Who holds the leases of an application, watched from outside. Relies on leases; changes nothing.

A row names its owner also after the owner has died: who is alive is seen by watching the counters (`leases.expiry`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.leases.expiry import Observer
from kinesis_efo.leases.store import LeaseStore

_LOOKS: Final = 10
_PATIENCE: Final = 3  # lease timeouts: what renews for longer does not end


async def living_owners(
    store: LeaseStore, clock: Clock, lease_timeout: float, *, every: bool = False
) -> Collection[str]:
    """The workers that hold leases and renew them.

    Takes no time where nobody holds a lease, and up to the lease timeout otherwise: as soon as one is seen to be alive, it
    answers, unless `every` asks for all of them.

    Args:
        store: The lease table.
        clock: Time.
        lease_timeout: Seconds after which a lease that is not renewed is free.
        every: Watch for the whole of the timeout.

    Raises:
        LeaseError: The table cannot be read.
    """
    observer = Observer(lease_timeout)
    first: float | None = None
    while True:
        scan = await store.scan()
        now = clock.monotonic()
        first = now if first is None else first
        sightings = observer.observe(scan.leases, now)
        owned = [each for each in sightings.values() if each.lease.owner is not None and not each.gone]
        # Whoever renewed a lease since, or took it since, is alive.
        alive = {str(each.lease.owner) for each in owned if each.changed_at > first}
        if not owned or (alive and not every) or now - first >= lease_timeout:
            return alive
        await clock.sleep(lease_timeout / _LOOKS)


async def until_free(store: LeaseStore, clock: Clock, lease_timeout: float) -> Collection[str]:
    """Wait until nobody renews a lease any more: what has ended may have renewed one just before.

    Args:
        store: The lease table.
        clock: Time.
        lease_timeout: Seconds after which a lease that is not renewed is free.

    Returns:
        Who still does after three times the lease timeout; nobody, as soon as all leases are free.

    Raises:
        LeaseError: The table cannot be read.
    """
    deadline = clock.monotonic() + _PATIENCE * lease_timeout
    while owners := await living_owners(store, clock, lease_timeout):
        if clock.monotonic() >= deadline:
            return owners
        await clock.sleep(lease_timeout / _LOOKS)
    return ()
