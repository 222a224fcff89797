"""Fetches one shard: a subscription fills a buffer, and starts anew if a reader asks for what the buffer does not hold.

Lives in the fetcher's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kinesis_efo.clock import Clock
from kinesis_efo.errors import DataLossError, KinesisEfoError
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.kinesis.arrivals import last_arrival
from kinesis_efo.kinesis.events import ChildShard, Event, EventHead
from kinesis_efo.kinesis.subscription import EventSink, ShardSubscription
from kinesis_efo.positions import Position, ShardKey

logger = logging.getLogger(__name__)

_CLOCK_SECONDS: Final = 2.0
"""A record that arrived this long after a feed had begun, by Kinesis' clock as it is known here, surely came after its beginning."""

_STUCK_EVENTS: Final = 3
_STUCK_SECONDS: Final = 2.0
"""If this many events without records, over this time, tell a lag that does not shrink, the server says for ever that more is there."""

_END = Event(b"", EventHead(continuation=None, millis_behind=0, records=0))


class FeedListener(Protocol):
    """Receives what happens to a feed."""

    def arrived(self, key: ShardKey) -> None:
        """Something new can be read, or has to be read again."""

    def moved(self, key: ShardKey) -> None:
        """The shard has told that nothing arrived up to a new position."""

    def ended(self, key: ShardKey, children: Sequence[ChildShard]) -> None:
        """The last event of the shard has arrived."""

    def failed(self, error: KinesisEfoError) -> None:
        """The shard cannot be read any more."""


@dataclass(slots=True)
class _Empty:
    """Events without records, one after the other, whose lag does not shrink."""

    behind: int
    since: float
    events: int = 1


class ShardFeed:
    """Keeps a buffer filled with the events of one shard.

    Args:
        key: The shard.
        subscribe: Makes a subscription that delivers into a sink, from a position on.
        budget: Shared with all other shards.
        listener: Receives what happens.
        clock: Time.
        fail_on_data_loss: Whether a shard that is gone fails the query; else it counts as read to its end.
        arrival_step: How exactly it is noted when records arrived in the stream, milliseconds; None: not at all.

    Attributes:
        tip: Where the shard ended when fetching began there: whatever had arrived by then lies at or before this position. None while
            that is not known.
    """

    def __init__(
        self,
        key: ShardKey,
        subscribe: Callable[[Position, EventSink], ShardSubscription],
        budget: Budget,
        listener: FeedListener,
        clock: Clock,
        *,
        fail_on_data_loss: bool,
        arrival_step: int | None = None,
    ) -> None:
        self.key = key
        self.buffer: ShardBuffer | None = None
        self.millis_behind: int | None = None
        self.tip: Position | None = None
        self._empty: _Empty | None = None
        self.news = Signal()
        self._subscribe = subscribe
        self._budget = budget
        self._listener = listener
        self._clock = clock
        self._fail_on_data_loss = fail_on_data_loss
        self._arrival_step = arrival_step
        self._task: asyncio.Task[None] | None = None
        self._subscription: ShardSubscription | None = None
        self._closing: tuple[int, tuple[ChildShard, ...]] | None = None
        self._heard_at = 0.0

    def from_position(self, position: Position) -> ShardBuffer:
        """The buffer that holds or will receive everything behind `position`; fetching starts anew there if it has to.

        While it shows only with the first event whether the buffer does, it is taken for one that does: reading waits for that event.
        """
        if self.buffer is None or not self.buffer.may_cover(position):
            return self.begin(position)
        return self.buffer

    def begin(self, position: Position) -> ShardBuffer:
        """Start fetching anew from a position, into a new buffer."""
        before = self.close()
        self.buffer = ShardBuffer(self.key, position, self._budget, self._announce, self._arrival_step)
        self._task = asyncio.create_task(self._fill(self.buffer, before), name=f"feed {self.key}")
        return self.buffer

    @property
    def quiet(self) -> float:
        """For how long it is believed that nothing lies behind the buffer, seconds; 0 if that is not believed."""
        if self.buffer is None or not self.buffer.quiet.believed():
            return 0.0
        return self._clock.monotonic() - self.buffer.quiet.since

    def read_until(self, position: Position) -> float | None:
        """The time up to which every record that arrived lies at or before a position, in epoch seconds, if it is known."""
        subscription = self._subscription
        if subscription is None or self.buffer is None or self.buffer.end != position:
            return None
        return subscription.read_until

    def note_tip(self, event: Event, began: float) -> bool:
        """Take note of the first event that tells where the shard ended when fetching began; it was sent since.

        One event is believed if it says that nothing lies behind it: an end too early loses nothing, since a query that ends there
        reads on from there the next time.

        Args:
            event: The last event of the buffer.
            began: When fetching began, epoch seconds by Kinesis' clock.

        Returns:
            Whether it is this event.
        """
        if self.tip is not None or self.buffer is None:
            return False
        if not _tells_tip(event, began) and not self._is_stuck(event.head):
            return False
        self.tip = self.buffer.end
        return True

    def tip_since(self, since: float) -> Position | None:
        """The end of the buffer, if everything lies before it that had arrived in the stream by some time; else None.

        Args:
            since: The time, monotonic seconds.
        """
        if self.buffer is None or (unseen := self.unseen) is None:
            return None
        return self.buffer.end if self.buffer.ended or self._clock.monotonic() - unseen >= since else None

    @property
    def unseen(self) -> float | None:
        """What had arrived in the stream so long ago, seconds, lies before the end of the buffer; None if that is not known."""
        if self.millis_behind is None:
            return None
        return self._clock.monotonic() - self._heard_at + self.millis_behind / 1000

    def _is_stuck(self, head: EventHead) -> bool:
        now = self._clock.monotonic()
        if head.records or self._empty is None or head.millis_behind < self._empty.behind:
            self._empty = None if head.records else _Empty(head.millis_behind, now)
            return False
        self._empty.events += 1
        return self._empty.events >= _STUCK_EVENTS and now - self._empty.since >= _STUCK_SECONDS

    def close(self) -> asyncio.Task[None] | None:
        """Stop fetching and drop the buffer.

        Returns:
            The task that is being cancelled: when it is done, its connection is closed.
        """
        task, self._task = self._task, None
        buffer, self.buffer = self.buffer, None
        # It would keep the buffer, and the payloads in it, for as long as the feed lives.
        self._subscription = None
        self.millis_behind = self.tip = self._empty = None
        if task is not None:
            task.cancel()
        if buffer is not None:
            buffer.close()
        return task

    def close_at(self, last: int, children: tuple[ChildShard, ...]) -> None:
        """Note that ListShards calls the shard closed: once `last` has been read, its end has."""
        self._closing = (last, children)
        if self._subscription is not None:
            self._subscription.close_at(last, children)

    async def _fill(self, buffer: ShardBuffer, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            # One subscription per shard: the old connection is closed before the next is opened.
            await asyncio.gather(before, return_exceptions=True)
        try:
            subscription = self._subscription = self._subscribe(buffer.end, _Filling(self, buffer))
            if self._closing is not None:
                subscription.close_at(*self._closing)
            await subscription.run()
        except DataLossError as error:
            if self._fail_on_data_loss:
                self._listener.failed(error)
            else:
                logger.warning("%s: going on without it, as option failOnDataLoss=false asks", error)
                await buffer.admit(_END, self._clock.monotonic())
        except KinesisEfoError as error:
            self._listener.failed(error)
        except Exception as error:
            logger.exception("shard %s: fetching failed", self.key)
            self._listener.failed(KinesisEfoError(f"shard {self.key}: {type(error).__name__}: {error}"))

    def _announce(self) -> None:
        self.news.notify()
        # Readers up to this position need to know that nothing arrived. A poll need not wake up for it: 256 idle shards say so 50
        # times a second.
        if self.buffer is None or not self.buffer.idle:
            self._listener.arrived(self.key)
        else:
            self._listener.moved(self.key)


def _tells_tip(event: Event, began: float) -> bool:
    """Whether an event that was sent since a time (epoch seconds) tells where the shard ended then."""
    head = event.head
    if head.continuation is None or not head.millis_behind:
        return True
    arrived = last_arrival(event.payload) if head.records else None
    return arrived is not None and arrived / 1000 >= began + _CLOCK_SECONDS


class _Filling:
    """The sink of one subscription. Each has its own: what a former one still delivers goes into a closed buffer."""

    def __init__(self, feed: ShardFeed, buffer: ShardBuffer) -> None:
        self._feed = feed
        self.room = buffer.room
        self._buffer = buffer
        self._began = feed._clock.time()

    async def admit(self, event: Event) -> None:
        feed = self._feed
        if event.head.continuation is None:
            feed._listener.ended(feed.key, event.head.children)
        believed, came = self._buffer.quiet.believed(), feed._clock.monotonic()
        await self._buffer.admit(event, came)
        if feed.buffer is not self._buffer:
            return
        # When it came, and not when there was room for it.
        feed.millis_behind, feed._heard_at = event.head.millis_behind, came
        tells_tip = feed.note_tip(event, self._began)
        turns_quiet = not believed and self._buffer.quiet.believed()
        if event.head.still and (tells_tip or turns_quiet or feed._arrival_step is not None):
            feed._listener.moved(feed.key)  # not in position, but in time
