"""Who should hold what: one worker's next step, decided from the rows it has seen.

Workers of one run share the leases evenly. Another run is never mixed with: as long as one of its workers renews a
lease that we want, a run that holds nothing takes nothing. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from kinesis_efo.leases.expiry import Observer, Sighting
from kinesis_efo.leases.row import Lease


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, and the query run it belongs to."""

    id: str
    run: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker should do next.

    Attributes:
        create: Wanted keys without a row: create them, owned by us.
        take: Rows to take.
        ask: A row whose owner should hand it over to us.
        rival: A lease we want that a worker of another run holds and has not let expire.
        with_peers: Wanted keys that other workers of our run hold.
    """

    create: tuple[str, ...] = ()
    take: tuple[Lease, ...] = ()
    ask: Lease | None = None
    rival: Sighting | None = None
    with_peers: frozenset[str] = frozenset()


def plan(
    sightings: Mapping[str, Sighting],
    observer: Observer,
    now: float,
    *,
    me: Worker,
    wanted: Collection[str],
    held: Collection[str],
    random: Random,
) -> Plan:
    """Decide the next step.

    Args:
        sightings: What the observer saw of all rows.
        observer: Judges expiry.
        now: Monotonic time, seconds.
        me: The worker to decide for.
        wanted: Lease keys that our run should hold.
        held: Those that this worker holds now.
        random: Order in which free leases are picked, so that workers do not all go for the same.
    """
    mine = set(held) & set(wanted)
    free: list[str] = []
    overdue: set[str] = set()
    with_peers: set[str] = set()
    rivals: list[Sighting] = []
    peers: dict[str, list[Lease]] = {}
    for key in sorted(set(wanted) - mine):
        seen = sightings.get(key)
        owner = _owner(seen, observer, now)
        if seen is None or owner is None or owner == me.id:
            # A row that still names us is one we gave up while the table was out of reach.
            free.append(key)
            if seen is not None and (seen.lease.handover_to == me.id or observer.quiet(seen, now, times=2)):
                overdue.add(key)
        elif seen.lease.owner is not None and seen.lease.run != me.run:
            rivals.append(seen)
        else:
            peers.setdefault(owner, []).append(seen.lease)
            if seen.lease.owner is not None:
                with_peers.add(key)
    rival = max(rivals, key=lambda seen: seen.changed_at, default=None)
    if not mine and not peers:
        # Our run holds nothing yet: the first key decides between runs that start at the same moment.
        chosen = free[:1] if rival is None and free and free[0] == min(wanted) else []
        return _plan(chosen, sightings, None, rival, with_peers)
    share = math.ceil(len(set(wanted)) / len(peers.keys() | {me.id}))
    random.shuffle(free)
    free.sort(key=lambda key: key not in overdue)
    chosen = free[: max(share - len(mine), len(overdue))]
    ask = None if free else _request(peers, len(mine), me, random)
    return _plan(chosen, sightings, ask, rival, with_peers)


def _owner(seen: Sighting | None, observer: Observer, now: float) -> str | None:
    """Whose a lease is: its owner's unless it expired, or the worker's that a free lease was handed over to."""
    if seen is None or observer.quiet(seen, now):
        return None
    return seen.lease.owner or seen.lease.handover_to


def _request(peers: Mapping[str, list[Lease]], mine: int, me: Worker, random: Random) -> Lease | None:
    """One lease of the busiest worker, if it has at least two more than we; none while a request is open."""
    if any(lease.handover_to == me.id for leases in peers.values() for lease in leases):
        return None
    busiest = max(peers.values(), key=len, default=[])
    offers = [lease for lease in busiest if lease.handover_to is None and lease.owner is not None]
    return random.choice(offers) if offers and len(busiest) >= mine + 2 else None


def _plan(
    chosen: Collection[str],
    sightings: Mapping[str, Sighting],
    ask: Lease | None,
    rival: Sighting | None,
    with_peers: Collection[str],
) -> Plan:
    create = tuple(key for key in chosen if key not in sightings or sightings[key].gone)
    take = tuple(sightings[key].lease for key in chosen if key not in create)
    return Plan(create, take, ask, rival, frozenset(with_peers))
