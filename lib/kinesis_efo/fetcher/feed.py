"""Fills the buffer of one shard from a subscription or with GetRecords, as instructed by the run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from kinesis_efo.clock import Clock
from kinesis_efo.errors import DataLossError, KinesisEfoError
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.work import Order, RowKey, ShardNews
from kinesis_efo.kinesis.delivery import EventSink
from kinesis_efo.kinesis.subscription import ShardSubscription
from kinesis_efo.positions import Position
from kinesis_efo.records.events import ChildShard, Event, EventHead

logger = logging.getLogger(__name__)

_STEP_SECONDS: Final = 1.0
_STILL_SECONDS: Final = 4.0
"""Minimum seconds between reports of empty GetRecords responses. Such a response has a new lag, but does not advance the position."""
_LAGS: Final = 3
"""How many lags (`MillisBehindLatest`), a second or more apart, are needed to infer how far the shard was read: one lag may be wrong."""

_END = Event(b"", EventHead(continuation=None, millis_behind=0, records=0))


@dataclass(slots=True)
class FetchCounts:
    """Counts the events (or GetRecords responses) that a fetcher has received, and the bytes of their payloads."""

    events: int = 0
    bytes: int = 0


class RowListener(Protocol):
    """Receives notifications of changed buffers, in the fetcher's event loop. Implemented by the run's `Table` and by `Reporter`."""

    def touch(self, rows: Iterable[RowKey]) -> None:
        """Record that these buffers have changed, so that the listener examines them later."""

    def wake(self) -> None:
        """Examine the changed buffers as soon as possible: there may be new records to plan."""


class ShardFeed:
    """Fills the buffer of one shard as its `Order` requires.

    Args:
        subscribe: Creates a subscription that starts at a position and delivers events to a sink.
        listener: Notified when the buffer changes.
        ended: Called with the shard's children when the last event of the shard has arrived.
        failed: Called with the error if the shard can no longer be read.
        counts: Counts the received events and bytes.
        fail_on_data_loss: If False, a shard whose unread records were trimmed counts as read to its end.
        lost: Called with the cause of a loss that does not fail the query.
        arrival_step: The resolution in milliseconds at which arrival times are recorded; None disables recording.
    """

    def __init__(
        self,
        row: RowKey,
        subscribe: Callable[[Position, EventSink], ShardSubscription],
        budget: Budget,
        listener: RowListener,
        ended: Callable[[Sequence[ChildShard]], None],
        failed: Callable[[KinesisEfoError], None],
        counts: FetchCounts,
        clock: Clock,
        *,
        fail_on_data_loss: bool,
        lost: Callable[[str], Awaitable[None]] | None = None,
        arrival_step: int | None = None,
    ) -> None:
        self.row = row
        self.key = row.shard
        self.order: Order | None = None
        self.buffer: ShardBuffer | None = None
        self.millis_behind: int | None = None
        self.signal = Signal()
        self.has_failed = False
        self._subscribe = subscribe
        self.budget = budget
        self._listener = listener
        self._ended = ended
        self._failed = failed
        self._lost = lost
        self._counts = counts
        self._clock = clock
        self._fail_on_data_loss = fail_on_data_loss
        self._new_buffer = partial(
            ShardBuffer,
            self.key,
            budget=budget,
            arrived=self._announce,
            arrival_step=arrival_step,
        )
        self._task: asyncio.Task[None] | None = None
        self._subscription: ShardSubscription | None = None
        self._closing: tuple[int, tuple[ChildShard, ...]] | None = None
        self._lag_at = self._touched_at = 0.0
        self._read_until: deque[float] = deque(maxlen=_LAGS)

    def apply_order(self, order: Order) -> None:
        """Apply an `Order`: begin a new buffer if the order's version has changed, and drop the events before its `keep` position."""
        before, self.order = self.order, order
        if self.buffer is None or before is None or before.version != order.version:
            assert order.start is not None
            self.begin(order.start)
        assert self.buffer is not None
        if self.buffer.covers(order.keep):
            self.buffer.drop_before(order.keep, dict(order.kept))

    def begin(self, position: Position) -> None:
        """Create a new buffer that begins at `position`, and start a subscription that fills it."""
        before = self.close()
        self.has_failed = False
        self.buffer = self._new_buffer(position)
        self._task = asyncio.create_task(self._fill(self.buffer, before), name=f"feed {self.key}")
        self._announce()

    def news(self, buffer: ShardBuffer) -> ShardNews:
        """Return a report about this shard for the run. It does not include the buffered events."""
        return ShardNews(
            self.key,
            0 if self.order is None else self.order.version,
            waits=buffer.waits is not None,
            behind=self.millis_behind,
            unseen=self.unseen,
            read_until=None if self._subscription is None else self._subscription.read_until,
            lost=self._subscription is not None and self._subscription.lost,
            quiet=buffer.quiet.seconds_at_tip(self._clock.monotonic()),
        )

    @property
    def unseen(self) -> float | None:
        """An upper bound for the age (seconds) of records that have not been received yet; None until `_LAGS` lags have been received."""
        times = self._read_until
        return self._clock.monotonic() - min(times) if len(times) == times.maxlen else None

    def _record_lag(self, event: Event, came: float) -> None:
        self.millis_behind = event.head.millis_behind
        # Use one lag per second: a server may report a wrong lag in several events in quick succession.
        if not self._read_until or came - self._lag_at >= _STEP_SECONDS:
            self._lag_at = came
            self._read_until.append(came - event.head.millis_behind / 1000)
        else:
            self._read_until[-1] = min(self._read_until[-1], came - event.head.millis_behind / 1000)

    def close(self) -> asyncio.Task[None] | None:
        """Stop fetching and drop the buffer. Return a task that ends when the connection is closed; None without a connection."""
        task, self._task = self._task, None
        buffer, self.buffer = self.buffer, None
        # Drop the reference to the subscription, which would otherwise keep the buffer's payloads in memory.
        self._subscription = None
        self.millis_behind = None
        self._read_until.clear()
        if task is not None:
            task.cancel()
        if buffer is not None:
            buffer.close()
        return task

    def close_at(self, last: int, children: tuple[ChildShard, ...]) -> None:
        """Called when ListShards shows the shard as closed. The shard then ends once its records up to sequence number `last` were read."""
        self._closing = (last, children)
        if self._subscription is not None:
            self._subscription.close_at(last, children)

    async def _fill(self, buffer: ShardBuffer, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # Close the old connection first: Kinesis allows one subscription per shard and consumer.
            await asyncio.gather(before, return_exceptions=True)
        try:
            subscription = self._subscription = self._subscribe(buffer.end, _Filling(self, buffer))
            if self._closing is not None:
                subscription.close_at(*self._closing)
            await subscription.run()
        except DataLossError as error:
            accepted = self._subscription is not None and self._subscription.accepts_loss
            if self._fail_on_data_loss and not accepted:
                self._fail(error)
            else:
                if self._lost is not None:
                    await self._lost("; ".join(error.causes) or str(error))
                await buffer.admit(_END, self._clock.monotonic())
        except KinesisEfoError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("shard %s: fetching failed", self.key)
            self._fail(KinesisEfoError(f"shard {self.key}: {type(error).__name__}: {error}"))

    def _fail(self, error: KinesisEfoError) -> None:
        self.has_failed = True
        self._failed(error.about(*self.key))

    def _announce(self) -> None:
        self.signal.notify()
        # Do not wake the listener for events without records: 256 idle shards receive 50 such events per second.
        self._listener.touch((self.row,))
        if self.buffer is None or not self.buffer.idle:
            self._listener.wake()


class _Filling:
    """The sink of one subscription. It only ever fills that subscription's buffer, so that late events cannot enter a newer buffer."""

    def __init__(self, feed: ShardFeed, buffer: ShardBuffer) -> None:
        self._feed = feed
        self.room = buffer.room
        self._buffer = buffer

    @property
    def committed(self) -> Position | None:
        return self._buffer.committed

    async def admit(self, event: Event) -> None:
        feed = self._feed
        feed._counts.events += 1
        feed._counts.bytes += len(event.payload)
        if event.head.continuation is None:
            feed._ended(event.head.children)
        believed, came = self._buffer.quiet.is_at_tip(), feed._clock.monotonic()
        await self._buffer.admit(event, came)
        if feed.buffer is not self._buffer:
            return
        # Use the time before `admit`, which may have waited for space: the event's lag refers to the time when the event was received.
        feed._record_lag(event, came)
        turns_quiet = not believed and self._buffer.quiet.is_at_tip()
        if event.head.still and (turns_quiet or came - feed._touched_at >= _STILL_SECONDS):
            feed._touched_at = came
            feed._listener.touch((feed.row,))
