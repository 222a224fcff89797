"""What the run knows of a shard's buffer in another process, from the reports of the shard's fetcher."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import ShardStatus, Subscription
from kinesis_efo.fetcher.work import ShardNews
from kinesis_efo.kinesis.stats import QUIET_SECONDS
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange


class ShardSnapshot:
    """The reported events of one shard.

    Args:
        owner: The name of the fetcher.
        start: The start of its buffer.
        budget: Bytes that the fetcher may buffer.
        begun: Whether the run's first query began at `start`, so that this query has no position before it.

    Attributes:
        index: The events.
        behind: Milliseconds by which reading lags; None if unknown.
        read_until: A time, epoch seconds, before which no record after the last event arrived; None if unknown.
        tip: The tip that the shard had when the fetcher began to read it; None if unknown.
        begun: Like the argument, but False once an event was dropped.
    """

    def __init__(self, owner: str, start: Position, budget: int, *, begun: bool = False) -> None:
        self.owner = owner
        self.budget = budget
        self.index = EventIndex(start)
        self.behind: int | None = None
        self.read_until: float | None = None
        self.tip: Position | None = None
        self.begun = begun
        self._lasts: list[LastRecord | None] = []
        self._last: LastRecord | None = None
        self._subscription: Subscription | None = None
        self._heard_at: float | None = None
        self._seen_until: float | None = None
        self._quiet_since: float | None = None
        self._before_end: tuple[Position, int] | None = None

    def note(self, news: ShardNews, now: float) -> None:
        """Note everything in a report except its events.

        Args:
            news: The report.
            now: Monotonic time, seconds.
        """
        self.behind, self.read_until, self._subscription = news.behind, news.read_until, news.subscription
        self.tip = news.tip
        self._heard_at = now
        self._seen_until = None if news.unseen is None else now - news.unseen
        self._quiet_since = now - news.quiet if news.quiet else None
        if news.before_end is not None:
            self._before_end = news.before_end
        if news.lowest is not None:
            self.index.vouch(news.lowest)

    def quiet(self, now: float) -> float:
        """Seconds for which the shard seems to have had no more records, according to the last report; 0 if it may have some.

        Args:
            now: Monotonic time, seconds.
        """
        return 0.0 if self._quiet_since is None else now - self._quiet_since

    def has_all_since(self, since: float) -> bool:
        """Whether the reported events include everything that arrived before `since`, monotonic seconds."""
        return self.index.ended or (self._seen_until is not None and self._seen_until >= since)

    def status(self, key: ShardKey, fetcher: str | None, now: float) -> ShardStatus:
        """The status of the shard, according to the last report.

        Args:
            key: The shard.
            fetcher: The name of its fetcher.
            now: Monotonic time, seconds.
        """
        index, told, since = self.index, self._subscription, self._heard_at
        quiet = 0.0 if since is None else now - since
        silent = round(1000 * quiet) if quiet > QUIET_SECONDS and not index.ended else 0
        return ShardStatus(
            *key,
            str(index.end),
            index.held,
            index.records,
            None if index.waiting_since is None else max(0.0, now - index.waiting_since),
            None if self.behind is None else self.behind + silent,
            fetcher,
            None if told is None else msgspec.structs.replace(told, age=None if told.age is None else told.age + quiet),
        )

    def append(self, events: Iterable[BufferedEvent], now: float) -> int:
        """Add events.

        Args:
            events: The reported events.
            now: Monotonic time, seconds.

        Returns:
            The bytes of the events.
        """
        size = 0
        for event in events:
            record = event.last_record
            last = None if record is None else record.number
            if self.index.append(event.through.sequence_number, event.size, event.records, now, event.marks, last=last):
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
