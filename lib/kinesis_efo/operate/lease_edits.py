"""Changes to leases by hand: planned as values that can be shown first, then written, each on condition that nothing has moved.

Relies on rows and the store. Nothing here asks or prints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kinesis_efo.leases.row import Lease, LeaseInfo, LeaseKeys
from kinesis_efo.leases.store import LeaseStore, Lost, Written
from kinesis_efo.positions import Position, ShardKey

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Edit:
    """One row before and after.

    Attributes:
        key: Lease key.
        before: The row as it is; None where there is none.
        after: The row as it shall be; None where it goes.
    """

    key: str
    before: Lease | None
    after: Lease | None

    @property
    def what(self) -> str:
        """What happens to the row, in one word."""
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "released" if self.before.checkpoint == self.after.checkpoint else "moved"


def releases(leases: Iterable[Lease]) -> list[Edit]:
    """Take the owners out of leases. Free ones stay as they are."""
    return [Edit(lease.key, lease, lease.released()) for lease in leases if lease.owner is not None]


def moves(leases: Iterable[Lease], position: Position) -> list[Edit]:
    """Set the checkpoint of these leases, and free them."""
    return [
        # What was read before is no part of the new position's truth.
        Edit(lease.key, lease, replace(lease.released_at(position), read_until=None))
        for lease in leases
        if (lease.checkpoint, lease.sub, lease.owner) != (position, 0, None)
    ]


def replacement(present: Mapping[str, Lease], wanted: Mapping[str, LeaseInfo]) -> list[Edit]:
    """Make the rows of some streams exactly those wanted, free and at these positions.

    Rows that are not wanted go: a shard that continues a wanted one has to begin when that one has ended, not before.

    Args:
        present: All rows of these streams.
        wanted: By lease key.
    """
    edits = []
    for key in sorted(present.keys() | wanted.keys()):
        before, info = present.get(key), wanted.get(key)
        if info is None:
            edits.append(Edit(key, before, None))
        elif before is None:
            edits.append(Edit(key, None, Lease.new(key, info)))
        else:
            edits += moves([before], info.start)
    return edits


@dataclass(frozen=True, slots=True)
class Import:
    """Rows of another table, in the terms of this application.

    Attributes:
        edits: What happens to this application's rows.
        begun_now: Shards of which KCL had stored no position: they begin at the time of the import.
        skipped: Lease keys that belong to no stream of this application.
    """

    edits: list[Edit]
    begun_now: list[ShardKey]
    skipped: list[str]


def imported(
    source: Collection[Lease], source_keys: LeaseKeys, present: Mapping[str, Lease], keys: LeaseKeys, now_ms: int
) -> Import:
    """Replace the rows of every stream that another table knows by what it says of them.

    Args:
        source: The other table's rows.
        source_keys: What their keys mean.
        present: This application's rows.
        keys: What its keys are.
        now_ms: Where shards begin of which the other table says `LATEST`; epoch milliseconds.
    """
    rows: dict[ShardKey, Lease] = {}
    skipped = []
    for lease in source:
        shard = source_keys.decode(lease.key)
        if shard is None:
            skipped.append(lease.key)
        else:
            rows[shard] = lease
    begun_now = sorted(shard for shard, lease in rows.items() if lease.checkpoint is None)
    streams = {shard.stream for shard in rows}
    edits = []
    for shard, lease in sorted(rows.items()):
        key = keys.encode(shard)
        before = present.get(key)
        position = lease.checkpoint or Position.at_timestamp(now_ms)
        after = replace(
            lease, key=key, counter=before.counter + 1 if before else 0, checkpoint=position,
            owner=None, owner_switches=0, endpoint=None, run=None, handover_to=None,
        )  # fmt: skip
        if before is None or replace(before, counter=after.counter, owner_switches=0) != after:
            edits.append(Edit(key, before, after))
    wanted = {keys.encode(shard) for shard in rows}
    for key, before in sorted(present.items()):
        shard = keys.decode(key)
        if shard is not None and shard.stream in streams and key not in wanted:
            edits.append(Edit(key, before, None))
    return Import(edits, begun_now, sorted(skipped))


async def apply(table: LeaseStore, edits: Iterable[Edit], *, force: bool) -> list[Edit]:
    """Write edits.

    Args:
        table: The leases.
        edits: Planned on rows as they were seen.
        force: Write over what a live worker has renewed since.

    Returns:
        Those that were not written, because somebody else wrote the row meanwhile.

    Raises:
        LeaseError: The table cannot be written.
    """
    return [edit for edit in edits if not await _apply(table, edit, force)]


async def _apply(table: LeaseStore, edit: Edit, force: bool) -> bool:
    before, after = edit.before, edit.after
    for _ in range(_ATTEMPTS if force else 1):
        if before is None:
            if after is None:
                return True
            outcome = await table.create_if_absent(replace(after, counter=0))
        elif after is None:
            outcome = await table.delete(before)
        else:
            wanted = replace(after, counter=before.counter + 1)
            answer = await table.apply(before, lambda _, wanted=wanted: wanted)  # type: ignore[misc]
            # One counter further is a renewal by the owner: for us, that is somebody else.
            outcome = answer if isinstance(answer, Written | Lost) else Lost(answer.lease)
        if isinstance(outcome, Written):
            return True
        before = outcome.current
    return before is None and after is None
