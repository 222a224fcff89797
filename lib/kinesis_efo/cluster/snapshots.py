"""What the run knows of the buffers in other processes, from the reports of the fetchers. Micro-batches are planned from it.

All of this happens in the run's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kinesis_efo.clock import Clock
from kinesis_efo.cluster.snapshot import ShardSnapshot
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.fetcher.work import ShardNews
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange


class ShardSnapshots:
    """Keeps a snapshot of each reported shard; implements `Buffers`.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._snapshots: dict[ShardKey, ShardSnapshot] = {}
        self._begun: dict[ShardKey, Position] = {}
        self._several = False

    # -- what fetchers report

    def note(self, fetcher: str, budget: int, news: ShardNews) -> int | None:
        """Add a report of one shard.

        Args:
            fetcher: The name of its fetcher.
            budget: Bytes that this fetcher may buffer.
            news: The report.

        Returns:
            The bytes of the new events; None if earlier reports are missing.
        """
        key, snapshot, now = news.key, self._snapshots.get(news.key), self._clock.monotonic()
        if news.start is not None:
            snapshot = ShardSnapshot(fetcher, news.start, budget, begun=news.start == self._begun.get(key))
            self._snapshots[key] = snapshot
        elif snapshot is None or snapshot.owner != fetcher:
            return None
        size = snapshot.append(news.events, now)
        snapshot.note(news, now)
        return size

    def is_idle(self, key: ShardKey) -> bool:
        """Whether the newest event of a shard had no records."""
        return self._snapshots[key].index.idle

    def forget(self, key: ShardKey) -> None:
        """Drop the snapshot of a shard that its fetcher no longer reads."""
        self._snapshots.pop(key, None)

    def forget_all_of(self, fetcher: str) -> None:
        """Drop the snapshots of all shards of a fetcher."""
        for key in [key for key, snapshot in self._snapshots.items() if snapshot.owner == fetcher]:
            del self._snapshots[key]

    # -- what queries need

    def begin(self, positions: Mapping[ShardKey, Position]) -> None:
        """Note the positions at which the run begins to read new shards."""
        self._begun |= positions

    def shared_by_several(self) -> None:
        """Note that there are several queries, so that one may have a position before the start of a shard's buffer."""
        self._several = True

    def end(self, key: ShardKey) -> None:
        """Drop a shard that no query reads any more."""
        self._begun.pop(key, None)
        self.forget(key)

    def commit(self, key: ShardKey, position: Position) -> LastRecord | None:
        """Drop the events before a position; returns the last record before it, if known."""
        snapshot = self._snapshots.get(key)
        return snapshot.commit(position) if snapshot is not None else None

    def last_record(self, wanted: ShardRange) -> int | None:
        snapshot = self._snapshots.get(wanted.key)
        return None if snapshot is None or not self._covers(snapshot, wanted.after) else snapshot.last_record(wanted)

    def tip(self, key: ShardKey) -> Position | None:
        snapshot = self._snapshots.get(key)
        return snapshot.tip if snapshot is not None else None

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        snapshot = self._snapshots.get(key)
        return snapshot.index.end if snapshot is not None and snapshot.has_all_since(since) else None

    @property
    def fullest(self) -> float:
        """The part of its budget that the fullest fetcher uses; 1 means all of it."""
        held: dict[str, int] = {}
        budgets: dict[str, int] = {}
        for snapshot in self._snapshots.values():
            held[snapshot.owner] = held.get(snapshot.owner, 0) + snapshot.index.held
            budgets[snapshot.owner] = snapshot.budget
        return max((held[owner] / max(1, budgets[owner]) for owner in held), default=0.0)

    def statuses(self, stream: str | None, fetcher_of: Callable[[ShardKey], str | None]) -> list[ShardStatus]:
        """The status of each shard, according to the last reports.

        Args:
            stream: Only the shards of this stream; None: all.
            fetcher_of: Returns the name of a shard's fetcher.
        """
        now = self._clock.monotonic()
        return [
            snapshot.status(key, fetcher_of(key), now)
            for key, snapshot in self._snapshots.items()
            if stream in (None, key.stream)
        ]

    # -- what the micro-batch planner asks

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        snapshot = self._snapshots.get(key)
        return snapshot.index if snapshot is not None and self._covers(snapshot, position) else None

    def found(self, key: ShardKey) -> EventIndex | None:
        """The events of a shard, wherever they start; None if none were reported."""
        snapshot = self._snapshots.get(key)
        return snapshot.index if snapshot is not None else None

    def _covers(self, snapshot: ShardSnapshot, position: Position) -> bool:
        return bool(snapshot.index.covers(position)) or (snapshot.begun and not self._several)

    def millis_behind(self, key: ShardKey) -> int | None:
        snapshot = self._snapshots.get(key)
        return snapshot.behind if snapshot is not None else None

    def quiet(self, key: ShardKey) -> float:
        snapshot = self._snapshots.get(key)
        return snapshot.quiet(self._clock.monotonic()) if snapshot is not None else 0.0

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        snapshot = self._snapshots.get(key)
        return snapshot.read_until if snapshot is not None and snapshot.index.end == position else None

    def budgets(self, keys: Collection[ShardKey]) -> Iterable[tuple[Collection[ShardKey], int]]:
        """Group shards by fetcher, because the shards of a fetcher share its budget."""
        groups: dict[str, list[ShardKey]] = {}
        for key in keys:
            # A shard has no snapshot if it has just gone to another fetcher, because another shard was restarted.
            if (snapshot := self._snapshots.get(key)) is not None:
                groups.setdefault(snapshot.owner, []).append(key)
        return [(group, self._snapshots[group[0]].budget) for group in groups.values()]
