"""Creates a fetcher's reports to a run in another process: what the run needs to plan micro-batches, without the records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.work import RowKey, ShardNews
from kinesis_efo.options import Bounds
from kinesis_efo.positions import Position, PositionKind, ShardKey

MOST_ENTRIES: Final = 5_000
"""Approximate maximum number of events in one report. A report of this size takes about half a megabyte."""


@dataclass(slots=True)
class _PlannerView:
    """What this fetcher has reported to the run about a buffer."""

    buffer: ShardBuffer
    entries: int = 0
    drops: int = 0
    before_end: tuple[Position, int] | None = None  # The option's end position, and the last record up to it


class Reporter:
    """Collects the changes of a fetcher's buffers since the last report. `news` is notified when a report should be sent soon.

    `ends` is the option `endingPosition`. Reports include the last record before an end, which only the fetcher can find within an event.
    """

    def __init__(self, fetcher: Fetcher, ends: Bounds | None = None) -> None:
        self.news = Signal()
        self._fetcher = fetcher
        self._ends = ends or Bounds()
        self._views: dict[RowKey, _PlannerView] = {}
        self._touched: set[RowKey] = set()
        self.waits = False

    def touch(self, rows: Iterable[RowKey]) -> None:
        self._touched.update(rows)

    def wake(self) -> None:
        self.waits = True
        self.news.notify()

    def reset(self) -> None:
        """Called when the run lacks earlier reports: makes the next report complete."""
        self._views.clear()
        self._touched = {feed.row for feed in self._fetcher}

    def collect(self, most_entries: int = MOST_ENTRIES) -> list[ShardNews]:
        """Return the changes since the last call. If there are too many for one report, the next call returns the rest."""
        self.waits = False
        touched, self._touched = self._touched, set()
        feeds = {feed.row: feed for feed in self._fetcher if feed.row in touched}
        news = []
        entries = 0
        for row in touched:
            feed = feeds.get(row)
            if feed is None or feed.buffer is None:
                self._views.pop(row, None)
            elif entries >= most_entries:
                self._touched.add(row)
                self.waits = True
            else:
                news.append(self._of(feed, feed.buffer))
                entries += len(news[-1].events)
        return news

    def _of(self, feed: ShardFeed, buffer: ShardBuffer) -> ShardNews:
        start = None
        view = self._views.get(feed.row)
        # Report the whole buffer if it is new, or if it has dropped events that were not reported yet.
        if view is None or view.buffer is not buffer or view.entries < buffer.compacted:
            view = self._views[feed.row] = _PlannerView(buffer)
            start = buffer.start
        events, view.entries = buffer.entries_since(view.entries)
        low, view.drops = buffer.start if view.drops != buffer.drops else None, buffer.drops
        view.before_end = view.before_end or self._before_end(feed.key, buffer)
        return replace(
            feed.news(buffer),
            start=start,
            low=low,
            events=events,
            children=self._fetcher.children(feed.key) if buffer.end.is_end else [],
            subscription=self._fetcher.subscription(feed.key),
            lowest=buffer.lowest if buffer.starts_unnumbered else None,
            before_end=view.before_end,
        )

    def _before_end(self, key: ShardKey, buffer: ShardBuffer) -> tuple[Position, int] | None:
        end = self._ends.shards[key] if key in self._ends.shards else self._ends.of(key.stream)
        if end is None or end.kind is not PositionKind.AFTER or buffer.start.reaches(end):
            return None
        last = buffer.last_up_to(end, buffer.start)
        return None if last is None else (end, last)
