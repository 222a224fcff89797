"""What the run's event loop knows of buffers in other processes, from the reports of fetchers. Micro-batches are planned from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import ShardStatus, Subscription
from kinesis_efo.fetcher.work import ShardNews
from kinesis_efo.kinesis.stats import SILENCE_SECONDS
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange


class ShardSnapshot:
    """The reported events of one shard, whose buffer began at `start`. The fetcher `owner` may buffer `budget` bytes.

    Times that are passed in are monotonic, in seconds. `behind` is the lag in milliseconds; `read_until` a time, epoch seconds, before
    which no record after the last event arrived. Each is None if unknown. `begun` is whether the
    run's first query began at `start`, so that it has no position before it; False once an event was dropped.
    """

    def __init__(self, owner: str, start: Position, budget: int, *, begun: bool = False) -> None:
        self.owner = owner
        self.budget = budget
        self.index = EventIndex(start)
        self.behind: int | None = None
        self.read_until: float | None = None
        self.begun = begun
        self._lasts: list[LastRecord | None] = []
        self._last: LastRecord | None = None
        self._subscription: Subscription | None = None
        self._heard_at: float | None = None
        self._seen_until: float | None = None
        self._quiet_since: float | None = None
        self._before_end: tuple[Position, int] | None = None

    def note(self, news: ShardNews, now: float) -> None:
        """Note everything in a report except its events."""
        self.behind, self.read_until, self._subscription = news.behind, news.read_until, news.subscription
        self._heard_at = now
        self._seen_until = None if news.unseen is None else now - news.unseen
        self._quiet_since = now - news.quiet if news.quiet else None
        if news.before_end is not None:
            self._before_end = news.before_end
        if news.lowest is not None:
            self.index.vouch(news.lowest)

    def quiet(self, now: float) -> float:
        """Seconds for which the shard seems to have had no more records, according to the last report; 0 if it may have some."""
        return 0.0 if self._quiet_since is None else now - self._quiet_since

    def has_all_since(self, since: float) -> bool:
        """Whether the reported events include everything that arrived before `since`."""
        return self.index.ended or (self._seen_until is not None and self._seen_until >= since)

    def status(self, key: ShardKey, fetcher: str | None, now: float) -> ShardStatus:
        """The status of the shard, according to the last report. `fetcher` is the name by which tools show its fetcher."""
        index, told, since = self.index, self._subscription, self._heard_at
        quiet = 0.0 if since is None else now - since
        silent = round(1000 * quiet) if quiet > SILENCE_SECONDS and not index.ended else 0
        return ShardStatus(
            *key,
            str(index.end),
            index.held,
            index.records,
            None if index.waiting_since is None else max(0.0, now - index.waiting_since),
            None if self.behind is None else self.behind + silent,
            fetcher,
            None if told is None else msgspec.structs.replace(told, age=None if told.age is None else told.age + quiet),
            oldest=index.lag(index.start, now),
        )

    def append(self, events: Iterable[BufferedEvent], now: float) -> int:
        """Add events; returns their bytes."""
        size = 0
        for event in events:
            record = event.last_record
            last = None if record is None else record.number
            if self.index.append(
                event.through.sequence_number,
                event.size,
                event.records,
                now,
                event.arrivals,
                last=last,
                behind=event.age,
            ):
                self._lasts.append(record)
            size += event.size
        return size

    def last_record(self, wanted: ShardRange) -> int | None:
        """The sequence number of the last record of a range; None if there is none, or if it is unknown."""
        if self._before_end is not None and wanted.through == self._before_end[0]:
            return self._before_end[1] if wanted.after.precedes(self._before_end[1]) else None
        return self.index.last_up_to(wanted.through, wanted.after)

    def commit(self, position: Position) -> LastRecord | None:
        """Drop the events before a position; returns the last record before it, if known."""
        gone, stop = self.index.gone, self.index.index_after(position)
        if stop > gone:
            self._last = next((last for last in reversed(self._lasts[gone:stop]) if last is not None), self._last)
            self.index.drop(stop)
            # The snapshot no longer starts where the query began.
            self.begun = False
            del self._lasts[: self.index.compact()]
        return self._last if self.index.start == position else None


class ShardSnapshots:
    """Keeps a snapshot of each reported shard; implements `Buffers`.

    `shared` is whether the run has had several queries, so that one may have a position before the start of a shard's buffer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._snapshots: dict[ShardKey, ShardSnapshot] = {}
        self._begun: dict[ShardKey, Position] = {}
        self.shared = False

    # -- what fetchers report

    def note(self, fetcher: str, budget: int, news: ShardNews) -> int | None:
        """Add a fetcher's report of one shard. Returns the bytes of the new events; None if earlier reports are missing."""
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
        """The status of each shard of one stream (None: of all streams). `fetcher_of` returns the name of a shard's fetcher for tools."""
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
        """The reported events of a shard; None if none were reported."""
        snapshot = self._snapshots.get(key)
        return snapshot.index if snapshot is not None else None

    def _covers(self, snapshot: ShardSnapshot, position: Position) -> bool:
        return bool(snapshot.index.covers(position)) or (snapshot.begun and not self.shared)

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
