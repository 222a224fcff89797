"""The fetcher: buffers the events of shards, starting at positions that the run assigns, and serves ranges of these events to tasks.

It runs in one event loop and is not thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import attrgetter, itemgetter
from typing import Final, Protocol

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.losses import Facts
from kinesis_efo.decisions.rows import BELIEVED_SECONDS, MOVE_SECONDS, NEAR_SECONDS
from kinesis_efo.errors import DataLossError, KinesisEfoError, RetriesExhaustedError
from kinesis_efo.failure import Failure, stopped
from kinesis_efo.fetcher.background import in_background
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.buffer import CLAIM_SECONDS, Cursor, NotCovered, ShardBuffer
from kinesis_efo.fetcher.feed import FetchCounts, RowListener, ShardFeed
from kinesis_efo.fetcher.shortfall import Shortfall
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Order, RowKey
from kinesis_efo.kinesis.delivery import EventSink
from kinesis_efo.kinesis.recovery import ReadContext
from kinesis_efo.kinesis.subscription import ShardSubscription
from kinesis_efo.positions import Position, PositionKind, ShardKey, ShardRange
from kinesis_efo.records.events import ChildShard

logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 1.0
_SEPARATE_PART: Final = 4
"""Divisor for the part of the fetcher's memory (1/4) that is reserved for separate buffers while queries are catching up."""
_STALE_SECONDS: Final = 7.0
"""If an empty buffer waits this many seconds for space, drop the events of another buffer that has been unused for at least as long."""
_PAST_SECONDS: Final = 10.0
"""Maximum seconds that a range waits for its last record if the record is older than the retention and its loss is accepted."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    fail_on_data_loss: bool
    patience: float  # Maximum seconds that a task waits until the fetcher may read the task's shard
    arrival_step: int | None = None  # Resolution of the recorded arrival times, milliseconds; None disables recording
    timeout: float = 600.0  # A range fails if Kinesis returns only empty responses for this many seconds


class Coordinator(Protocol):
    """Decides which shards a fetcher may read. Called in the fetcher's event loop.

    `failure` stores the error that ends reading. A fetcher in the run's process shares it with the run; a remote fetcher has its own.
    """

    failure: Failure

    def may_read(self, shard: ShardKey) -> bool:
        """Whether the fetcher may read a shard now. Checks the lease's expiry at each call, because the process may have been suspended."""

    async def may_open(self, shard: ShardKey) -> None:
        """Wait until the fetcher may open a subscription to a shard, which another fetcher or run may have acquired."""

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """Return the error for a task whose shard the fetcher was not allowed to read for `seconds`."""

    def facts(self, row: RowKey, position: Position) -> Facts:
        """Return what is known about a position in a buffer: its low watermark, and whether the loss of records after it is accepted."""

    def failed(self, row: RowKey, error: KinesisEfoError) -> None:
        """Report an error. If `row` names a query, the error fails this query; otherwise, it ends all reading."""


class Fetcher:
    """Fills buffers as instructed by the run, and serves ranges of events from them.

    Attributes:
        budget: The memory of the buffers that all queries share.
        separate: The memory of the separate buffers of queries that are catching up; taken from `budget` while there are such buffers.
        counts: Received events and bytes, by the name of the query that has separate buffers; None is the key of the shared buffers.
    """

    read_chunk_bytes = 1 << 20
    """Approximate size of the chunks that `read` yields. Copies of a chunk need memory in addition to the budget."""

    def __init__(self, streams: Streams, budget: Budget, settings: FetcherSettings, clock: Clock) -> None:
        self.budget = budget
        self.separate: Final = Budget(1, now=clock.monotonic)
        self.room: Final = budget.limit
        self.counts: Final[defaultdict[str | None, FetchCounts]] = defaultdict(FetchCounts)
        self.settings: Final = settings
        self._streams = streams
        self._clock = clock
        self._feeds: dict[RowKey, ShardFeed] = {}
        self._readers: Counter[RowKey] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._coordinator: Coordinator
        self._listener: RowListener
        self._readings: set[_RangeReading] = set()
        self._beyond: dict[tuple[ShardKey, Position], float] = {}
        self._orders_changed = Signal()

    def start(self, coordinator: Coordinator, listener: RowListener) -> None:
        """Start watching the streams. `coordinator` decides which shards may be read; `listener` is notified of changed buffers."""
        self._coordinator, self._listener = coordinator, listener
        coordinator.failure.on_set(self._wake_all)
        self._tasks = [
            in_background(self._streams.watch(self._clock, self._listed), "watching the shards", coordinator.failure),
            in_background(self._make_room(), "making room", coordinator.failure),
        ]

    async def stop(self) -> None:
        """Stop fetching and close all connections. Tasks that are waiting for events receive an error."""
        self._coordinator.failure.adopt(stopped())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.close(self._feeds), return_exceptions=True)

    @property
    def may_poll(self) -> bool:
        """Whether all streams can be read with GetRecords."""
        return all(stream.separate is not None for stream in self._streams.streams.values())

    # -- called by the run

    def apply_orders(self, orders: Mapping[RowKey, Order | None]) -> None:
        """Apply the run's instruction for each of these buffers. None closes the buffer once no task reads from it."""
        for row, order in orders.items():
            feed = self._feeds.get(row)
            if order is None:
                if feed is not None:
                    feed.order = None
                    self._close_unneeded(row)
            else:
                # Apply the order even if the shard may not be read yet: the run sends it only once, and the subscription waits if needed.
                if feed is None:
                    feed = self._feeds[row] = self._feed(row)
                    self._share_room()
                feed.apply_order(order)
        self._orders_changed.notify()

    async def close(self, rows: Iterable[RowKey]) -> None:
        """Stop filling these buffers now, and wait until their connections are closed."""
        feeds = [feed for row in list(rows) if (feed := self._feeds.pop(row, None)) is not None]
        closing = [task for feed in feeds if (task := feed.close()) is not None]
        self._share_room()
        await asyncio.gather(*closing, return_exceptions=True)

    def __iter__(self) -> Iterator[ShardFeed]:
        """Iterate over the open feeds. Thread-safe."""
        return iter(list(self._feeds.values()))

    def feed(self, row: RowKey) -> ShardFeed | None:
        """Return the feed that fills a buffer; None if the run has not requested the buffer, or the shard may not be read now."""
        return self._feeds.get(row) if self._coordinator.may_read(row.shard) else None

    def _close_unneeded(self, row: RowKey) -> None:
        feed = self._feeds.get(row)
        if feed is not None and feed.order is None and not self._readers[row]:
            del self._feeds[row]
            feed.close()
            self._share_room()

    def _share_room(self) -> None:
        part = self.room // _SEPARATE_PART if not all(row.is_shared for row in self._feeds) else 0
        self.separate.limit, self.budget.limit = max(1, part), self.room - part

    async def _make_room(self) -> None:
        """Periodically provide space for empty buffers that would wait forever, if necessary by dropping events that no task reads."""
        while True:
            await self._clock.sleep(1.0)
            for budget in (self.budget, self.separate):
                buffers = [feed.buffer for feed in self if feed.buffer is not None and feed.budget is budget]
                late = [(waits, each) for each in buffers if not each.held and (waits := each.waits or 0.0) >= 2.0]
                if not late:
                    continue
                waits, first = max(late, key=itemgetter(0))
                if budget.used <= budget.limit:
                    first.exceed()
                elif waits >= _STALE_SECONDS:
                    now = self._clock.monotonic()
                    stale = [
                        each
                        for each in buffers
                        if each.records and not each.is_read and now - each.touched_at >= _STALE_SECONDS
                    ]
                    if stale:
                        min(stale, key=attrgetter("touched_at")).drop_unread()

    # -- status for the run and its tools

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range. A task that stopped reading long ago does not count. Thread-safe."""
        long_ago = self._clock.monotonic() - CLAIM_SECONDS
        handed = [reading.handed_at for reading in list(self._readings)]
        return any(at is None or at >= long_ago for at in handed)

    def subscription(self, key: ShardKey) -> Subscription | None:
        """Return the status of a shard's subscription; None before the first subscription."""
        stats = self._streams.stream(key.stream).subscriptions.stats.get(key.shard)
        return Subscription.of(stats, self._clock.monotonic()) if stats is not None else None

    def children(self, key: ShardKey) -> list[ChildShard]:
        """Return the children of a shard that has ended."""
        return list(self._streams.stream(key.stream).children(key.shard))

    # -- reading ranges for tasks

    def read(
        self, row: RowKey, wanted: ShardRange, asked_at: float | None = None, query: str = ""
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the payloads that cover a range, a few at a time, from the buffer `row`.

        `asked_at` is when the range was requested, monotonic seconds (None: now). Raises:

        - `NotCovered` if the rest of the range is not in this buffer and will not get there soon.
        - `DataLossError` if the last record of the range is lost and the loss is not accepted.
        - `RetriesExhaustedError` if the end of the range is not reached in time.
        """
        return _RangeReading(self, row, wanted, asked_at, query).payloads()

    async def _timeout(self, wanted: ShardRange) -> float:
        """Return the seconds without progress after which a range fails."""
        settings, stream, last = self.settings, self._streams.stream(wanted.key.stream), wanted.last
        if last is not None and not self._loss_is_fatal(wanted) and await stream.is_past(wanted.key.shard, last):
            # The record was trimmed, so give up soon: while a range waits for it in vain, further records may be trimmed.
            return min(settings.timeout, _PAST_SECONDS)
        return settings.timeout

    def _loss_is_fatal(self, wanted: ShardRange) -> bool:
        accepted = self._coordinator.facts(RowKey(None, wanted.key), wanted.after).accepts_loss(wanted.after)
        return self.settings.fail_on_data_loss and not accepted

    def _waits_for(self, row: RowKey) -> str:
        if not self._coordinator.may_read(row.shard):
            return "this fetcher may not read the shard now: the run does not own the lease, or the shard is assigned to another fetcher"
        return self._subscriptions(row).describe(row.shard.shard)

    def _feed(self, row: RowKey) -> ShardFeed:
        return ShardFeed(
            row,
            partial(self._subscribe, row),
            self.budget if row.is_shared else self.separate,
            self._listener,
            partial(self._streams.add_children, row.shard),
            partial(self._coordinator.failed, row),
            self.counts[row.query],
            self._clock,
            fail_on_data_loss=self.settings.fail_on_data_loss,
            lost=partial(self._lost, row.shard),
            arrival_step=self.settings.arrival_step,
        )

    def _subscriptions(self, row: RowKey) -> ReadContext:
        stream = self._streams.stream(row.shard.stream)
        return stream.subscriptions if row.is_shared or stream.separate is None else stream.separate

    def _subscribe(self, row: RowKey, start: Position, sink: EventSink) -> ShardSubscription:
        key = row.shard
        known = self._coordinator.facts(row, start)
        may_open = partial(self._coordinator.may_open, key)
        stream = self._streams.stream(key.stream)
        return stream.subscribe(key.shard, start, sink, known, may_open, reader=row.query)

    async def _lost(self, key: ShardKey, cause: str) -> None:
        losses = self._streams.stream(key.stream).losses
        losses.add(key.shard, cause, "; continuing without it, as options allow")
        await losses.write_soon()

    def _listed(self, name: str) -> None:
        """Called after a stream's shards were listed. Passes the last sequence numbers of closed shards to their feeds."""
        stream = self._streams.stream(name)
        for feed in self:
            key = feed.key
            shard = stream.shard(key.shard) if key.stream == name else None
            if shard is not None and shard.last is not None:
                feed.close_at(shard.last, stream.children(key.shard))
        self._listener.wake()

    def _wake_all(self) -> None:
        self._listener.wake()
        for signal in (self._orders_changed, *(feed.signal for feed in self)):
            signal.notify()

    @contextmanager
    def _retained(self, row: RowKey) -> Iterator[None]:
        """Retain a buffer while a task reads from it, even if the run no longer requests the buffer."""
        self._readers[row] += 1
        try:
            yield
        finally:
            self._readers[row] -= 1
            if not self._readers[row]:
                del self._readers[row]
            self._close_unneeded(row)


class FetcherSource:
    """Serves the tasks of one query from the buffers that all queries share; implements `RangeSource`."""

    def __init__(self, fetcher: Fetcher, clock: Clock, query: str) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._query = query

    def expect(self, _: Iterable[ShardRange]) -> float:
        return self._clock.monotonic()

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        return self._fetcher.read(RowKey(None, wanted.key), wanted, asked_at, self._query)


class _RangeReading:
    """Reads one range for a task from a buffer.

    `handed_at` is when the task received the last payloads, monotonic seconds; None while it is waiting for more.
    """

    def __init__(self, fetcher: Fetcher, row: RowKey, wanted: ShardRange, asked_at: float | None, query: str) -> None:
        self.handed_at: float | None = None
        self._fetcher = fetcher
        self._row = row
        self._query = query
        self._clock = fetcher._clock
        self._left = wanted
        self._over = wanted.is_over
        self._asked_at = self._clock.monotonic() if asked_at is None else asked_at
        self._ahead_since: float | None = None
        self._shortfall: Shortfall

    async def payloads(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the payloads that cover the range, a few at a time. Raises the same errors as `Fetcher.read`."""
        fetcher, wanted = self._fetcher, self._left
        fails, waits_for = fetcher._loss_is_fatal(wanted), partial(fetcher._waits_for, self._row)
        timeout = await fetcher._timeout(wanted)
        self._shortfall = Shortfall(
            wanted,
            timeout,
            self._clock.monotonic(),
            waits_for,
            fail=fails,
            beyond_since=fetcher._beyond.get((wanted.key, wanted.through)),
        )
        fetcher._readings.add(self)
        try:
            with fetcher._retained(self._row):
                while not self._over:
                    feed = await self._feed()
                    buffer = feed.buffer
                    if buffer is None or buffer.covers(self._left.after) is False:
                        raise NotCovered(self._left)
                    async with aclosing(self._buffered(feed, buffer)) as found:
                        async for payloads in found:
                            self.handed_at = self._clock.monotonic()
                            yield payloads
                            self.handed_at = None
                            # Restart the time limits only now: processing the payloads may have taken the task a long time.
                            self._shortfall.progressed(self._clock.monotonic())
                            fetcher._beyond.pop((wanted.key, wanted.through), None)
                if self._shortfall.lost:
                    await fetcher._lost(wanted.key, self._shortfall.lost)
        except (DataLossError, RetriesExhaustedError) as error:
            # Fail the query at once: if Spark retried the task, the new attempt would wait just as long.
            fetcher._coordinator.failed(RowKey(self._query, self._row.shard), error)
            raise
        finally:
            fetcher._readings.remove(self)

    async def _feed(self) -> ShardFeed:
        """Wait until the shard may be read, then return its feed. After a crash, the earlier run's lease has to expire first."""
        fetcher = self._fetcher
        patience = fetcher.settings.patience
        allowed_at, give_up_at = inf, self._clock.monotonic() + patience
        while (feed := fetcher.feed(self._row)) is None:
            fetcher._coordinator.failure.raise_if_set()
            now = self._clock.monotonic()
            self._shortfall.check_progress(self._left.after, now)
            allowed_at = min(allowed_at, now) if fetcher._coordinator.may_read(self._row.shard) else inf
            if now - allowed_at >= _AGAIN_SECONDS:
                raise NotCovered(self._left)  # the run has not requested this buffer
            if now >= give_up_at:
                raise fetcher._coordinator.refusal(self._row.shard, patience)
            await fetcher._orders_changed.within(min(give_up_at - now, _AGAIN_SECONDS))
        return feed

    async def _buffered(self, feed: ShardFeed, buffer: ShardBuffer) -> AsyncGenerator[list[bytes], None]:
        """Yield the range's payloads from a feed's buffer, until the range ends or this buffer cannot supply the rest."""
        key, after, through, last = self._left
        if buffer.start == after and through.kind is PositionKind.AFTER:
            buffer.extend_coverage(through.value)
        with buffer.reading(after, through, last, self._asked_at, self._query) as cursor:
            while buffer.covers(cursor.position) is not False and self._fetcher.feed(self._row) is feed:
                if payloads := cursor.read(self._fetcher.read_chunk_bytes):
                    self._ahead_since = None
                    yield payloads
                self._over = cursor.done
                if self._over or cursor.beyond is not None:
                    break
                if not payloads and not await self._wait_for_change(feed, buffer, cursor):
                    break
        self._left = ShardRange(key, cursor.settled, through, last)
        if cursor.beyond is None:
            return
        now = self._clock.monotonic()
        self._over = self._shortfall.went_beyond(cursor.settled, now)
        if self._over:
            if cursor.beyond:
                yield cursor.beyond
            return
        self._fetcher._beyond.setdefault((self._row.shard, through), now)
        await self._clock.sleep(_AGAIN_SECONDS)
        if feed.buffer is buffer:
            # Drop the event that should contain the record. The run then makes the fetcher read the range from Kinesis again.
            buffer.drop_unread(min(buffer.index_after(cursor.position) + 1, len(buffer)))
        raise NotCovered(self._left)

    async def _wait_for_change(self, feed: ShardFeed, buffer: ShardBuffer, cursor: Cursor) -> bool:
        """Wait up to a second for the buffer to change. Return whether to continue with this range."""
        await feed.signal.within(1.0)
        self._fetcher._coordinator.failure.raise_if_set()
        now = self._clock.monotonic()
        self._shortfall.check_progress(cursor.position, now)
        self._over = self._shortfall.check_quiet(cursor.position, buffer.quiet)
        lag = max(feed.millis_behind or 0, buffer.lag_since(now - BELIEVED_SECONDS))
        if not buffer.ends_before(cursor.position) or lag <= NEAR_SECONDS * 1000:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = now
        # Stop waiting if the shared buffer stays far behind this range: its subscription then serves other queries, which are behind.
        waits_for_others = self._ahead_since is not None and now - self._ahead_since >= MOVE_SECONDS
        if waits_for_others or (feed.has_failed and not self._over):
            raise NotCovered(ShardRange(self._left.key, cursor.settled, self._left.through, self._left.last))
        return not self._over
