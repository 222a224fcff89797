"""Decides which rows of shards that were read have to be finished, and which can be deleted. Pure.

KCL's rule: a parent's row goes when all its children have rows whose checkpoint has left the start, and its own parents'
rows are gone. That all children are known is read from `childShardIds` or, after a crash before that was written, from
hash ranges: children that cover the parent's range are all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kinesis_efo.leases.keys import sibling
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END


def passed_parents(
    leases: Mapping[str, Lease], candidates: Collection[str], wanted: Collection[str]
) -> list[tuple[Lease, frozenset[str]]]:
    """Rows that stand somewhere in their shards although these were read to their end, with the ids of their children.

    A crash between the plan that goes on with the children alone and the parent's last checkpoint leaves such a row. That a
    child is wanted, and its parent is not, says that the parent is done: an offset names children once their parents are.

    Args:
        leases: All rows.
        candidates: Keys of rows that nobody wants or holds.
        wanted: Keys of leases that are wanted.
    """
    children: dict[str, set[str]] = {}
    for key in wanted:
        for parent in leases[key].parents if key in leases else ():
            children.setdefault(sibling(key, parent), set()).add(key.rpartition(":")[2])
    return [
        (leases[key], frozenset(found))
        for key, found in sorted(children.items())
        if key in candidates and leases[key].checkpoint != SHARD_END
    ]


def finished_parents(leases: Mapping[str, Lease], candidates: Collection[str]) -> list[Lease]:
    """Rows to delete, among those that nobody wants or holds.

    Args:
        leases: All rows.
        candidates: Keys of rows that may go.
    """
    children: dict[str, list[Lease]] = {}
    for lease in leases.values():
        for parent in lease.parents:
            children.setdefault(sibling(lease.key, parent), []).append(lease)
    return [
        lease
        for key in sorted(candidates)
        if (lease := leases[key])
        and not any(sibling(key, parent) in leases for parent in lease.parents)
        and (mine := children.get(key))
        and all(child.has_begun for child in mine)
        and (_listed(lease, mine) or _covered(lease, mine))
    ]


def _listed(parent: Lease, children: Collection[Lease]) -> bool:
    keys = {child.key for child in children}
    return bool(parent.children) and all(sibling(parent.key, child) in keys for child in parent.children)


def _covered(parent: Lease, children: Collection[Lease]) -> bool:
    """Whether the children's hash ranges leave no hole in the parent's."""
    if parent.starting_hash_key is None or parent.ending_hash_key is None:
        return False
    ranges = sorted(
        (int(child.starting_hash_key), int(child.ending_hash_key))
        for child in children
        if child.starting_hash_key is not None and child.ending_hash_key is not None
    )
    reached = int(parent.starting_hash_key)
    for first, last in ranges:
        if first > reached:
            return False
        reached = max(reached, last + 1)
    return reached > int(parent.ending_hash_key)
