"""Decides where a query or batch read begins and when each shard is read: parents before children, each shard exactly once.

A shard in an offset was started; its ancestors were read, or skipped on purpose at the query's start. A shard that is neither listed nor in
the offset was trimmed, with all its records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.records.events import ChildShard


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, as returned by ListShards."""

    shard_id: str
    parents: tuple[str, ...]  # Ids of zero, one (split) or two (merge) parents, listed or not
    hash_range: tuple[int, int]  # The first and last hash key
    first: int  # The starting sequence number
    last: int | None = None  # The ending sequence number; None while the shard is open


def announced(children: Iterable[Shard]) -> tuple[ChildShard, ...]:
    """Convert shards to the form in which their parent's last event announces them."""
    return tuple(ChildShard(shard.shard_id, shard.parents, *shard.hash_range) for shard in children)


class Lineage:
    """The shards of one stream, with parents and children. In its methods, `positions` is a query's offset in this stream, by shard id.

    >>> parent = Shard("p", (), (0, 9), first=1, last=5)
    >>> left, right = Shard("l", ("p",), (0, 4), first=6), Shard("r", ("p",), (5, 9), first=6)
    >>> lineage = Lineage([parent, left, right])
    >>> lineage.roots()
    ['p']
    >>> lineage.startable({"p": Position.after(4)}), lineage.startable({"p": Position.parse("SHARD_END")})
    ([], ['l', 'r'])
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards: dict[str, Shard] = {}
        self._children: dict[str, list[str]] = {}
        self._announced: set[str] = set()
        for shard in shards:
            self._add(shard)
        self._newest_listed = max(self._shards, default="")

    def __contains__(self, shard_id: object) -> bool:
        return shard_id in self._shards

    def __getitem__(self, shard_id: str) -> Shard:
        return self._shards[shard_id]

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def shards(self) -> list[Shard]:
        """All shards, parents before their children."""
        # Sort by first sequence number, which is higher for children. It is unknown for announced shards: sort these last, by id.
        return sorted(self._shards.values(), key=lambda one: (one.shard_id in self._announced, one.first, one.shard_id))

    def merge(self, children: Iterable[ChildShard], parent: str) -> None:
        """Add the children that the last event of `parent` announced; ListShards may not list them yet."""
        for child in children:
            # The event does not contain the first sequence number: use 0 until ListShards returns the child.
            if child.shard_id not in self._shards:
                self._announced.add(child.shard_id)
            hashes = (child.starting_hash, child.ending_hash)
            self._add(Shard(child.shard_id, child.parents or (parent,), hashes, first=0))

    @property
    def outdated(self) -> bool:
        """Whether an announced shard has an unknown parent: in a merge, the second parent may be newer than the list of shards."""
        return any(parent not in self._shards for child in self._announced for parent in self._shards[child].parents)

    def children(self, shard_id: str) -> list[str]:
        """Return the listed and announced children of a shard."""
        return sorted(self._children.get(shard_id, ()))

    def too_new(self, shard_ids: Iterable[str]) -> list[str]:
        """Return the shards in `shard_ids` that ListShards does not list yet because they are too new."""
        return [shard_id for shard_id in shard_ids if shard_id > self._newest_listed and shard_id not in self._shards]

    def roots(self) -> list[str]:
        """Return the shards without listed parents, where a read of the whole stream starts."""
        return sorted(each.shard_id for each in self._shards.values() if self._shards.keys().isdisjoint(each.parents))

    def startable(self, positions: Mapping[str, Position]) -> list[str]:
        """Return the shards that may be started now, at the trim horizon. With an empty offset, these are the roots.

        A shard may start once all its parents were read to their end. Unlisted parents were trimmed and count as read. A shard that is in
        the offset, or is an ancestor of such a shard, does not start again. Some emulators reshard without naming parents; then the new
        shards are roots.
        """
        # With an outdated list, start only shards whose parents are in the offset. Other shards may have been read already.
        is_old = self.outdated or bool(self.too_new(positions))
        passed = self.ancestors(positions)
        return sorted(
            shard.shard_id
            for shard in self._shards.values()
            if shard.shard_id not in positions
            and shard.shard_id not in passed
            and (not is_old or (shard.parents and positions.keys() >= {*shard.parents}))
            and all(self._is_done(parent, shard, positions, passed) for parent in shard.parents)
            and not self._waits(shard, positions)
        )

    def _waits(self, child: Shard, positions: Mapping[str, Position]) -> bool:
        """Whether `child` descends, through trimmed shards, from an unfinished shard of the offset.

        If a parent of `child` is unlisted, each older shard with overlapping hash keys counts as an ancestor. An unlisted older shard
        always counts, because its hash keys are unknown.
        """
        if all(parent in self._shards for parent in child.parents):
            return False
        older = (each for each, position in positions.items() if each < child.shard_id and not position.is_end)
        return any(
            each not in self._shards or overlap_beyond((), child.hash_range, self._shards[each].hash_range)
            for each in older
        )

    def _follows(self, child: Shard, positions: Mapping[str, Position]) -> bool:
        """Whether `child` descends, through unlisted parents, from a finished shard of the offset.

        If so, these parents were trimmed after the query started. A finished shard counts as an ancestor if it is unlisted, or if it shares
        hash keys with `child` that no listed parent has.
        """
        known = [self._shards[parent].hash_range for parent in child.parents if parent in self._shards]
        ended = [each for each, at in positions.items() if at.is_end and each not in child.parents]
        return any(
            shard_id not in self._shards or overlap_beyond(known, child.hash_range, self._shards[shard_id].hash_range)
            for shard_id in ended
        )

    def vanished(self, positions: Mapping[str, Position]) -> list[str]:
        """Return shards of the offset that were not read to their end and are no longer listed."""
        # Skip ids that are higher than all listed ids: shard ids increase, so these shards are too new for ListShards.
        return sorted(
            shard_id
            for shard_id, position in positions.items()
            if not position.is_end and shard_id < self._newest_listed and shard_id not in self._shards
        )

    def droppable(self, positions: Mapping[str, Position]) -> list[str]:
        """Return finished shards that can be removed from the offset: all their children are, or were, in the offset."""
        passed = self.ancestors(positions)
        # With an outdated list, remove none: a parent that stays in the offset would start the shard again.
        is_old = bool(self.too_new(positions))
        return sorted(
            shard_id
            for shard_id, position in positions.items()
            if not is_old
            and position.is_end
            and (children := self._children.get(shard_id))
            and all(child in positions or child in passed for child in children)
        )

    def lost(self, positions: Mapping[str, Position]) -> list[str]:
        """Return shards that were trimmed before they were read to their end; none for an empty offset (a new query).

        Considers the shards of the offset and their unread descendants. Those that are no longer listed were trimmed.
        """
        cut_off = set(self.vanished(positions))
        if positions:
            for shard_id in self.startable(positions):
                child = self._shards[shard_id]
                if self._follows(child, positions):
                    cut_off.update(parent for parent in child.parents if parent not in positions)
        passed = self.ancestors(positions)
        return sorted(shard_id for shard_id in cut_off if shard_id not in self._shards and shard_id not in passed)

    def _add(self, shard: Shard) -> None:
        if shard.shard_id not in self._shards:
            self._shards[shard.shard_id] = shard
            for parent in shard.parents:
                self._children.setdefault(parent, []).append(shard.shard_id)

    def _is_done(self, parent: str, child: Shard, positions: Mapping[str, Position], passed: set[str]) -> bool:
        position = positions.get(parent)
        if position is not None:
            return position.is_end
        if parent in passed:
            return True
        # Do not count the parent as trimmed if the child is only announced: a merge's second parent may be too new to be listed.
        return parent not in self._shards and child.shard_id not in self._announced

    def is_whole(self, shard_ids: Iterable[str]) -> bool:
        """Whether these shards cover all hash keys of the stream, as the open shards always do."""
        whole = (
            min((shard.hash_range[0] for shard in self._shards.values()), default=0),
            max((shard.hash_range[1] for shard in self._shards.values()), default=0),
        )
        return not overlap_beyond([self._shards[shard_id].hash_range for shard_id in shard_ids], whole, whole)

    def with_descendants(self, shard_ids: Iterable[str]) -> set[str]:
        """Return the given shards and all their descendants."""
        given = set(shard_ids)
        return given | reached_from(given, lambda shard_id: self._children.get(shard_id, ()))

    def ancestors(self, shard_ids: Iterable[str]) -> set[str]:
        return reached_from(shard_ids, lambda each: self._shards[each].parents if each in self._shards else ())


def reached_from(starts: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Return all items reachable from `starts` in one or more steps, where `following` returns the items that are one step away."""
    found: set[str] = set()
    ahead = list(starts)
    while ahead:
        new = {*following(ahead.pop())} - found
        found |= new
        ahead += new
    return found


def overlap_beyond(known: Iterable[tuple[int, int]], child: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether the hash key ranges `child` and `other` overlap outside of the `known` ranges."""
    low, high = max(child[0], other[0]), min(child[1], other[1])
    for first, last in sorted(known):
        if first <= low <= last:
            low = last + 1
        if first <= high <= last:
            high = first - 1
    return low <= high


@dataclass(frozen=True, slots=True)
class ReadBound:
    """The start or the end of a read of one stream."""

    everywhere: Position  # The position for all shards that are not in `named`
    named: Mapping[str, Position]  # Positions of individual shards
    # The shards that were open at about the time of `everywhere`; None if unknown. If empty, read only named shards and their descendants.
    open_then: Collection[str] | None = None


def begins(lineage: Lineage, start: ReadBound) -> dict[str, Position]:
    """Return the start of each shard to read, parents first. An ancestor of a named shard is only read if it is named, too."""
    passed = lineage.ancestors(start.named)
    reachable = None if start.open_then is None else lineage.with_descendants(start.open_then)
    found: dict[str, Position] = {}
    behind = dict(start.named)
    for shard in lineage.shards:
        name = shard.shard_id
        if name not in start.named and not behind.keys().isdisjoint(shard.parents):
            # The child of a merge starts at the earlier of its parents' starts.
            starts = [behind.get(parent, found.get(parent)) for parent in shard.parents]
            behind[name] = _earliest([each for each in starts if each is not None])
        if name in behind:
            found[name] = behind[name]
        elif name not in passed and (reachable is None or name in reachable):
            found[name] = start.everywhere
    return found


class Beginning(NamedTuple):
    """A query's first `offset` in one stream, and the shards that it never reads even though they may have records after the start."""

    offset: dict[str, Position]
    left_out: list[str]


def beginning(lineage: Lineage, start: ReadBound) -> Beginning:
    """Return a query's first offset and the shards that it never reads. All other shards start once their parents have ended.

    The offset also contains shards that are not read, except ancestors of its other shards, and marks them as read to their end.
    Otherwise, if such a shard and a shard that is read are merged, their child would wait forever.

    >>> parent = Shard("p", (), (0, 9), first=1, last=5)
    >>> left, right = Shard("l", ("p",), (0, 4), first=6), Shard("r", ("p",), (5, 9), first=6)
    >>> offset, _ = beginning(Lineage([parent, left, right]), ReadBound(TRIM_HORIZON, {"l": Position.after(7)}))
    >>> print({shard: str(position) for shard, position in offset.items()})
    {'l': 'AFTER:7', 'r': 'TRIM_HORIZON'}
    """
    read, shards = begins(lineage, start), lineage.shards
    # Add shards that were opened after the lineage was listed.
    offset = {shard: start.everywhere for shard in start.open_then or () if shard not in lineage}
    offset |= {
        shard.shard_id: read[shard.shard_id]
        for shard in shards
        if shard.shard_id in read and read.keys().isdisjoint(shard.parents)
    }
    offset |= start.named
    unread = lineage.with_descendants(shard for shard, position in start.named.items() if not position.is_end)
    # Shards between a named ancestor and a named descendant are never read: a query skips the ancestors of named shards.
    left = (lineage.ancestors(start.named) & unread) - start.named.keys()
    passed = lineage.ancestors(offset)
    for shard in reversed(shards):
        if shard.shard_id not in read and shard.shard_id not in passed:
            # Omit shards closed before the start: they have no records after it. Without `open_then`, it is unknown which these are.
            if shard.last is None or not start.open_then:
                left.add(shard.shard_id)
            offset[shard.shard_id] = SHARD_END
            passed |= lineage.ancestors((shard.shard_id,))
    return Beginning(offset, sorted(left))


def _earliest(positions: Collection[Position]) -> Position:
    """Return where a child begins: at the earliest of its parents' starts if all are times, else at the child's first record."""
    if all(position.kind is PositionKind.AT_TIMESTAMP for position in positions):
        return min(positions, key=lambda position: position.value)
    return TRIM_HORIZON


def read_to_end(
    positions: Mapping[ShardKey, Position], lineages: Mapping[str, Lineage], parents: Mapping[ShardKey, Collection[str]]
) -> dict[ShardKey, list[str]]:
    """Return each shard whose lease row is not at the shard's end although descendants have begun, with the ids of these descendants.

    Such shards count as read to their end: after a crash, their last checkpoint may be missing from the row.

    Args:
        positions: Each shard's position in its lease row.
        lineages: The lineage of each stream.
        parents: Each shard's parents as recorded in its lease row.
    """
    found: dict[ShardKey, list[str]] = {}
    for key, position in positions.items():
        if position.is_end or position.sequence_number is not None:
            for parent in lineages[key.stream].ancestors((key.shard,)).union(parents[key]):
                before = ShardKey(key.stream, parent)
                if not positions.get(before, SHARD_END).is_end:
                    found.setdefault(before, []).append(key.shard)
    return found
