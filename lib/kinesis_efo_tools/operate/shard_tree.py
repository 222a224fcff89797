"""Orders the shards of a stream as a tree, children below their parents. No I/O.

A merged shard has two parents, so the lineage is not a tree: that shard appears in full only below the first parent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinesis_efo.decisions.lineage import Lineage, Shard

HASH_KEYS = 2**128
"""Number of hash keys of a stream."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A shard at its place in the tree.

    `depth` is 0 for the oldest shards. `trimmed_parents` are parents that Kinesis no longer lists. A `repeated` shard appeared before, below
    its other parent; its children are not repeated.
    """

    shard: Shard
    depth: int
    trimmed_parents: tuple[str, ...] = ()
    repeated: bool = False


def tree(shards: Iterable[Shard]) -> list[TreeEntry]:
    """Order a stream's shards as a tree, in which each shard appears in full exactly once.

    >>> parent = Shard("p", (), (0, 9), first=1, last=5)
    >>> entries = tree([Shard("r", ("p",), (5, 9), first=6), Shard("l", ("p",), (0, 4), first=6), parent])
    >>> [(entry.depth, entry.shard.shard_id) for entry in entries]
    [(0, 'p'), (1, 'l'), (1, 'r')]
    """
    lineage = Lineage(shards)
    entries: list[TreeEntry] = []
    seen: set[str] = set()
    # No recursion: the tree of a stream that was resharded daily for a year is deeper than Python's stack.
    stack = [(0, root) for root in reversed(lineage.roots())]
    while stack:
        depth, shard_id = stack.pop()
        shard = lineage[shard_id]
        if shard_id in seen:
            entries.append(TreeEntry(shard, depth, repeated=True))
            continue
        seen.add(shard_id)
        entries.append(TreeEntry(shard, depth, tuple(parent for parent in shard.parents if parent not in lineage)))
        stack += [(depth + 1, child) for child in reversed(lineage.children(shard_id))]
    return entries


def share(shard: Shard) -> float:
    """Return the fraction of all hash keys that a shard covers, from 0 to 1.

    >>> share(Shard("s", (), (0, 2**127 - 1), first=1))
    0.5
    """
    first, last = shard.hash_range
    return (last - first + 1) / HASH_KEYS
