"""Manual changes to leases. A change is planned first, so that it can be shown, and written only if the row is still the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kinesis_efo.leases.attributes import stored
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict, LeaseStore
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Edit:
    """A planned change of one row. `before` is None if the row does not exist yet, `after` is None to delete it."""

    key: str
    before: Lease | None
    after: Lease | None

    @property
    def what(self) -> str:
        """The kind of change: created, deleted, released or moved."""
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "released" if self.before.owner is not None and self.before.reached == self.after.reached else "moved"


def releases(leases: Iterable[Lease]) -> list[Edit]:
    """Plan to remove the owners of leases. Leases without an owner are left out."""
    return [Edit(lease.key, lease, lease.released()) for lease in leases if lease.owner is not None]


def moves(leases: Iterable[Lease], position: Position, listed: Mapping[str, LeaseInfo] | None = None) -> list[Edit]:
    """Plan to set the checkpoint of leases and remove their owners. `listed` has the shards that Kinesis lists now, by lease key."""
    edits = []
    for lease in leases:
        complete = lease.completed((listed or {}).get(lease.key, LeaseInfo()))
        if complete != lease or (lease.position, lease.sub, lease.owner, lease.stream) != (position, 0, None, None):
            edits.append(Edit(lease.key, lease, moved(complete, position)))
    return edits


def moved(row: Lease, position: Position) -> Lease:
    """Return the row moved to `position`, forward or back, without an owner."""
    checkpoint, sub, continuation = stored(position)
    return replace(
        row.released(),
        checkpoint=checkpoint,
        sub=sub,
        continuation=continuation,
        children=row.children if position.is_end else frozenset(),
        read_until=None,
        read_since=None,
        stream=None,
    )


def replacement(present: Mapping[str, Lease], wanted: Mapping[str, LeaseInfo]) -> list[Edit]:
    """Plan to replace the rows `present` with the rows `wanted`, without owners.

    Rows that are not wanted are deleted: because of an old row, a child shard could be read before its parent has been read to its end.
    """
    edits = []
    for key in sorted(present.keys() | wanted.keys()):
        before, info = present.get(key), wanted.get(key)
        if info is None:
            edits.append(Edit(key, before, None))
        elif before is None:
            edits.append(Edit(key, None, Lease.new(key, info)))
        else:
            # Do not copy other values of the old row, which may belong to an earlier stream of the same name.
            after = replace(Lease.new(key, info), counter=before.counter + 1, epoch=before.epoch)
            if replace(before, counter=after.counter, owner_switches=0) != after:
                edits.append(Edit(key, before, after))
    return edits


def exact(present: Mapping[str, Lease], wanted: Collection[Lease]) -> list[Edit]:
    """Plan to replace the rows `present` with exactly the rows `wanted`; rows that are not wanted are deleted."""
    edits = []
    for row in wanted:
        before = present.get(row.key)
        after = replace(row, counter=before.counter + 1 if before else 0)
        if before is None or replace(before, counter=after.counter, owner_switches=0, also=after.also) != after:
            edits.append(Edit(row.key, before, after))
    keys = {row.key for row in wanted}
    return edits + [Edit(key, before, None) for key, before in sorted(present.items()) if key not in keys]


@dataclass(frozen=True, slots=True)
class Import:
    """The plan to import another table's rows.

    Attributes:
        begun: The planned start positions of shards that the KCL application had not begun to read.
        unknown: Such shards whose start position cannot be determined without the KCL application's initial position.
        skipped: The lease keys that do not belong to a stream of this application.
    """

    edits: list[Edit]
    begun: dict[ShardKey, Position]
    unknown: list[ShardKey]
    skipped: list[str]


def imported(
    source: Collection[Lease],
    source_keys: LeaseKeys,
    present: Mapping[str, Lease],
    keys: LeaseKeys,
    initial: Position | None = None,
    opened: Collection[ShardKey] = (),
) -> Import:
    """Plan to replace this application's rows with the rows of another table, for every stream in the other table.

    A KCL application stores the word `LATEST` or `AT_TIMESTAMP` instead of a position for a shard that it has not begun to read.

    Args:
        initial: The position to use for such shards: the initial position in the KCL application's configuration, if known.
        opened: The shards that were open at `initial`.
    """
    rows: dict[ShardKey, Lease] = {}
    skipped = []
    for lease in source:
        shard = source_keys.decode(lease.key)
        if lease.is_run:
            continue
        if shard is None:
            skipped.append(lease.key)
        elif shard not in rows or lease.key == source_keys.encode(shard):
            # If a shard has several rows, such as a KCL row and a row of this library, use the row whose key has the expected format.
            rows[shard] = lease
    starts = _starts(rows, initial, opened)
    begun = {shard: start for shard, start in starts.items() if rows[shard].checkpoint is None and start is not None}
    streams = {shard.stream for shard in rows}
    edits = []
    for shard, lease in sorted(rows.items()):
        key, position = keys.encode(shard), starts[shard]
        if position is None:
            continue
        before = present.get(key)
        after = replace(
            lease, key=key, counter=before.counter + 1 if before else 0, checkpoint=position,
            owner=None, owner_switches=0, endpoint=None, epoch=before.epoch if before else 0,
        )  # fmt: skip
        if before is None or replace(before, counter=after.counter, owner_switches=0) != after:
            edits.append(Edit(key, before, after))
    wanted = {keys.encode(shard) for shard in rows}
    for key, before in sorted(present.items()):
        shard = keys.decode(key)
        if shard is not None and shard.stream in streams and key not in wanted:
            edits.append(Edit(key, before, None))
    return Import(edits, begun, sorted(shard for shard, start in starts.items() if start is None), sorted(skipped))


def _starts(
    rows: Mapping[ShardKey, Lease], initial: Position | None, opened: Collection[ShardKey]
) -> dict[ShardKey, Position | None]:
    """Return the start of each shard: its checkpoint. Without one, TRIM_HORIZON if a parent is not finished, otherwise `initial`."""
    starts: dict[ShardKey, Position | None] = {}
    for shard, lease in sorted(rows.items()):  # parents have lower ids than their children
        parents = [key for each in lease.parents if (key := ShardKey(shard.stream, each)) in starts]
        behind = any(
            (start := starts[parent]) is not None
            and not start.is_end
            and (rows[parent].checkpoint is not None or shard not in opened)
            for parent in parents
        )
        starts[shard] = lease.checkpoint or (TRIM_HORIZON if behind else initial)
    return starts


async def apply(table: LeaseStore, edits: Iterable[Edit], *, force: bool) -> list[Edit]:
    """Write edits. Returns those that were not written, because another process had changed the row since the scan.

    With `force`, writes even if a live worker has renewed the lease since the scan.
    """
    return [edit for edit in edits if not await _apply(table, edit, force)]


async def _apply(table: LeaseStore, edit: Edit, force: bool) -> bool:
    before, after = edit.before, edit.after
    for _ in range(_ATTEMPTS if force else 1):
        if before is None:
            if after is None:
                return True
            outcome = await table.create(replace(after, counter=0))
        elif after is None:
            outcome = await table.delete(before)
        else:
            outcome = await table.update(before, replace(after, counter=before.counter + 1))
        if not isinstance(outcome, Conflict):
            return True
        before = outcome.current
    return before is None and after is None
