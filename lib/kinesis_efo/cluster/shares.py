"""Distributes shards over fetchers, so that all fetchers receive about the same bytes per second and few shards move."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Final, TypeVar

from kinesis_efo.positions import ShardKey

M = TypeVar("M", bound=str)

UNEVEN: Final = 1.25
"""Shards move only if a fetcher's load exceeds the mean load times this factor, or if a fetcher has no shards. Moving a shard is costly:
the new fetcher has to read some of its records again."""

EVEN: Final = 1.1
"""Once shards move, they do so until no fetcher's load exceeds the mean load times this factor, if possible."""

WORTH: Final = 1.4
"""A shard moves to a fetcher with other shards only if the loads of the two fetchers differ by at least this many times the shard's load.
This prevents small changes in load from moving the shard back."""

INTERVAL: Final = 10.0
"""Length in seconds of the intervals in which each shard's bytes per second are measured."""

_NEW: Final = 0.3
_FLOOR: Final = 0.1


def share_out(
    weights: Mapping[ShardKey, float], fetchers: Collection[M], now: Mapping[ShardKey, M]
) -> dict[ShardKey, M]:
    """Return a new assignment: the fetcher of each shard in `weights`; empty without fetchers.

    A weight is a shard's cost (above 0), such as its bytes per second. `now` is the current assignment, which may name dead fetchers.

    >>> a, b, c = (ShardKey("orders", name) for name in "abc")
    >>> share_out({a: 5.0, b: 3.0, c: 2.0}, ["one", "two"], {})
    {ShardKey(stream='orders', shard='a'): 'one', ShardKey(stream='orders', shard='b'): 'two', ShardKey(stream='orders', shard='c'): 'two'}
    """
    names = sorted(set(fetchers))
    if not names:
        return {}
    held: dict[M, dict[ShardKey, float]] = {name: {} for name in names}
    free = []
    for shard, weight in weights.items():
        if (name := now.get(shard)) in held:
            held[name][shard] = weight
        else:
            free.append(shard)
    lightest = [(sum(shards.values()), len(shards), name) for name, shards in held.items()]
    heapq.heapify(lightest)
    for shard in sorted(free, key=lambda shard: (-weights[shard], shard)):
        load, count, name = lightest[0]
        held[name][shard] = weights[shard]
        heapq.heapreplace(lightest, (load + weights[shard], count + 1, name))
    _even_out(held)
    return {shard: name for name, shards in held.items() for shard in shards}


def _even_out(held: dict[M, dict[ShardKey, float]]) -> None:
    loads = {name: sum(shards.values()) for name, shards in held.items()}
    mean = sum(loads.values()) / len(loads)
    if not any(not shards for shards in held.values()) and max(loads.values()) <= UNEVEN * mean:
        return
    sorted_shards = {name: sorted((weight, shard) for shard, weight in held[name].items()) for name in held}
    for _ in range(sum(map(len, held.values()))):
        light = min(loads, key=lambda name: (loads[name], len(held[name]), name))
        heavy = max((name for name in loads if len(held[name]) > 1), key=lambda name: (loads[name], name), default=None)
        if heavy is None or heavy == light or (held[light] and loads[heavy] <= EVEN * mean):
            return
        gap = loads[heavy] - loads[light]
        moving = _nearest(sorted_shards[heavy], gap / 2, at_most=gap / WORTH if held[light] else inf)
        if moving is None:
            return
        weight, shard = moving
        del sorted_shards[heavy][bisect_left(sorted_shards[heavy], moving)]
        insort(sorted_shards[light], moving)
        held[light][shard] = held[heavy].pop(shard)
        loads[heavy] -= weight
        loads[light] += weight


def _nearest(
    shards: Sequence[tuple[float, ShardKey]], wanted: float, *, at_most: float
) -> tuple[float, ShardKey] | None:
    """Return the shard whose weight is nearest to `wanted` and at most `at_most`. `shards` is sorted by weight."""
    above = bisect_left(shards, wanted, key=itemgetter(0))
    found = [shards[above]] if above < len(shards) and shards[above][0] <= at_most else []
    if above:
        weight = shards[above - 1][0]
        found.append(shards[bisect_left(shards, weight, key=itemgetter(0))])
    return min(found, key=lambda each: (abs(each[0] - wanted), each[1]), default=None)


class Rates:
    """Measures how many bytes per second each shard receives. `now` is the monotonic time in seconds."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._bytes: Counter[ShardKey] = Counter()
        self._rates: dict[ShardKey, float] = {}

    def add(self, shard: ShardKey, size: int) -> None:
        if size:
            self._bytes[shard] += size

    def tick(self, now: float) -> bool:
        """Update the measured rates if `INTERVAL` seconds have passed. Return whether they were updated."""
        seconds = now - self._since
        if seconds < INTERVAL:
            return False
        for shard in self._rates.keys() | self._bytes.keys():
            rate = self._bytes[shard] / seconds
            before = self._rates.get(shard)
            self._rates[shard] = rate if before is None else before + _NEW * (rate - before)
        self._bytes.clear()
        self._since = now
        return True

    def weights(self, shards: Iterable[ShardKey]) -> dict[ShardKey, float]:
        """Return the cost of each shard: its bytes per second plus a base cost. Drops the rates of shards that are not in `shards`."""
        self._rates = {shard: self._rates[shard] for shard in shards if shard in self._rates}
        found = {shard: self._rates.get(shard, 0.0) for shard in shards}
        floor = max(1.0, _FLOOR * sum(found.values()) / max(1, len(found)))
        return {shard: rate + floor for shard, rate in found.items()}
