"""The table of a run's buffers: for each shard, a shared buffer, and a separate buffer per query that is catching up with GetRecords.

The fetcher in the run's process updates the table with calls, other fetchers with messages. The table may be outdated: a fetcher that runs
out of space may drop events before it reports this. Tasks that request these events then repeat their requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.losses import Facts
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.decisions.rows import BELIEVED_SECONDS, BufferView, Demand, decide
from kinesis_efo.errors import AccessRefusedError, FetcherUnreachableError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.buffer import BufferedEvent, ShardBuffer
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.status import ShardStatus, Subscription
from kinesis_efo.fetcher.work import Order, RowKey, ShardNews
from kinesis_efo.kinesis.stats import SILENCE_SECONDS, State
from kinesis_efo.kinesis.topology import SharedCall
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position, ShardKey, ShardRange, lowest, rank
from kinesis_efo.run.micro_batches import MicroBatchPlanner

logger = logging.getLogger(__name__)

Positions: TypeAlias = Mapping[ShardKey, Position]
_NONE: Final[Mapping[Any, Any]] = {}
_AGAIN_SECONDS: Final = 60.0
_MANY_MOVES: Final = 10
_LATELY_SECONDS: Final = 12.0
"""Seconds without a report after which a buffer may be behind its shard's tip. Within this time, even a subscription to an idle shard
receives at least two events."""


class ReportedIndex(EventIndex):
    """The index of a buffer in another process, from its fetcher's reports."""

    def __init__(self, start: Position) -> None:
        super().__init__(start)
        self.before_end: tuple[Position, int] | None = None
        self._lasts: list[LastRecord | None] = []
        self._last: LastRecord | None = None

    def add(self, events: Iterable[BufferedEvent], now: float) -> int:
        """Add the events of a report. Return their total size in bytes."""
        size = 0
        for event in events:
            record = event.last_record
            last = None if record is None else record.number
            if self.append(
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

    def _columns(self) -> tuple[list[Any], ...]:
        return *super()._columns(), self._lasts

    def drop_before(self, position: Position) -> None:
        gone, stop = self.gone, self.index_after(position)
        if stop > gone:
            self._last = next((last for last in reversed(self._lasts[gone:stop]) if last is not None), self._last)
            self.drop(stop)

    def last_up_to(self, through: Position, after: Position) -> int | None:
        if self.before_end is not None and through == self.before_end[0]:
            return self.before_end[1] if after.precedes(self.before_end[1]) else None
        return super().last_up_to(through, after)

    def last_record_up_to(self, position: Position) -> LastRecord | None:
        return self._last if self.start == position else None


class Row:
    """The state of one buffer. Times are monotonic seconds.

    For attributes that are not listed here, see `ShardNews` and `Order`.

    Attributes:
        fetcher: The name of the fetcher that fills the buffer; empty for the fetcher in the run's process.
        moved_at: When the buffer last moved to another position, or received its first event there. The next move must wait some seconds.
    """

    def __init__(self, key: RowKey, start: Position, version: int, now: float) -> None:
        self.key: Final = key
        self.moved_at = now
        self.restart(start, version, now)

    def restart(self, start: Position, version: int, now: float) -> None:
        """Restart the buffer at `start`, and discard the state that its fetcher has reported."""
        self.start = self.retain_from = start
        self.version = version
        self.index = EventIndex(start)
        self.retained: Mapping[str, Position] = {}
        self.facts: Facts | None = None
        self.is_heard = self._has_come = False
        self.fetcher, self.room = "", 1
        self.reported_at = now
        self.behind: int | None = None
        self.read_until: float | None = None
        self.waits = self.lost = False
        self.subscription: Subscription | None = None
        self._seen_until: float | None = None
        self._quiet_since: float | None = None

    def apply_report(self, news: ShardNews, now: float, made_at: float) -> None:
        """Apply a report, except for its events. The report was created after `made_at` (monotonic seconds), and received at `now`."""
        if not self._has_come and len(self.index):
            self._has_come, self.moved_at = True, now
        self.is_heard, self.reported_at = True, now
        self.behind, self.read_until, self.lost = news.behind, news.read_until, news.lost
        self.waits, self.subscription = news.waits, news.subscription
        self._seen_until = None if news.unseen is None else made_at - news.unseen
        self._quiet_since = now - news.quiet if news.quiet else None

    def quiet(self, now: float) -> float:
        """Return for how many seconds the buffer has apparently been at the shard's tip; 0 if the shard may have more records."""
        unheard = self.waits or now - self.reported_at > _LATELY_SECONDS
        return 0.0 if self._quiet_since is None or unheard else now - self._quiet_since

    def has_all_since(self, since: float) -> bool:
        """Whether the buffer has received all records that arrived in the shard before `since`."""
        return self.index.ended or (self._seen_until is not None and self._seen_until >= since)

    def behind_now(self, now: float) -> int | None:
        """Return by how many milliseconds the end of the buffer is behind the shard's tip; None if unknown."""
        if self.index.ended:
            return 0
        silent = now - self.reported_at
        return None if self.behind is None else self.behind + (round(1000 * silent) if silent > SILENCE_SECONDS else 0)

    def view(self, now: float) -> BufferView:
        """Return a snapshot of the buffer's state, as input for `decisions.rows.decide`."""
        behind = self.behind_now(now)
        earlier = self.index.lag_since(now - BELIEVED_SECONDS)
        return BufferView(
            self.index,
            None if behind is None else max(behind, earlier) / 1000,
            now - self.reported_at,
            now - self.moved_at,
            self.waits,
            bool(self.quiet(now)),
        )

    def order(self) -> Order:
        """Return the `Order` for the buffer's fetcher: the positions from which to fetch and to retain events."""
        kept = sorted(self.retained.items()) if len(self.retained) > 1 else []
        return Order(self.version, self.start, self.retain_from, kept)

    def status(self, fetcher: str | None, subscription: Subscription | None, now: float) -> ShardStatus:
        """Return the shard's status for tools. `fetcher` is the name of its fetcher, `subscription` the state of its subscription."""
        index, behind = self.index, self.behind_now(now)
        if behind is not None and subscription is not None and subscription.state == State.WAITING.value:
            behind = max(behind, (self.behind or 0) + round(1000 * (subscription.age or 0.0)))  # it has failed
        waiting = None if index.waiting_since is None else max(0.0, now - index.waiting_since)
        end, held, records, oldest = str(index.end), index.held, index.records, index.lag(index.start, now)
        return ShardStatus(*self.key.shard, end, held, records, waiting, behind, fetcher, subscription, oldest=oldest)


class Table:
    """The buffers of a run, and the queries that read from them. It lives in the run's event loop.

    Args:
        home: The fetcher in the run's process.
        may_read: Returns whether the run may read a shard now.
        send_orders: Called with the keys of buffers whose fetchers need a new instruction (`Order`).
        hold: Whether queries that share a full buffer wait for the slowest query (option `slowQueries`).
    """

    def __init__(
        self,
        home: Fetcher,
        clock: Clock,
        may_read: Callable[[ShardKey], bool],
        send_orders: Callable[[Collection[RowKey]], None],
        *,
        hold: bool = False,
    ) -> None:
        self.home: Final = home
        self.clock: Final = clock
        self.queries: dict[str, QueryRows] = {}
        self.shared: Final[dict[ShardKey, Row]] = {}
        self.orders_changed = Signal()  # Notified after each call of `send_orders`
        self._separate: dict[ShardKey, dict[str, Row]] = {}
        self._may_read = may_read
        self._send_orders = send_orders
        self._hold = hold
        self._may_poll: bool | None = None
        self._version = 0
        self._suspended: set[ShardKey] = set()
        self._watched: set[ShardKey] = set()
        self._touched: set[RowKey] = set()
        self._check_scheduled = self._wakes = False
        self._warned_at = -inf
        self._moves: Counter[ShardKey] = Counter()

    @property
    def may_poll(self) -> bool:
        """Whether queries may catch up with GetRecords."""
        return self.home.may_poll if self._may_poll is None else self._may_poll

    def forbid_polling(self, why: AccessRefusedError) -> None:
        """Stop using GetRecords, because access was denied. From now on, all queries that read a shard wait for the slowest query."""
        if self._may_poll is not None:
            return
        self._may_poll = False
        # Do not warn if there is a single query, which does not have to wait for other queries.
        level = logging.WARNING if len(self.queries) > 1 else logging.INFO
        logger.log(
            level,
            "queries of this program that read the same stream wait for the slowest one, because they may not catch up with GetRecords: %s",
            why,
        )
        self.update_orders(self._separate)

    def join(self, name: str, progress: Progress, max_skew: float | None, check: Callable[[], None]) -> QueryRows:
        """Add a query. See `MicroBatchPlanner` for `max_skew` and `check`."""
        query = self.queries[name] = QueryRows(self, name, progress, max_skew, check)
        return query

    def leave(self, query: QueryRows) -> None:
        """Remove a query, and drop events that were only retained for it."""
        if self.queries.get(query.name) is query:
            del self.queries[query.name]
            self.update_orders([*query.shards(), *self._separate])

    def get_query(self, name: str) -> QueryRows:
        """Return a query by its name. Raises `FetcherUnreachableError` if the query has ended, or has not joined this run yet."""
        try:
            return self.queries[name]
        except KeyError:
            raise FetcherUnreachableError("the query of this task has ended, or has not joined this run yet") from None

    def suspend(self, shards: Collection[ShardKey]) -> None:
        """Close all buffers of some shards until `resume` is called."""
        self._suspended |= {*shards}
        self.update_orders(shards)

    def resume(self, shards: Collection[ShardKey]) -> None:
        """Open the buffers of suspended shards again."""
        self._suspended -= {*shards}
        self.update_orders(shards)

    def touch(self, rows: Iterable[RowKey]) -> None:
        """Called when the fetcher in this process has changed these buffers: schedules an update of the table."""
        self._touched.update(rows)
        if not self._check_scheduled:
            self._check_scheduled = True
            asyncio.get_running_loop().call_soon(self._check_touched)

    def wake(self) -> None:
        self._wakes = True
        self.touch(())

    def _check_touched(self) -> None:
        touched, self._touched = self._touched, set()
        wakes, self._wakes, self._check_scheduled = self._wakes, False, False
        for key in touched:
            feed, row = self.home.feed(key), self._row(key)
            if feed is None or feed.buffer is None or row is None:
                continue
            news = feed.news(feed.buffer)
            if news.version == row.version:
                row.index = feed.buffer
                row.room = feed.budget.limit
                row.apply_report(news, now := self.clock.monotonic(), now)
        self.on_reports({key.shard for key in touched}, wakes=wakes)

    def apply_report(self, news: ShardNews, fetcher: str, room: int, made_at: float) -> int | None:
        """Apply a report about a shard from a fetcher in another process, created after `made_at` (monotonic seconds).

        Returns the bytes of new events; None if an earlier report was lost. `room` is the fetcher's buffer size in bytes.
        """
        row, now = self.shared.get(news.key), self.clock.monotonic()
        if row is None or row.version != news.version:
            return 0
        if news.start is not None:
            row.index = ReportedIndex(news.start)
        elif not row.is_heard:
            return None
        index = row.index
        assert isinstance(index, ReportedIndex)
        row.fetcher, row.room = fetcher, room
        size = index.add(news.events, now)
        index.before_end = news.before_end or index.before_end
        if news.lowest is not None:
            index.extend_coverage(news.lowest)
        if news.low is not None:
            index.drop_before(news.low)
        if index.covers(row.retain_from):
            # Drop events that the fetcher is about to drop, so that they are not planned.
            index.drop_before(row.retain_from)
        row.apply_report(news, now, made_at)
        return size

    def on_reports(self, shards: Collection[ShardKey], *, wakes: bool) -> None:
        """After reports about `shards`, update fetchers' instructions and make queries check the shards. With `wakes`, also wake polls."""
        self.update_orders(shards)
        for query in list(self.queries.values()):
            query.planner.touch(shards)
            if wakes:
                query.planner.wake()

    def tick(self) -> None:
        """Update the instructions for fetchers that depend on the time. Called once a second."""
        self.touch(RowKey(name, key) for key, rows in self._separate.items() for name in rows)
        self.update_orders(list(self._watched))

    def update_orders(
        self, shards: Iterable[ShardKey], query: str = "", requested: Positions = _NONE, finished: Positions = _NONE
    ) -> dict[ShardKey, LastRecord]:
        """Decide where the buffers of `shards` start and from where they retain events. Send changed instructions to fetchers.

        Returns the last record up to each position in `finished`, if known.

        Args:
            requested: The positions from which tasks of `query` are waiting to read.
            finished: The positions up to which `query` has finished.
        """
        lasts: dict[ShardKey, LastRecord] = {}
        changed: set[RowKey] = set()
        may_read: dict[str, bool] = {}
        shards = set(shards)
        asked = {query: requested}
        found = {name: each.demands(shards, asked.get(name, _NONE)) for name, each in self.queries.items()}
        for key in shards:
            if (reads := may_read.get(key.stream)) is None:
                reads = may_read[key.stream] = self._may_read(key)
            demands = {name: each[key] for name, each in found.items() if key in each}
            self._update_row(key, demands if reads and key not in self._suspended else {}, changed)
            at = finished.get(key)
            if at is not None and (last := self._last_record_up_to(query, key, at)) is not None:
                lasts[key] = last
            if not reads:
                self._watched.add(key)  # check again in `tick`: a lease that has almost expired may still be renewed
        if changed:
            self._send_orders(changed)
            self.orders_changed.notify()
        return lasts

    def _update_row(self, key: ShardKey, demands: Mapping[str, Demand], changed: set[RowKey]) -> None:
        shared, separate = self.shared.get(key), self._separate.get(key, _NONE)
        if not demands:
            self._watched.discard(key)
            if shared is not None:
                del self.shared[key]
                changed.add(shared.key)
            self._close(key, separate.keys(), changed)
            return
        if shared is not None and not separate and not shared.waits:
            index, kept = shared.index, {}
            for name, (low, _, requested) in demands.items():
                if requested is not None or not index.covers(low) or (low != index.end and index.ends_before(low)):
                    break
                kept[name] = low
            else:  # the usual case: the shared buffer serves all queries, so that `decide` would not change anything
                self._watched.discard(key)
                self._retain(shared, kept, low if len(kept) == 1 else lowest(kept.values()), changed)
                return
        self._watched.add(key)
        now = self.clock.monotonic()
        found = decide(
            demands,
            None if shared is None else shared.view(now),
            {name: row.view(now) for name, row in separate.items()},
            hold=self._hold,
            may_poll=self.may_poll,
        )
        if (at := found.restart_at) is not None:
            shared = self._restart(RowKey(None, key), at, changed)
            if found.rules[0] != "open":
                logger.debug("shard %s: the subscription restarts at %s (%s)", key, at, found.rules[0])
            self._moves[key] += found.rules[0] == "back" and len(demands) > 1
        assert shared is not None
        is_full = "full" in found.rules
        if (is_full or self._moves[key] >= _MANY_MOVES) and now - self._warned_at >= _AGAIN_SECONDS:
            self._warned_at = now
            logger.warning(
                "shard %s: %d bytes are buffered for a slow query of this program, so that there is no space for another query: the slow "
                "query catches up with GetRecords, also in other shards"
                if is_full
                else "shard %s: the subscription has moved %d times between queries of this program that are far apart, because they may not "
                "catch up with GetRecords; Kinesis delivers, and charges for, the same records each time",
                key,
                shared.index.held if is_full else self._moves.pop(key),
            )
        if shared.index.covers(found.retain_from):
            self._retain(shared, found.retained, found.retain_from, changed)
        self._close(key, separate.keys() - found.separate.keys(), changed)
        for name, start in found.separate.items():
            row = separate.get(name)
            if row is None or not row.view(now).has(start) or row.index.ends_before(start):
                row = self._restart(RowKey(name, key), start, changed)
            if row.index.covers(demands[name].lowest):
                self._retain(row, {}, demands[name].lowest, changed)

    def _retain(self, row: Row, kept: Mapping[str, Position], keep: Position, changed: set[RowKey]) -> None:
        if keep != row.retain_from or kept != row.retained:
            row.retain_from, row.retained = keep, kept
            if isinstance(row.index, ShardBuffer):  # a buffer of this process: drop the events directly
                row.index.drop_before(keep, kept if len(kept) > 1 else _NONE)
                return
            changed.add(row.key)
            if isinstance(row.index, ReportedIndex):
                row.index.drop_before(keep)

    def _restart(self, key: RowKey, start: Position, changed: set[RowKey]) -> Row:
        """Move the subscription or polling that fills a buffer to another position, or create the buffer."""
        self._version += 1
        now = self.clock.monotonic()
        rows = None if key.query is None else self._separate.setdefault(key.shard, {})
        row = self._row(key)
        if row is None:
            row = Row(key, start, self._version, now)
            if rows is None or key.query is None:
                self.shared[key.shard] = row
            else:
                rows[key.query] = row
        else:
            row.restart(start, self._version, now)
            row.moved_at = now
        changed.add(key)
        return row

    def _close(self, key: ShardKey, names: Iterable[str], changed: set[RowKey]) -> None:
        rows = self._separate.get(key, {})
        for name in list(names):
            changed.add(rows.pop(name).key)
        if not rows:
            self._separate.pop(key, None)

    def reopen(self, shards: Iterable[ShardKey]) -> None:
        """Restart the shared buffers of shards that a fetcher has stopped reading, at their first retained event. Keeps `moved_at`."""
        unused = []
        for key in shards:
            row = self.shared.get(key)
            if row is None or not row.is_heard:
                continue
            if row.retained:
                self._version += 1
                row.restart(row.retain_from, self._version, self.clock.monotonic())
            else:
                del self.shared[key]
                unused.append(key)
            self.touch_queries((key,))
        self.update_orders(unused)

    def touch_queries(self, shards: Collection[ShardKey]) -> None:
        """Make all queries check these shards in their next poll."""
        for query in self.queries.values():
            query.planner.touch(shards)

    def _row(self, key: RowKey) -> Row | None:
        return self.shared.get(key.shard) if key.query is None else self.separate(key.query, key.shard)

    def separate(self, query: str, key: ShardKey) -> Row | None:
        """Return the query's separate buffer for a shard; None if the query is not catching up in this shard."""
        return self._separate.get(key, {}).get(query)

    def order(self, key: RowKey) -> Order | None:
        """Return the instruction for the fetcher of a buffer; None if the fetcher must close the buffer."""
        row = self._row(key)
        return None if row is None else row.order()

    def serving(self, query: str, key: ShardKey, position: Position) -> RowKey | None:
        """Return the key of the buffer that can serve a task of a query from `position` on; None if the task has to wait."""
        shared, own, now = self.shared.get(key), self.separate(query, key), self.clock.monotonic()
        if shared is not None and shared.view(now).serves(position):
            return shared.key
        if own is not None and own.view(now).has(position):
            return own.key
        return shared.key if shared is not None and not self.may_poll and shared.view(now).has(position) else None

    def find(self, query: str, wanted: Positions, *, in_turn: bool = False) -> dict[ShardKey, RowKey | None]:
        """Return the result of `serving` for each position in `wanted`. If no buffer serves a shard, first try to move or open a buffer.

        Set `in_turn` if one task reads the shards in this order. Without GetRecords, only the first shard's buffer is then moved.
        """
        found = {key: self.serving(query, key, at) for key, at in wanted.items()}
        if missing := {key: wanted[key] for key, row in found.items() if row is None}:
            urgent = {*missing} if self.may_poll or not in_turn else {*[*wanted][:1]}
            self.update_orders(missing, query, {key: at for key, at in missing.items() if key in urgent})
            found |= {key: self.serving(query, key, at) for key, at in missing.items()}
        return found

    def read_until(self, key: ShardKey, position: Position, *, lost: bool = True) -> float | None:
        """Return the low watermark of a position, epoch seconds; None if unknown.

        Without `lost`, buffers that have skipped lost records are ignored: other queries must still detect this loss.
        """
        rows = (self.shared.get(key), *self._separate.get(key, {}).values())
        found = [
            row.read_until
            for row in rows
            if row is not None and row.index.has_nothing_after(position) and (lost or not row.lost)
        ]
        return max((each for each in found if each is not None), default=None)

    def last_record(self, query: str, wanted: ShardRange) -> int | None:
        """Return the sequence number of a range's last record; None if the range has no records or is not buffered."""
        now = self.clock.monotonic()
        for row in (self.shared.get(wanted.key), self.separate(query, wanted.key)):
            if row is not None and row.view(now).has(wanted.after):
                last = row.index.last_up_to(wanted.through, wanted.after)
                if last is not None:
                    return last
        return None

    def _last_record_up_to(self, query: str, key: ShardKey, position: Position) -> LastRecord | None:
        row, own = self.shared.get(key), self._separate.get(key, _NONE).get(query)
        last = None if row is None else row.index.last_record_up_to(position)
        return last if last is not None or own is None else own.index.last_record_up_to(position)

    def statuses(self, stream: str | None, fetcher_of: Callable[[ShardKey], str | None]) -> list[ShardStatus]:
        """Return the status of each shard in `stream` (all streams if None). `fetcher_of` returns the name of a shard's fetcher."""
        now = self.clock.monotonic()
        found = []
        for key, row in self.shared.items():
            if stream in (None, key.stream):
                told = row.subscription
                if not row.fetcher:
                    told = self.home.subscription(key)
                elif told is not None and told.age is not None:
                    told = replace(told, age=told.age + now - row.reported_at)
                found.append(row.status(fetcher_of(key), told, now))
        return found


class QueryRows:
    """The buffers from which one query plans and reads.

    `failure` stores an error that ends only this query. With `pauses`, only already planned events are fetched for the query. `checked`
    has the shards without losses at the query's start (None: all). The others are not fetched: a loss in a shared buffer fails all queries.
    `replay` is a check for losses that must succeed before the query's tasks are served (None: no check).
    """

    def __init__(
        self,
        table: Table,
        name: str,
        progress: Progress,
        max_skew: float | None,
        check: Callable[[], None],
    ) -> None:
        self.name: Final = name
        self.failure = Failure()
        self.pauses = False
        self.checked: set[ShardKey] | None = None
        self.replay: SharedCall[None] | None = None
        self._table = table
        self._progress = progress
        self.planner: Final = MicroBatchPlanner(self.row, table.read_until, table.clock, check, max_skew)
        self.failure.on_set(self.planner.wake)

    def shards(self) -> set[ShardKey]:
        """Return all shards in the query's finished and planned offsets."""
        return {*(self._progress.finished or ()), *(self._progress.reach or ())}

    def demands(self, shards: Iterable[ShardKey], requested: Positions = _NONE) -> dict[ShardKey, Demand]:
        """Return, for each shard, the positions at which the query needs a buffer. Leaves out shards that the query does not read now."""
        finished, reach = self._progress.finished, self._progress.reach
        found: dict[ShardKey, Demand] = {}
        if finished is None or reach is None:
            return found
        pauses = self.pauses and finished is reach
        for key in shards:
            at, to, asked = finished.get(key), reach.get(key), requested.get(key)
            if key in self.planner.finished_shards or (pauses and asked is None):
                continue
            if at is None:
                if to is None or not any(each.stream == key.stream for each in finished):
                    continue  # the planned micro-batch adds this stream, and later ones read it
                at = TRIM_HORIZON
            if not at.is_end and (self.checked is None or key in self.checked or asked is not None):
                found[key] = Demand(at, SHARD_END if to is None else to, asked)
        return found

    def row(self, key: ShardKey, position: Position) -> Row | None:
        """Return the buffer for planning the query's next range of a shard, after `position`; None if no buffer covers that position."""
        shared = self._table.shared.get(key)
        if (
            shared is not None
            and key not in self._table._separate
            and key not in self.planner.finished_shards
            and shared.index.covers(position)
        ):
            return shared  # the usual case: no query is catching up in this shard
        if (demand := self.demands((key,)).get(key)) is None:
            return None
        now, rows = self._table.clock.monotonic(), (shared, self._table.separate(self.name, key))
        found = [row for row in rows if row and ((view := row.view(now)).has(position) or view.has(demand.lowest))]
        return max(found, key=lambda row: rank(row.index.end), default=None)

    @property
    def has_separate_rows(self) -> bool:
        """Whether the query has a separate buffer in any shard. Thread-safe."""
        return any(self.name in rows for rows in list(self._table._separate.values()))
