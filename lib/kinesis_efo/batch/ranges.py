"""Decides which range of each shard (a `BatchRange`) a batch read covers. Does no I/O.

A read's time range is half open, and rows are selected by arrival time. Therefore, reads of `[8:00, 9:00)` and `[9:00, 10:00)` together
return each row once, even if Kinesis starts reading slightly before or after a given time, or if parents and children overlap in time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from kinesis_efo.decisions.lineage import Lineage, ReadBound, Shard, begins
from kinesis_efo.decisions.losses import Gap, gap, written_at
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.records.events import ChildShard

MARGIN_SECONDS: Final = 10.0
"""Shards that were open this many seconds before or after a time may have records of that time."""

LISTED_SECONDS: Final = 90.0
"""ListShards may be a minute behind, but returns every shard that was created at least this many seconds ago."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The range of one shard in a batch read."""

    key: ShardKey
    hash_range: tuple[int, int]  # The first and last hash key
    start: Position  # `TRIM_HORIZON`, `AT_TIMESTAMP`, `AFTER` or `INSIDE`
    end: Position  # `AT_TIMESTAMP` (exclusive), `AFTER` or `SHARD_END`
    last: int | None = None  # The shard's last sequence number; None if the shard was open when the read was planned
    horizon: float | None = None  # The trim horizon at planning, epoch seconds; None disables the check for losses
    created: float = 0.0  # Lower bound of the shard's creation time, epoch seconds
    strict: bool = False  # Whether to drop aggregates with hash keys outside of `hash_range`
    newest: str | None = None  # The newest shard listed when the read was planned; None to ignore newer shards
    partly: bool = False  # Whether the read has separate start or end positions for some shards
    refused: bool = False  # Whether to fail if the range has rows, because another range may return the same rows
    planned: float = 0.0  # When the read was planned, in epoch seconds of Kinesis' clock
    stream_created: int | None = None  # When the stream was created, epoch seconds; None if unknown

    def __str__(self) -> str:
        return f"{self.key} from {self.start} to {self.end}"

    @property
    def since(self) -> int | None:
        """The start time in epoch milliseconds: the range excludes rows that arrived earlier. None if the start is not a time."""
        return self.start.value if self.start.kind is PositionKind.AT_TIMESTAMP else None

    @property
    def until(self) -> int | None:
        """The end time in epoch milliseconds: the range excludes rows that arrived then or later. None if the end is not a time."""
        return self.end.value if self.end.kind is PositionKind.AT_TIMESTAMP else None

    @property
    def is_empty(self) -> bool:
        """Whether the shard was created after the end of the range."""
        return self.until is not None and self.created > self.until / 1000 + MARGIN_SECONDS


def created_at(shard: Shard) -> float:
    """Return a shard's creation time in epoch seconds, decoded from its first sequence number; 0 if the number has an unknown format."""
    return written_at(shard.first, shard.shard_id, inf) or 0.0


def trimmed(part: BatchRange, earliest: float, latest: float, *, again: bool) -> Gap | None:
    """Return the gap in a shard's range if records may have expired after the read was planned; otherwise None.

    Args:
        earliest: Lower bound of the trim horizon when reading begins, in epoch seconds.
        latest: Upper bound of this trim horizon.
        again: Whether this is a later attempt of a Spark task, which must return the same rows as the first attempt.

    >>> horizon = Position.parse("TRIM_HORIZON")
    >>> part = BatchRange(ShardKey("orders", "s"), (0, 9), horizon, Position.after(9), horizon=1000.0, created=500.0)
    >>> trimmed(part, 1060.0, 1062.0, again=False)
    Gap(since=1000.0, horizon=1060.0, tolerated=True)
    >>> trimmed(part, 1601.0, 1603.0, again=False)
    Gap(since=1000.0, horizon=1601.0, tolerated=False)
    """
    if part.horizon is None:
        return None
    since = max(part.horizon, part.created)
    if again:
        return Gap(since, latest, tolerated=False) if latest > part.created else None
    return gap(since, earliest, part.horizon)


def dated(part: BatchRange, listed: Iterable[Shard]) -> BatchRange:
    """Return a range with its shard's creation time set, or with a lower bound of this time if `listed` does not contain the shard."""
    # Shard ids increase with time, so a shard is not older than shards with lower ids.
    created = max([part.created, *(created_at(each) for each in listed if each.shard_id <= part.key.shard)])
    return replace(part, created=created, horizon=None if part.horizon is None else created)


def unlisted(part: BatchRange, shards: Collection[ChildShard]) -> list[BatchRange]:
    """Return the ranges to read after `part`: those of descendants that ListShards did not return yet when the read was planned.

    `shards` are the children of the part's shard or, if that shard was trimmed, all listed shards. A merge's child has two parents. It is
    returned only for the parent with the child's first hash key, so that it is read once; with `part.partly`, it is returned for both.
    If a parent is not listed, its hash range is unknown, and the lowest first hash key of its children is used instead.

    >>> part = BatchRange(ShardKey("orders", "s2"), (5, 9), Position.parse("TRIM_HORIZON"), Position.at_timestamp(99), newest="s2")
    >>> [str(each) for each in unlisted(part, [ChildShard("s3", ("s2",), 5, 9), ChildShard("s4", ("s1", "s2"), 0, 9)])]
    ['orders:s3 from TRIM_HORIZON to AT_TIMESTAMP:99']
    """
    if part.newest is None or part.until is None:
        return []
    (first, last), found = part.hash_range, list[BatchRange]()
    created = part.planned - LISTED_SECONDS  # an older shard would have been in the list
    ranges = {each.shard_id: range(each.starting_hash, each.ending_hash + 1) for each in shards}
    begins: dict[tuple[str, ...], int] = {}
    for each in shards:
        begins[each.parents] = min(each.starting_hash, begins.get(each.parents, each.starting_hash))
    for child in shards:
        begin = begins[child.parents] if child.parents else child.starting_hash
        others = {*child.parents} - {part.key.shard}
        if (
            child.shard_id > part.newest
            and begin <= last
            and first <= (child.ending_hash if part.partly else begin)
            and not any(child.starting_hash in ranges[other] for other in others if other in ranges)
        ):
            found.append(
                replace(
                    part,
                    key=ShardKey(part.key.stream, child.shard_id),
                    hash_range=(child.starting_hash, child.ending_hash),
                    start=TRIM_HORIZON if part.since is None else part.start,
                    last=None,
                    horizon=created if part.since is None else None,
                    created=created,
                    refused=part.refused or (part.partly and bool(others)),
                )
            )
    return found


def batch_ranges(stream: str, shards: Iterable[Shard], start: ReadBound, end: ReadBound) -> list[BatchRange]:
    """Return the ranges of a stream's shards, parents before children. `shards` are all listed shards.

    The ancestors of a shard with a separate start are not read, nor are the descendants of a shard that ends at a sequence number. `start`
    and `end` must contain a time instead of `LATEST`.

    >>> from kinesis_efo.positions import TRIM_HORIZON
    >>> parent = Shard("p", (), (0, 9), first=1, last=5)
    >>> left, right = Shard("l", ("p",), (0, 4), first=6), Shard("r", ("p",), (5, 9), first=6)
    >>> tip = ReadBound(Position.at_timestamp(99), {})
    >>> for part in batch_ranges("orders", [right, left, parent], ReadBound(TRIM_HORIZON, {"l": Position.after(7)}), tip):
    ...     print(part)
    orders:l from AFTER:7 to AT_TIMESTAMP:99
    orders:r from TRIM_HORIZON to AT_TIMESTAMP:99
    >>> for part in batch_ranges("orders", [right, left, parent], ReadBound(TRIM_HORIZON, {}), ReadBound(tip.everywhere, {"p": Position.after(3)})):
    ...     print(part)
    orders:p from TRIM_HORIZON to AFTER:3
    """
    lineage = Lineage(shards)
    starts, finishes = begins(lineage, start), _finishes(lineage, end)
    found = []
    for shard in lineage.shards:
        begin, finish = starts.get(shard.shard_id), finishes.get(shard.shard_id)
        if begin is not None and finish is not None and begin != finish:
            key = ShardKey(stream, shard.shard_id)
            found.append(BatchRange(key, shard.hash_range, begin, finish, shard.last, created=created_at(shard)))
    return [part for part in found if not part.is_empty]


def _finishes(lineage: Lineage, end: ReadBound) -> dict[str, Position]:
    """Return the end of each shard's range. Omits shards that begin after the end of the read."""
    reachable = None if end.open_then is None else lineage.ancestors(end.open_then) | set(end.open_then)
    found: dict[str, Position] = {}
    cut: dict[str, Position] = {}
    beyond: set[str] = set()
    for shard in lineage.shards:
        name = shard.shard_id
        if name in end.named:
            found[name] = end.named[name]
            if found[name].kind is PositionKind.AT_TIMESTAMP:
                cut[name] = found[name]
            elif not found[name].is_end:
                beyond.add(name)
        elif not beyond.isdisjoint(shard.parents):
            beyond.add(name)
        elif inherited := [cut[parent] for parent in shard.parents if parent in cut]:
            found[name] = cut[name] = min(inherited, key=lambda position: position.value)
        elif reachable is None or name in reachable:
            found[name] = end.everywhere
    return found
