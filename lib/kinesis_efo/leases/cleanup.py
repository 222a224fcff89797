"""Decides which rows of ended shards must be set to `SHARD_END`, and which can be deleted. Pure.

KCL's rule: a parent's row is deleted when all its children have rows with a checkpoint after the start, and its own parents' rows are
gone. The children are listed in `childShardIds`; if a crash kept that from being written, they are complete if they cover the parent's
hash range.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kinesis_efo.leases.keys import sibling
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END


def passed_parents(
    leases: Mapping[str, Lease], candidates: Collection[str], wanted: Collection[str]
) -> list[tuple[Lease, frozenset[str]]]:
    """Return rows of shards that were read to their end but whose checkpoint is earlier, with the ids of their children.

    A crash after the children were planned, but before the parent's last checkpoint was written, leaves such a row. If a query reads the
    child and not the parent, the parent is done: an offset contains children only after their parents.

    Args:
        leases: All rows.
        candidates: Keys of rows of shards that are not read.
        wanted: Keys of rows of shards that are read.
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
    """Return the rows to delete.

    Args:
        leases: All rows.
        candidates: Keys of rows that may be deleted.
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
    """Whether the children's hash ranges cover the parent's without a gap."""
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
