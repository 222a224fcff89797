"""Invented flights out of New York: routes and distances are real, the rest is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import msgspec

_ROUTES: Final = (
    ("AA", "JFK", "LAX", 2475), ("AA", "LGA", "DFW", 1389), ("AA", "JFK", "MIA", 1089), ("AA", "LGA", "ORD", 733),
    ("B6", "JFK", "BOS", 187), ("B6", "JFK", "BQN", 1576), ("B6", "JFK", "MCO", 944), ("B6", "EWR", "FLL", 1065),
    ("B6", "JFK", "SJU", 1598), ("B6", "JFK", "TPA", 1005), ("DL", "LGA", "ATL", 762), ("DL", "JFK", "SEA", 2422),
    ("DL", "JFK", "SLC", 1990), ("UA", "EWR", "DEN", 1605), ("UA", "EWR", "IAH", 1400), ("UA", "EWR", "LAS", 2227),
    ("UA", "EWR", "ORD", 719), ("UA", "EWR", "SFO", 2565), ("US", "LGA", "CLT", 544), ("WN", "LGA", "MDW", 725),
)  # fmt: skip
_AIRCRAFT_EACH: Final = 9
_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ"


class Flight(msgspec.Struct, frozen=True):
    """One flight.

    `origin` and `dest` are airports, `aircraft` is the registration. `delay` is in minutes, negative for an early departure.
    """

    flight: str
    origin: str
    dest: str
    aircraft: str
    scheduled: datetime
    delay: int
    miles: int


def flights(random: Random, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Iterator[Flight]:
    """Generate an endless series of flights that depart now. The same seed of `random` gives the same flights."""
    aircraft = {
        (airline, dest): [
            f"N{random.randint(100, 999)}{''.join(random.sample(_LETTERS, 2))}" for _ in range(_AIRCRAFT_EACH)
        ]
        for airline, _, dest, _ in _ROUTES
    }
    numbers = {route: random.randint(10, 2400) for route in _ROUTES}
    while True:
        route = random.choice(_ROUTES)
        airline, origin, dest, miles = route
        # Most flights are on time or a little early; a few are very late.
        delay = round(random.gauss(-3, 4)) if random.random() < 0.7 else round(random.expovariate(1 / 35))
        leaves = now() - timedelta(minutes=delay)
        scheduled = leaves.replace(minute=leaves.minute // 5 * 5, second=0, microsecond=0)
        plane = random.choice(aircraft[airline, dest])
        yield Flight(f"{airline}{numbers[route]}", origin, dest, plane, scheduled, delay, miles)
