"""Computes the contents of shards' lease rows, and which rows of ended shards can be deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.decisions.lineage import overlap_beyond, reached_from
from kinesis_efo.leases.keys import sibling
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position


class PendingCheckpoint(NamedTuple):
    """A position to be written to a shard's lease row."""

    position: Position
    children: frozenset[str] = frozenset()
    record: LastRecord | None = None

    def is_news_to(self, row: Lease) -> bool:
        """Whether writing this position moves the row forward, or adds children to the row."""
        return row.advances(self.position) or not self.children <= row.children

    def stored_in(self, row: Lease) -> Lease:
        return row.checkpointed(self.position, self.children, self.record)


@dataclass(slots=True)
class ShardRow:
    """The lease row of one shard, and its pending changes."""

    key: str
    row: Lease | None = None  # The row in the table; None if absent or unknown
    stray: Lease | None = None  # A row with the same key that belongs to another stream, to be deleted
    wanted: bool = False  # Whether a query reads the shard
    info: LeaseInfo | None = None  # Contents to create or complete the row; None if not needed
    pending: PendingCheckpoint | None = None  # The newest position, which may already be in the row
    written_at: float | None = None  # When this run last wrote the row, in monotonic seconds

    @property
    def position(self) -> Position | None:
        """The newest position, which may not be written to the row yet; None if there is none."""
        if self.pending is not None:
            return self.pending.position
        return self.row.position if self.row is not None else None

    def load(self, row: Lease | None, stream: StreamIdentity) -> None:
        """Set the row that was read from the table. If it belongs to a stream other than `stream`, it becomes `stray`."""
        is_stray = row is not None and row.is_of_another(stream)
        self.row, self.stray = (None, row) if is_stray else (row, None)

    def wrote(self, row: Lease, now: float) -> None:
        """Store the row that this run has just written to the table."""
        self.row, self.written_at = row, now
        if not self.wanted:
            self.info = None

    def request(self, info: LeaseInfo) -> bool:
        """Record that a query reads the shard. Returns whether the row may have to be created or completed."""
        is_news = self.info is None or info.is_known != self.info.is_known
        self.wanted, self.info = True, info
        return is_news

    def leave(self) -> None:
        """Record that no query reads the shard anymore."""
        self.wanted = False
        # If the shard ended before its row was created, keep `info` to create the row: without a row, the shard would seem to be unread.
        if self.row is not None or self.pending is None or not self.pending.position.is_end:
            self.info = None

    def update(self, position: Position, record: LastRecord | None) -> bool:
        """Record, for the next write, that the shard was processed up to `position`. Returns False if this was already recorded."""
        before = self.pending
        if before is not None and (position == before.position or not position.reaches(before.position)):
            return False
        if record is None and before is not None:
            record = before.record
        self.pending = PendingCheckpoint(position, record=record)
        return True

    def change(
        self, read_until: Callable[[Position], float | None], outdated_by: float, horizon: float | None = None
    ) -> Lease | None:
        """Return the row to write; None if a write is not needed.

        If only `read_until` has changed, the row is written once its value is outdated by `outdated_by` seconds.

        Args:
            horizon: The trim horizon at which the first query began to read the shard; None if no query began there.
        """
        row, pending = self.row, self.pending
        if row is None:
            if self.info is None:
                return None
            changed = Lease.new(self.key, self.info)
            # If records were read, write the position even if it equals the start: the first micro-batch may end there.
            at_start = pending is not None and pending.record is not None and pending.position == changed.position
            if pending is not None and (at_start or pending.is_news_to(changed)):
                changed = pending.stored_in(changed)
        else:
            complete = row if self.info is None else row.completed(self.info)
            if pending is not None and pending.is_news_to(row):
                changed = pending.stored_in(complete)
            elif complete != row or self.is_outdated(read_until, outdated_by):
                changed = complete.renewed()
            else:
                return None
        until = None if changed.position is None else read_until(changed.position)
        empty, known = read_until(TRIM_HORIZON), None if row is None else row.read_until_at(TRIM_HORIZON)
        since = changed.read_since
        if horizon is not None:
            if empty is None:
                # Write the trim horizon at the first query's start even before any record is read, to detect losses after a restart.
                since = horizon if since is None and known is None else since
            elif (known or 0.0) < horizon:
                since = horizon
        return replace(changed, read_until=changed.read_until if until is None else until, read_since=since)

    def is_outdated(self, read_until: Callable[[Position], float | None], seconds: float) -> bool:
        """Whether the row's `read_until` is outdated by `seconds` or more."""
        row = self.row
        until = None if row is None or row.position is None else read_until(row.position)
        return row is not None and until is not None and until - (row.read_until or 0.0) >= seconds


def passed_parents(
    leases: Mapping[str, Lease], candidates: Collection[str], wanted: Collection[str]
) -> list[tuple[Lease, frozenset[str]]]:
    """Return rows of shards that were read to their end but have an earlier checkpoint, each with the ids of its children.

    Such a row remains if the run crashes after planning the children, but before writing the parent's last checkpoint. A parent counts as
    read to its end if queries read one of its children, and do not read the parent or any of its ancestors.

    Args:
        candidates: The keys of shards that no query reads.
        wanted: The keys of shards that queries read.
    """

    def is_ahead(key: str) -> bool:
        return not reached_from([key], parents).isdisjoint(wanted)

    def parents(key: str) -> set[str]:
        return {sibling(key, parent) for parent in leases[key].parents} if key in leases else set()

    children: dict[str, set[str]] = {}
    for key in wanted:
        for parent in leases[key].parents if key in leases else ():
            children.setdefault(sibling(key, parent), set()).add(key.rpartition(":")[2])
    return [
        (leases[key], frozenset(found))
        for key, found in sorted(children.items())
        if key in candidates and leases[key].checkpoint != SHARD_END and not is_ahead(key)
    ]


def finished_parents(leases: Mapping[str, Lease], candidates: Collection[str]) -> list[Lease]:
    """Return those rows of `candidates` (lease keys) that can be deleted.

    As in the KCL, a shard's row can be deleted once reading of all its children has begun and the rows of its parents are deleted. All
    children are known if the row lists them, or if they cover the shard's hash range.
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
    whole = parent.hash_range
    ranges = [each.hash_range for each in children if each.hash_range is not None]
    return whole is not None and not overlap_beyond(ranges, whole, whole)
