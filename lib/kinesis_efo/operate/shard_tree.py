"""The shards of a stream in the order of a tree, children below their parents. Pure; relies on what ListShards told.

A merge continues two shards, so the lineage is no tree: the merged shard stands in full below the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinesis_efo.kinesis.lineage import Lineage, Shard

HASH_KEYS = 2**128
"""How many hash keys all open shards of a stream share."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard at its place in the tree.

    Attributes:
        shard: The shard.
        depth: 0 for the oldest shards, 1 for what continues them, ...
        trimmed_parents: Parents that are not listed any more.
        repeated: It stands in full further up, below its other parent; nothing follows below it here.
    """

    shard: Shard
    depth: int
    trimmed_parents: tuple[str, ...] = ()
    repeated: bool = False


def tree(shards: Iterable[Shard]) -> list[Entry]:
    """A stream's shards in the order of a tree; each in full exactly once.

    >>> parent = Shard("p", (), (0, 9), first=1, last=5)
    >>> entries = tree([Shard("r", ("p",), (5, 9), first=6), Shard("l", ("p",), (0, 4), first=6), parent])
    >>> [(entry.depth, entry.shard.shard_id) for entry in entries]
    [(0, 'p'), (1, 'l'), (1, 'r')]
    """
    lineage = Lineage(shards)
    entries: list[Entry] = []
    seen: set[str] = set()
    # A stack of its own: a stream that was resharded daily for a year is deeper than Python's.
    ahead = [(0, root) for root in reversed(lineage.roots())]
    while ahead:
        depth, shard_id = ahead.pop()
        shard = lineage[shard_id]
        if shard_id in seen:
            entries.append(Entry(shard, depth, repeated=True))
            continue
        seen.add(shard_id)
        entries.append(Entry(shard, depth, tuple(parent for parent in shard.parents if parent not in lineage)))
        ahead += [(depth + 1, child) for child in reversed(lineage.children(shard_id))]
    return entries


def share(shard: Shard) -> float:
    """The part of all hash keys that a shard takes, from 0 to 1.

    >>> share(Shard("s", (), (0, 2**127 - 1), first=1))
    0.5
    """
    first, last = shard.hash_range
    return (last - first + 1) / HASH_KEYS
