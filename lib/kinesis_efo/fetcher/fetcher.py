"""The fetcher: has a feed for each shard that it may read, and serves ranges from them.

It lives in one event loop and is not thread-safe. Positions from Spark's offsets decide what is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.errors import AccessRefusedError, DataLossError, KinesisEfoError, RetriesExhaustedError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.background import in_background
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.buffer import AHEAD_SECONDS, CLAIM_SECONDS, NotBufferedError, ShardBuffer
from kinesis_efo.fetcher.coordinator import Coordinator, ShardListener
from kinesis_efo.fetcher.counted_sink import CountedSink, FetchCounts
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.fetcher.feeds import Feeds
from kinesis_efo.fetcher.shard_watch import ShardWatch
from kinesis_efo.fetcher.shortfall import Shortfall, StallWarning
from kinesis_efo.fetcher.status import ShardStatus, Subscription
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.events import ChildShard
from kinesis_efo.kinesis.progress import EventSink
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.subscription import ShardSubscription, Subscriptions
from kinesis_efo.positions import Position, PositionKind, ShardKey, ShardRange

logger = logging.getLogger(__name__)

READ_CHUNK_BYTES: Final = 1 << 20
"""Approximate size of the chunks that `read` yields. Copies of a chunk need memory besides the budget."""

_LOOK_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 1.0
_PAST_SECONDS: Final = 10.0
"""How long a range waits for a record older than the retention."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Settings of a fetcher.

    Attributes:
        fail_on_data_loss: Whether lost records fail the query.
        patience: Seconds for which a read waits for permission to read its shard.
        arrival_step: Resolution of the noted arrival times, milliseconds; None: they are not noted.
        timeout: Seconds without progress after which a range fails, although Kinesis answers.
    """

    fail_on_data_loss: bool
    patience: float
    arrival_step: int | None = None
    timeout: float = 600.0


class Fetcher:
    """Fetches shards.

    Args:
        streams: The streams to read.
        budget: The bytes that all shards share.
        settings: See `FetcherSettings`.
        clock: Time.
        beside: The run's shard watch, if this fetcher lets one query catch up, with GetRecords. None: it has its own.

    Attributes:
        budget: The same.
        feeds: The feeds of the shards.
        shared: Whether several queries share it, and the run in another process decides which of them catch up.
        refused: Called if Kinesis refuses access; None: that ends reading.
        brought: What it has received, if it lets a query catch up.
    """

    def __init__(
        self,
        streams: Streams,
        budget: Budget,
        settings: FetcherSettings,
        clock: Clock,
        beside: ShardWatch | None = None,
    ) -> None:
        self._streams = streams
        self._settings = settings
        self._clock = clock
        self.budget = budget
        self.shared = False
        self.refused: Callable[[AccessRefusedError], None] | None = None
        self.brought: Final = FetchCounts()
        self._apart = beside is not None
        self._coordinator: Coordinator
        self._shard_listener: ShardListener
        # The run's fetchers share one watch.
        self._watch = beside or ShardWatch(streams, clock, self._listed)
        self.feeds: Final = Feeds(self._feed, self._may_read, budget)
        self._handed: dict[StallWarning, float] = {}
        self._allowed = Signal()
        self._failure: Failure
        self._watching: asyncio.Task[None] | None = None

    def start(self, coordinator: Coordinator, shard_listener: ShardListener) -> None:
        """Begin to watch the streams, and allow reading.

        Args:
            coordinator: Decides which shards may be read.
            shard_listener: Told in which shards something happens.
        """
        self._coordinator, self._shard_listener, self._failure = coordinator, shard_listener, coordinator.failure
        self._failure.on_set(self._wake_all)
        if not self._apart:
            self._watching = in_background(self._watch.run(), "watching the shards", self._failure)

    def apart(self, budget: Budget) -> Fetcher:
        """A fetcher with GetRecords for a query that catches up in the same streams; not started.

        Args:
            budget: The bytes that it may buffer.
        """
        return Fetcher(self._streams, budget, self._settings, self._clock, beside=self._watch)

    @property
    def can_read_apart(self) -> bool:
        """Whether all of its streams have a transport with GetRecords."""
        return all(stream.apart is not None for stream in self._streams.streams.values())

    async def stop(self) -> None:
        """Stop fetching and close all connections. Waiting calls fail."""
        self._failure.stop()
        closing = self.feeds.close([feed.key for feed in self.feeds])
        if self._watching is not None:
            self._watching.cancel()
            closing.append(self._watching)
        await asyncio.gather(*closing, return_exceptions=True)

    @property
    def room(self) -> int:
        """Most bytes that it may buffer."""
        return self.budget.limit

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range. A task that has taken nothing for long does not count."""
        long_ago = self._clock.monotonic() - CLAIM_SECONDS
        return self.feeds.readers > sum(handed < long_ago for handed in list(self._handed.values()))

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """The status of each shard of one stream, or of all."""
        now = self._clock.monotonic()
        return [
            status
            for feed in self.feeds
            if stream in (None, feed.key.stream) and (status := self._status(feed, now)) is not None
        ]

    def subscription(self, key: ShardKey) -> Subscription | None:
        """The counts of a shard's subscriptions; None before the first."""
        stats = self._stats(key)
        return Subscription.of(stats, self._clock.monotonic()) if stats is not None else None

    def _stats(self, key: ShardKey) -> SubscriptionStats | None:
        return self._subscriptions(key).stats.get(key.shard)

    def _subscriptions(self, key: ShardKey) -> Subscriptions:
        stream = self._streams.stream(key.stream)
        return stream.apart if self._apart and stream.apart is not None else stream.subscriptions

    def _status(self, feed: ShardFeed, now: float) -> ShardStatus | None:
        if (buffer := feed.buffer) is None:
            return None
        stats = self._stats(feed.key)
        return ShardStatus(
            *feed.key,
            str(buffer.end),
            buffer.held,
            buffer.records,
            None if buffer.waiting_since is None else max(0.0, now - buffer.waiting_since),
            stats.lag(now) if stats is not None else None,
            subscription=Subscription.of(stats, now) if stats is not None else None,
        )

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """First and last hash key of a shard; None if unknown."""
        return self._streams.stream(key.stream).hash_range(key.shard)

    # -- what the coordinator calls

    def allowed(self) -> None:
        """Wake the waiting reads: more shards may be read now."""
        self._allowed.notify()

    # -- what tasks need

    def of(self, query: str) -> Fetcher:  # noqa: ARG002
        return self

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        """Open the feeds of ranges without a known last record: one after the other, each would wait for an event for some seconds.

        Returns:
            The time of this call, monotonic seconds.
        """
        for wanted in ranges:
            waits = wanted.last is None and not wanted.through.is_end
            covered = not self.shared or self.feeds.covers(wanted.key, wanted.after)
            if waits and covered and (feed := self.feeds.feed(wanted.key)) is not None:
                _buffer_for(feed, wanted)
        return self._clock.monotonic()

    async def read(
        self,
        wanted: ShardRange,
        asked_at: float | None = None,
        alone: Callable[[], bool] | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """The payloads that cover a range, some at a time. What is not in the buffer is read from Kinesis again.

        Args:
            wanted: The range.
            asked_at: When the range was requested, monotonic seconds; None: now.
            alone: Whether the subscription may restart if the buffer does not have the range; None: if one query uses this fetcher.

        Raises:
            DataLossError: The last record of the range is lost, and losses fail the query.
            RetriesExhaustedError: The end of the range is not reached in time.
            NotBufferedError: The subscription may not restart, and the buffer has lost the rest or does not get there.
        """
        alone = alone or self._is_alone
        now = began_at = self._clock.monotonic()
        asked_at = now if asked_at is None else asked_at
        key, through, last = wanted.key, wanted.through, wanted.last
        fails, timeout = self._settings.fail_on_data_loss, self._settings.timeout
        if last is not None and not fails and await self._streams.stream(key.stream).is_past(key.shard, last):
            # Continue soon without that record: else each range would wait for long, while more records expire.
            timeout = min(timeout, _PAST_SECONDS)
        shortfall = Shortfall(wanted, timeout, now, fail=fails)
        stall_warning = StallWarning(wanted, now, partial(self._waits_for, key))
        try:
            with self.feeds.reading(key):
                while not wanted.is_over:
                    feed = await self._allowed_feed(key, partial(stall_warning.look, wanted.after))
                    if not alone() and (self._apart or not self.feeds.covers(key, wanted.after)):
                        raise NotBufferedError(wanted)
                    buffer, anew, beside = _buffer_for(feed, wanted), False, []
                    with buffer.reading(wanted.after, through, last, asked_at) as cursor:
                        while buffer.may_cover(cursor.position) and self.feeds.feed(key) is feed:
                            payloads = cursor.take(READ_CHUNK_BYTES)
                            beside = cursor.passed_over()
                            if payloads:
                                self._handed[stall_warning] = self._clock.monotonic()
                                yield payloads
                                del self._handed[stall_warning]
                                # After the yield, because a task may take its time.
                                shortfall.progressed(self._clock.monotonic())
                            if cursor.done:
                                return
                            if anew := cursor.astray or (cursor.nothing_more and not buffer.covers(cursor.position)):
                                break
                            if not payloads:
                                await self._wait(feed.news, self._clock.monotonic() + 1)
                                self.check()
                                stall_warning.look(cursor.position, self._clock.monotonic())
                                if shortfall.heard(cursor.position, buffer.quiet):
                                    return
                                ahead = not alone() and buffer.ends_before(cursor.position)
                                if ahead and self._clock.monotonic() - began_at >= AHEAD_SECONDS:
                                    raise NotBufferedError(ShardRange(key, cursor.settled, through, last))
                        wanted = ShardRange(key, cursor.settled, through, last)
                    if cursor.astray and shortfall.went_astray(wanted.after, self._clock.monotonic()):
                        if beside:
                            yield beside
                        return
                    if anew and not alone():
                        raise NotBufferedError(wanted)
                    if anew:
                        await self._clock.sleep(_AGAIN_SECONDS)
                        if feed.buffer is buffer:
                            feed.begin(wanted.after)
        except (DataLossError, RetriesExhaustedError) as error:
            # Another attempt would wait as long again. With other queries on the shard, only this task fails.
            if alone():
                self.failed(error)
            raise
        finally:
            self._handed.pop(stall_warning, None)

    def _waits_for(self, key: ShardKey) -> str:
        if not self._coordinator.may_read(key):
            return (
                "the shard may not be read here for now: the run's lease is not held, or another fetcher has the shard"
            )
        return self._subscriptions(key).describe(key.shard)

    async def _allowed_feed(self, key: ShardKey, look: Callable[[float], None]) -> ShardFeed:
        """Wait for the permission to read a shard, and return its feed. After a crash, the old lease has to expire first."""
        give_up_at = self._clock.monotonic() + self._settings.patience
        while (feed := self.feeds.feed(key)) is None:
            self.check()
            now = self._clock.monotonic()
            look(now)
            if now >= give_up_at:
                raise self._coordinator.refusal(key, self._settings.patience)
            await self._wait(self._allowed, min(give_up_at, now + _LOOK_SECONDS))
        return feed

    def _may_read(self, key: ShardKey) -> bool:
        return self._coordinator.may_read(key)

    def _feed(self, key: ShardKey) -> ShardFeed:
        return ShardFeed(
            key,
            partial(self._subscribe, key),
            self.budget,
            self,
            self._clock,
            fail_on_data_loss=self._settings.fail_on_data_loss,
            arrival_step=self._settings.arrival_step,
        )

    def _subscribe(self, key: ShardKey, start: Position, sink: EventSink) -> ShardSubscription:
        read_until = self._coordinator.read_until(key, start)
        may_open = partial(self._coordinator.may_open, key)
        stream = self._streams.stream(key.stream)
        into = CountedSink(sink, self.brought) if self._apart else sink
        return stream.subscribe(key.shard, start, into, read_until, may_open, apart=self._apart)

    # -- what feeds call

    def arrived(self, key: ShardKey) -> None:
        """A shard has something new: wake a waiting poll."""
        self._shard_listener.touch((key,))
        self._shard_listener.wake()

    def moved(self, key: ShardKey) -> None:
        """A shard has moved without records: look at it with the next poll."""
        self._shard_listener.touch((key,))

    def ended(self, key: ShardKey, children: Sequence[ChildShard]) -> None:
        """The last event of a shard has announced its children."""
        self._streams.stream(key.stream).learn(key.shard, children)
        self._watch.look_soon()

    def failed(self, error: KinesisEfoError) -> None:
        """A shard cannot be read any more."""
        if self.refused is not None and isinstance(error, AccessRefusedError):
            self.refused(error)
        else:
            self._failure.set(error)

    # -- helpers

    def _is_alone(self) -> bool:
        return not self.shared

    def _listed(self, name: str) -> None:
        """Note the ends of closed shards, after a listing."""
        stream = self._streams.stream(name)
        for feed in self.feeds:
            key = feed.key
            shard = stream.shard(key.shard) if key.stream == name else None
            if shard is not None and shard.last is not None:
                feed.close_at(shard.last, stream.children(key.shard))
        self._shard_listener.wake()

    def _wake_all(self) -> None:
        self._shard_listener.wake()
        for signal in (self._allowed, *(feed.news for feed in self.feeds)):
            signal.notify()

    def check(self) -> None:
        """Raise the error that has ended reading, if there is one."""
        self._failure.raise_if_set()

    async def _wait(self, signal: Signal, give_up_at: float) -> None:
        """Wait for a signal, or until the time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(signal.wait(), max(0.0, give_up_at - self._clock.monotonic()))


def _buffer_for(feed: ShardFeed, wanted: ShardRange) -> ShardBuffer:
    """The buffer of a feed that has or will receive a range."""
    buffer = feed.from_position(wanted.after)
    if buffer.start == wanted.after and wanted.through.kind is PositionKind.AFTER:
        buffer.vouch(wanted.through.value)
    return buffer
