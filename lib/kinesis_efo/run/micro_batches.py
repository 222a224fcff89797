"""Decides from the buffered events how far the next micro-batch of a query reads each shard.

Checking thousands of idle shards in each poll would be too slow. So a poll only checks shards that have changed since the last poll, and
shards with records that are not planned yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.alignment import Alignment
from kinesis_efo.decisions.event_index import EventIndex, Portion
from kinesis_efo.decisions.planning import NO_LIMIT, ShardProgress, is_behind, plan
from kinesis_efo.fetcher.budget import EVENT_OVERHEAD, Signal
from kinesis_efo.positions import Offset, Position, ShardKey
from kinesis_efo.records.events import data_in

if TYPE_CHECKING:
    from kinesis_efo.run.table import Row


class MicroBatchPlanner:
    """Plans the micro-batches of one query.

    Args:
        row: Returns the buffer that has all records after a position in a shard; None if there is no such buffer.
        read_until: Returns the low watermark of a position, epoch seconds; None if unknown.
        check: Raises the error that has ended the query or the run, if any.
        max_skew: How far a shard may be ahead of the slowest shard, in seconds of arrival time; None for no limit.
    """

    def __init__(
        self,
        row: Callable[[ShardKey, Position], Row | None],
        read_until: Callable[[ShardKey, Position], float | None],
        clock: Clock,
        check: Callable[[], None],
        max_skew: float | None = None,
    ) -> None:
        self.offset: Offset | None = None  # The query's positions at its last poll
        self.finished_shards: frozenset[ShardKey] = frozenset()
        self._row = row
        self._clock = clock
        self._check = check
        self._alignment = Alignment(max_skew, read_until) if max_skew is not None else None
        self._fresh: set[ShardKey] = set()
        self._waiting: set[ShardKey] = set()
        self._reported: dict[ShardKey, Position] = {}
        self._news = Signal()

    def touch(self, shards: Iterable[ShardKey]) -> None:
        """Called when the buffers of these shards may have changed: the next poll checks them."""
        self._fresh.update(shards)

    def finish(self, shards: frozenset[ShardKey]) -> None:
        """Set the shards that the query has finished. With `maxShardSkew`, the other shards no longer wait for them."""
        self.finished_shards = shards
        if self._alignment is not None:
            self._alignment.follow({}, shards, self._clock.monotonic())

    def wake(self) -> None:
        """Wake a waiting poll."""
        self._news.notify()

    def follow(self, offset: Offset) -> None:
        """Record the query's positions. The next poll checks the shards that have moved."""
        before = self.offset
        if offset is before:
            return
        moved = offset.changes_since(before)
        left = before.keys() - offset.keys() if before is not None else set()
        # An idle shard that has only moved to the position returned by the last poll need not be checked.
        self._fresh |= {key for key, at in moved.items() if key in self._waiting or self._reported.get(key) != at}
        self._waiting -= moved.keys() | left
        for key in left:
            self._reported.pop(key, None)
        if self._alignment is not None:
            self._alignment.follow(moved, left | self.finished_shards, self._clock.monotonic())
        self.offset = offset

    async def poll(self, offset: Offset, max_data: int, max_records: int, at_most: float) -> list[ShardProgress]:
        """Return how far the next micro-batch may read each shard. Waits at most `at_most` seconds for records or the end of a shard."""
        self.follow(offset)
        give_up_at = self._clock.monotonic() + at_most
        idle: dict[ShardKey, Portion] = {}
        while True:
            self._check()
            rows: dict[ShardKey, Row] = {}
            idle |= self._check_changed(offset, rows)
            shards = self._progress(offset, max_data, max_records, idle, rows)
            news = any(shard.records or shard.through.is_end for shard in shards)
            left = give_up_at - self._clock.monotonic()
            if news or left <= 0 or not await self._news.within(left):
                return shards

    async def until_tip(self, at_most: float) -> None:
        """Wait up to `at_most` seconds for records in a shard that the query has read to the tip."""
        give_up_at = self._clock.monotonic() + at_most
        seen: set[ShardKey] = set()
        try:
            while (left := give_up_at - self._clock.monotonic()) > 0 and await self._news.within(left):
                self._check()
                fresh, self._fresh = self._fresh, set()
                seen |= fresh
                if any(map(self._is_news_at_tip, fresh)):
                    return
        finally:
            self._fresh |= seen

    def _is_news_at_tip(self, key: ShardKey) -> bool:
        position = None if self.offset is None else self.offset.get(key)
        row = None if position is None or position.is_end else self._row(key, position)
        if row is None or position is None or is_behind(row.behind):
            return False
        return row.index.news_since(position) is not None

    def _check_changed(self, offset: Offset, rows: dict[ShardKey, Row]) -> dict[ShardKey, Portion]:
        """Check changed shards for records after `offset`. Add their buffers to `rows`, and return new positions of idle shards."""
        idle = {}
        fresh, self._fresh = self._fresh, set()
        for key in fresh:
            self._waiting.discard(key)
            position = offset.get(key)
            if position is None or position.is_end:
                continue
            if (row := self._row(key, position)) is None:
                # No buffer covers this position yet. Check the shard in every poll: a buffer may cover it later even without a new event.
                self._fresh.add(key)
                continue
            rows[key] = row
            if row.index.news_since(position) is None:
                idle[key] = row.index.portion(position, 0, 0)
                self._reported[key] = idle[key].through
                if self._alignment is not None:
                    self._alignment.record_position(key, row.index, position, self._clock.monotonic())
            else:
                self._waiting.add(key)
        return idle

    def _progress(
        self, offset: Offset, max_data: int, max_records: int, idle: dict[ShardKey, Portion], rows: dict[ShardKey, Row]
    ) -> list[ShardProgress]:
        others = {*self._waiting, *idle} - rows.keys()
        rows |= {key: row for key in others if (row := self._row(key, offset[key])) is not None}
        buffers = {key: rows[key].index for key in self._waiting if key in rows}
        planning = partial(self._plan_portions, rows, buffers, offset, max_data, max_records)
        now = self._clock.monotonic()
        if self._alignment is None:
            portions = planning(None)
        else:
            portions = self._alignment.plan_portions(buffers, offset, planning, now)
        return [
            ShardProgress(
                key,
                portion.through,
                portion.records,
                portion.bytes,
                rows[key].behind if key in rows else None,
                portion.last,
                rows[key].quiet(now) if key in idle and key in rows else 0.0,
                _data(portion) if portion.records else 0,
                more := key in buffers and portion.through != buffers[key].end,
                buffers[key].lag(portion.through, now) if more else None,
            )
            for key, portion in {**idle, **portions}.items()
        ]

    def _plan_portions(
        self,
        rows: Mapping[ShardKey, Row],
        buffers: Mapping[ShardKey, EventIndex],
        offset: Offset,
        max_data: int,
        max_records: int,
        horizon: float | None,
    ) -> dict[ShardKey, Portion]:
        """Plan a micro-batch with at most `max_data` bytes of data, if possible. If a plan has more, plans again with fewer events."""
        groups: dict[tuple[str, bool], list[ShardKey]] = {}
        for key in buffers:
            groups.setdefault((rows[key].fetcher, rows[key].key.is_shared), []).append(key)
        max_bytes = NO_LIMIT
        while True:
            portions: dict[ShardKey, Portion] = {}
            for keys in groups.values():
                # Plan at most half of the buffer, so that the next micro-batch fits into the other half while Spark processes this one.
                limit = min(max_bytes, rows[keys[0]].room // 2)
                portions |= plan({key: buffers[key] for key in keys}, offset, limit, max_records, horizon)
            size = sum(each.bytes for each in portions.values())
            if size > max_bytes or sum(each.records for each in portions.values()) > max_records:
                portions = plan(buffers, offset, max_bytes, max_records, horizon)
                size = sum(each.bytes for each in portions.values())
            # Buffered payloads are base64, which is longer than the data. So estimate the data only if the buffered bytes exceed the limit.
            data = 0 if size <= max_data else sum(map(_data, portions.values()))
            # If the plan exceeds `max_bytes`, it cannot be made smaller: a micro-batch has at least one event with records.
            if data <= max_data or size > max_bytes:
                return portions
            max_bytes = size * max_data // data


def _data(portion: Portion) -> int:
    """Estimate the bytes of data in a shard's planned events. Return at least 1 per record: long partition keys lower the estimate."""
    payloads = portion.bytes - EVENT_OVERHEAD * portion.events
    return max(portion.records, round(data_in(payloads, portion.records, portion.events) or 0))
