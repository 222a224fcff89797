"""Decides which range of each shard (a `Stretch`) a batch read covers. Does no I/O.

A read's time range is half open, and rows are selected by arrival time. Therefore, reads of `[8:00, 9:00)` and `[9:00, 10:00)` together
return each row of the two hours once, even if Kinesis does not start exactly at a time, or if parents and children overlap in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kinesis_efo.decisions.lineage import Lineage, Shard, Side, begins
from kinesis_efo.decisions.losses import Gap, gap
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.records.events import ChildShard


@dataclass(frozen=True, slots=True)
class Stretch:
    """The range of one shard in a batch read."""

    key: ShardKey
    hash_range: tuple[int, int] | None  # Drop aggregates with hash keys outside of this range; None disables dropping
    start: Position  # `TRIM_HORIZON`, `AT_TIMESTAMP`, `AFTER` or `INSIDE`
    end: Position  # `AT_TIMESTAMP` (exclusive), `AFTER` or `SHARD_END`
    last: int | None = None  # The shard's last sequence number; None if the shard was open when the read was planned
    horizon: float | None = None  # The trim horizon at planning, epoch seconds; None disables the check for losses
    created: float = 0.0  # When the shard was created, epoch seconds; used only with `horizon`
    newest: str | None = None  # The newest shard listed when the read was planned; None to ignore newer shards
    partly: bool = False  # Whether the read has separate start or end positions for some shards
    refused: bool = False  # Whether any row is an error, because another range may also return it
    planned: float = 0.0  # When the read was planned, epoch seconds by Kinesis' clock
    stream_created: int | None = None  # When the stream was created, epoch seconds; None if unknown

    def __str__(self) -> str:
        return f"{self.key} from {self.start} to {self.end}"

    @property
    def since(self) -> int | None:
        """Epoch milliseconds; rows that arrived earlier do not belong to the range. None if the start is not a time."""
        return self.start.value if self.start.kind is PositionKind.AT_TIMESTAMP else None

    @property
    def until(self) -> int | None:
        """Epoch milliseconds; rows that arrived then or later do not belong to the range. None if the end is not a time."""
        return self.end.value if self.end.kind is PositionKind.AT_TIMESTAMP else None


def trimmed(stretch: Stretch, earliest: float, latest: float, *, again: bool) -> Gap | None:
    """Return what was trimmed from a shard's range between planning and reading; None if nothing was.

    `earliest` and `latest` are the bounds of the trim horizon when reading begins, epoch seconds. `again`: this is a later attempt of a
    Spark task, which must return the same rows as the first attempt.

    >>> horizon = Position.parse("TRIM_HORIZON")
    >>> stretch = Stretch(ShardKey("orders", "s"), None, horizon, Position.after(9), horizon=1000.0, created=500.0)
    >>> trimmed(stretch, 1060.0, 1062.0, again=False)
    Gap(since=1000.0, horizon=1060.0, tolerated=True)
    >>> trimmed(stretch, 1601.0, 1603.0, again=False)
    Gap(since=1000.0, horizon=1601.0, tolerated=False)
    """
    if stretch.horizon is None:
        return None
    since = max(stretch.horizon, stretch.created)
    if again:
        return Gap(since, latest, tolerated=False) if latest > stretch.created else None
    return gap(since, earliest, stretch.horizon)


def unlisted(stretch: Stretch, children: Iterable[ChildShard]) -> list[Stretch]:
    """Return the ranges of a shard's children that were not listed when the read was planned: ListShards may be a minute old.

    After a merge, both parents announce the same child. Its range is returned for the older parent only, unless the read is `partly`.

    >>> stretch = Stretch(ShardKey("orders", "s2"), None, Position.parse("TRIM_HORIZON"), Position.at_timestamp(99), newest="s2")
    >>> [str(each) for each in unlisted(stretch, [ChildShard("s3", ("s2",), 0, 9), ChildShard("s4", ("s1", "s2"), 0, 9)])]
    ['orders:s3 from TRIM_HORIZON to AT_TIMESTAMP:99']
    """
    if stretch.newest is None or stretch.until is None:
        return []
    created = stretch.planned - 90.0  # at the earliest: the plan's list of shards may be a minute old
    return [
        replace(
            stretch,
            key=ShardKey(stretch.key.stream, child.shard_id),
            hash_range=None if stretch.hash_range is None else (child.starting_hash, child.ending_hash),
            start=TRIM_HORIZON if stretch.since is None else stretch.start,
            last=None,
            horizon=created if stretch.since is None else None,
            created=created,
            refused=stretch.refused or (stretch.partly and len(child.parents) > 1),
        )
        for child in children
        if child.shard_id > stretch.newest
        and (stretch.partly or min(child.parents, default=stretch.key.shard) == stretch.key.shard)
    ]


def stretches(stream: str, shards: Iterable[Shard], start: Side, end: Side) -> list[Stretch]:
    """Return the ranges of a stream's shards, parents before children, given all listed `shards`. The tip must be given as a time.

    A shard with a separate start is read without its ancestors; a shard that ends at a sequence number, without its descendants.

    >>> from kinesis_efo.positions import TRIM_HORIZON
    >>> parent = Shard("p", (), (0, 9), first=1, last=5)
    >>> left, right = Shard("l", ("p",), (0, 4), first=6), Shard("r", ("p",), (5, 9), first=6)
    >>> tip = Side(Position.at_timestamp(99), {})
    >>> for stretch in stretches("orders", [right, left, parent], Side(TRIM_HORIZON, {"l": Position.after(7)}), tip):
    ...     print(stretch)
    orders:l from AFTER:7 to AT_TIMESTAMP:99
    orders:r from TRIM_HORIZON to AT_TIMESTAMP:99
    >>> for stretch in stretches("orders", [right, left, parent], Side(TRIM_HORIZON, {}), Side(tip.everywhere, {"p": Position.after(3)})):
    ...     print(stretch)
    orders:p from TRIM_HORIZON to AFTER:3
    """
    lineage = Lineage(shards)
    starts, finishes = begins(lineage, start), _finishes(lineage, end)
    found = []
    for shard in lineage.shards:
        begin, finish = starts.get(shard.shard_id), finishes.get(shard.shard_id)
        if begin is not None and finish is not None and begin != finish:
            found.append(Stretch(ShardKey(stream, shard.shard_id), shard.hash_range, begin, finish, shard.last))
    return found


def _finishes(lineage: Lineage, end: Side) -> dict[str, Position]:
    """Return where the range of each shard ends. Omits shards that begin after the end of the read."""
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
