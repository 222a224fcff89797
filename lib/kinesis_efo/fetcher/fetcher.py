"""The fetcher: has a feed for each shard that it may read, and serves ranges of the shards to tasks from these feeds.

It lives in one event loop and is not thread-safe. Positions from Spark's offsets decide what is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.losses import Known
from kinesis_efo.errors import AccessRefusedError, DataLossError, KinesisEfoError, RetriesExhaustedError
from kinesis_efo.failure import Failure, stopped
from kinesis_efo.fetcher.background import in_background
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.buffer import AHEAD_SECONDS, CLAIM_SECONDS, Cursor, NotBufferedError, ShardBuffer
from kinesis_efo.fetcher.feed import FetchCounts, ShardFeed, ShardListener
from kinesis_efo.fetcher.feeds import Feeds
from kinesis_efo.fetcher.shortfall import Shortfall
from kinesis_efo.fetcher.status import ShardStatus, Subscription
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.delivery import EventSink
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.subscription import ShardSubscription, Subscriptions
from kinesis_efo.positions import Position, PositionKind, ShardKey, ShardRange

logger = logging.getLogger(__name__)

READ_CHUNK_BYTES: Final = 1 << 20
"""Approximate size of the chunks that `read` yields. Copies of a chunk need memory besides the budget."""

_LOOK_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 1.0
_PAST_SECONDS: Final = 10.0
"""How long a range waits at most, if its last record is older than the retention and `failOnDataLoss` is false."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Settings of a fetcher.

    A read waits `patience` seconds for permission to read its shard. A range fails after `timeout` seconds without progress, although Kinesis
    answers. `arrival_step` is the resolution of the noted arrival times, milliseconds; None: they are not noted.
    """

    fail_on_data_loss: bool
    patience: float
    arrival_step: int | None = None
    timeout: float = 600.0


class Coordinator(Protocol):
    """Decides which shards a fetcher may read. It is called in the fetcher's event loop.

    `failure` is the error that ends reading: the run's, or this fetcher's if the run is in another process.
    """

    failure: Failure

    def may_read(self, shard: ShardKey) -> bool:
        """Whether the fetcher may read a shard now. Reads the clock, so the result is right even after the process was suspended."""

    async def may_open(self, shard: ShardKey) -> None:
        """Wait until a subscription to a shard may be opened, because another fetcher or run may have the shard by now."""

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """The error of a read that has waited `seconds` in vain for permission to read its shard."""

    def known(self, shard: ShardKey, position: Position) -> Known:
        """What is known about a position of a shard besides the position itself."""


class Fetcher:
    """Fetches shards, and serves ranges of them. `refused` is called if Kinesis refuses access; if None, that ends all reading.

    If it is `apart`, it reads with GetRecords for one query that catches up; the run's fetcher then watches the streams. If it is `shared`,
    several queries use it, and the run in another process decides which of them catch up.
    """

    def __init__(
        self,
        streams: Streams,
        budget: Budget,
        settings: FetcherSettings,
        clock: Clock,
        *,
        apart: bool = False,
    ) -> None:
        self.budget = budget
        self.feeds: Final = Feeds(self._feed, self._may_read, budget)
        self.counts: Final = FetchCounts()
        self.shared = False
        self.refused: Callable[[AccessRefusedError], None] | None = None
        self._streams = streams
        self._settings = settings
        self._clock = clock
        self._apart = apart
        self._watching: asyncio.Task[None] | None = None
        self._coordinator: Coordinator
        self._shard_listener: ShardListener
        self._readings: set[_RangeReading] = set()
        self._allowed = Signal()

    def start(self, coordinator: Coordinator, shard_listener: ShardListener) -> None:
        """Watch the streams, and read the shards that the coordinator allows. The listener is told in which shards something happens."""
        self._coordinator, self._shard_listener = coordinator, shard_listener
        coordinator.failure.on_set(self._wake_all)
        if not self._apart:
            watching = self._streams.watch(self._clock, self._listed)
            self._watching = in_background(watching, "watching the shards", coordinator.failure)

    @property
    def new_apart(self) -> Callable[[Budget], Fetcher] | None:
        """Makes a fetcher with its own budget for a query that catches up; None if a stream cannot be read with GetRecords."""
        if any(stream.apart is None for stream in self._streams.streams.values()):
            return None
        return lambda budget: Fetcher(self._streams, budget, self._settings, self._clock, apart=True)

    async def stop(self) -> None:
        """Stop fetching and close all connections. Waiting calls fail."""
        self._coordinator.failure.adopt(stopped())
        closing = self.feeds.close([feed.key for feed in self.feeds])
        if self._watching is not None:
            self._watching.cancel()
            closing.append(self._watching)
        await asyncio.gather(*closing, return_exceptions=True)

    def allowed(self) -> None:
        """Wake the waiting reads, because more shards may be read now."""
        self._allowed.notify()

    # -- how it is doing

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range. A task that has taken nothing for long does not count. Thread-safe."""
        long_ago = self._clock.monotonic() - CLAIM_SECONDS
        handed = [reading.handed_at for reading in list(self._readings)]
        return any(at is None or at >= long_ago for at in handed)

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """The status of each shard of one stream; None: of all streams."""
        now = self._clock.monotonic()
        return [
            self._status(feed.key, feed.buffer, now)
            for feed in self.feeds
            if feed.buffer is not None and stream in (None, feed.key.stream)
        ]

    def subscription(self, key: ShardKey) -> Subscription | None:
        """The counts of a shard's subscriptions; None before the first."""
        stats = self._stats(key)
        return Subscription.of(stats, self._clock.monotonic()) if stats is not None else None

    def _status(self, key: ShardKey, buffer: ShardBuffer, now: float) -> ShardStatus:
        stats = self._stats(key)
        return ShardStatus(
            *key,
            str(buffer.end),
            buffer.held,
            buffer.records,
            None if buffer.waiting_since is None else max(0.0, now - buffer.waiting_since),
            stats.lag(now) if stats is not None else None,
            subscription=self.subscription(key),
            oldest=buffer.lag(buffer.start, now),
        )

    def _stats(self, key: ShardKey) -> SubscriptionStats | None:
        return self._subscriptions(key).stats.get(key.shard)

    def _subscriptions(self, key: ShardKey) -> Subscriptions:
        stream = self._streams.stream(key.stream)
        return stream.apart if self._apart and stream.apart is not None else stream.subscriptions

    # -- what tasks need

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        """Open the feeds of all ranges without a known last record, so that they wait for events together and not one after the other.

        Returns the time of this call, monotonic seconds.
        """
        for wanted in ranges:
            waits = wanted.last is None and not wanted.through.is_end
            covered = not self.shared or self.feeds.covers(wanted.key, wanted.after)
            if waits and covered and (feed := self.feeds.feed(wanted.key)) is not None:
                _buffer_for(feed, wanted)
        return self._clock.monotonic()

    def read(
        self,
        wanted: ShardRange,
        asked_at: float | None = None,
        may_restart: Callable[[], bool] | None = None,
        alone: Callable[[], bool] | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """The payloads that cover a range, some at a time. What is not in the buffer is read from Kinesis again.

        `asked_at` is when the range was requested, monotonic seconds; None: now. `may_restart` returns whether the subscription may restart
        if the buffer does not have the range, and raises if the query has failed. `alone` returns whether a failed read fails the fetcher,
        and not only this task. None: both are so unless the fetcher is `shared`. Raises `DataLossError` if the last record of the range is
        lost and losses fail the query; `RetriesExhaustedError` if the end is not reached in time; `NotBufferedError` if the subscription
        may not restart, and the buffer has lost the rest or does not get there.
        """
        return _RangeReading(self, wanted, asked_at, may_restart or self._is_alone, alone or self._is_alone).payloads()

    async def _timeout(self, wanted: ShardRange) -> float:
        """Seconds without progress after which a range fails."""
        settings, stream, last = self._settings, self._streams.stream(wanted.key.stream), wanted.last
        if last is not None and not self._fails(wanted) and await stream.is_past(wanted.key.shard, last):
            # Continue soon without that record. Otherwise each range would wait for long, while more records expire.
            return min(settings.timeout, _PAST_SECONDS)
        return settings.timeout

    def _fails(self, wanted: ShardRange) -> bool:
        """Whether the loss of a range's records fails the query."""
        accepted = self._coordinator.known(wanted.key, wanted.after).accepts(wanted.after)
        return self._settings.fail_on_data_loss and not accepted

    def _waits_for(self, key: ShardKey) -> str:
        if not self._coordinator.may_read(key):
            return (
                "the shard may not be read here for now: the run's lease is not held, or another fetcher has the shard"
            )
        return self._subscriptions(key).describe(key.shard)

    # -- its feeds

    def _may_read(self, key: ShardKey) -> bool:
        return self._coordinator.may_read(key)

    def _feed(self, key: ShardKey) -> ShardFeed:
        return ShardFeed(
            key,
            partial(self._subscribe, key),
            self.budget,
            self._shard_listener,
            partial(self._streams.learn, key),
            self._failed,
            self.counts,
            self._clock,
            fail_on_data_loss=self._settings.fail_on_data_loss,
            lost=partial(self._lost, key),
            arrival_step=self._settings.arrival_step,
        )

    def _subscribe(self, key: ShardKey, start: Position, sink: EventSink) -> ShardSubscription:
        known = self._coordinator.known(key, start)
        may_open = partial(self._coordinator.may_open, key)
        stream = self._streams.stream(key.stream)
        return stream.subscribe(key.shard, start, sink, known, may_open, apart=self._apart)

    async def _lost(self, key: ShardKey, cause: str) -> None:
        losses = self._streams.stream(key.stream).losses
        losses.add(key.shard, cause, "; going on without it, as options allow")
        await losses.soon()

    def _failed(self, error: KinesisEfoError) -> None:
        if self.refused is not None and isinstance(error, AccessRefusedError):
            self.refused(error)
        else:
            self._coordinator.failure.set(error)

    def _is_alone(self) -> bool:
        return not self.shared

    def _listed(self, name: str) -> None:
        """Note the ends of closed shards after a listing of the stream."""
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


class _RangeReading:
    """Reads one range for a task from the buffer of its shard. What the buffer does not have is read from Kinesis again.

    `handed_at` is when the task got the payloads that it is working on, monotonic seconds; None while it waits for some.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        wanted: ShardRange,
        asked_at: float | None,
        may_restart: Callable[[], bool],
        alone: Callable[[], bool],
    ) -> None:
        self.handed_at: float | None = None
        self._fetcher = fetcher
        self._clock = fetcher._clock
        self._left = wanted
        self._over = wanted.is_over
        self._asked_at = self._clock.monotonic() if asked_at is None else asked_at
        self._began_at = self._clock.monotonic()
        self._may_restart = may_restart
        self._alone = alone
        self._shortfall: Shortfall

    async def payloads(self) -> AsyncGenerator[list[bytes], None]:
        """The payloads that cover the range; see `Fetcher.read`."""
        fetcher, wanted = self._fetcher, self._left
        fails, waits_for = fetcher._fails(wanted), partial(fetcher._waits_for, wanted.key)
        timeout = await fetcher._timeout(wanted)
        self._shortfall = Shortfall(wanted, timeout, self._clock.monotonic(), waits_for, fail=fails)
        fetcher._readings.add(self)
        try:
            with fetcher.feeds.reading(wanted.key):
                while not self._over:
                    feed = await self._feed()
                    if not self._may_read_here():
                        raise NotBufferedError(self._left)
                    async with aclosing(self._buffered(feed)) as found:
                        async for payloads in found:
                            self.handed_at = self._clock.monotonic()
                            yield payloads
                            self.handed_at = None
                            # Note this after the yield, because a task may take its time.
                            self._shortfall.progressed(self._clock.monotonic())
                if self._shortfall.lost:
                    await fetcher._lost(wanted.key, self._shortfall.lost)
        except (DataLossError, RetriesExhaustedError) as error:
            # Fail the fetcher, because another attempt would wait as long. If other queries use the shard, only this task fails.
            if self._alone():
                fetcher._failed(error)
            raise
        finally:
            fetcher._readings.remove(self)

    async def _feed(self) -> ShardFeed:
        """Wait for the permission to read the shard, and return its feed. After a crash, the lease of the earlier run has to expire first."""
        fetcher, key = self._fetcher, self._left.key
        patience = fetcher._settings.patience
        give_up_at = self._clock.monotonic() + patience
        while (feed := fetcher.feeds.feed(key)) is None:
            fetcher._coordinator.failure.raise_if_set()
            now = self._clock.monotonic()
            self._shortfall.look(self._left.after, now)
            if now >= give_up_at:
                raise fetcher._coordinator.refusal(key, patience)
            await fetcher._allowed.within(min(give_up_at - now, _LOOK_SECONDS))
        return feed

    def _may_read_here(self) -> bool:
        """Whether the buffer has the rest of the range, or may restart there. False if GetRecords is refused to a query's own fetcher."""
        fetcher, left = self._fetcher, self._left
        return self._may_restart() or not (fetcher._apart or not fetcher.feeds.covers(left.key, left.after))

    async def _buffered(self, feed: ShardFeed) -> AsyncGenerator[list[bytes], None]:
        """The payloads of the range from a feed's current buffer. Ends with the range, or if this buffer cannot supply the rest."""
        key, after, through, last = self._left
        buffer = _buffer_for(feed, self._left)
        with buffer.reading(after, through, last, self._asked_at) as cursor:
            while buffer.covers(cursor.position) is not False and self._fetcher.feeds.feed(key) is feed:
                if payloads := cursor.take(READ_CHUNK_BYTES):
                    yield payloads
                self._over = cursor.done
                if self._over or cursor.beyond is not None:
                    break
                if not payloads and not await self._waited(feed, buffer, cursor):
                    break
        self._left = ShardRange(key, cursor.settled, through, last)
        if cursor.beyond is None:
            return
        self._over = self._shortfall.went_beyond(cursor.settled, self._clock.monotonic())
        if self._over:
            if cursor.beyond:
                yield cursor.beyond
            return
        if not self._may_restart():
            raise NotBufferedError(self._left)
        await self._clock.sleep(_AGAIN_SECONDS)
        if feed.buffer is buffer:
            feed.begin(self._left.after)

    async def _waited(self, feed: ShardFeed, buffer: ShardBuffer, cursor: Cursor) -> bool:
        """Wait for news of the shard; returns whether to look into the buffer again."""
        await feed.news.within(1.0)
        self._fetcher._coordinator.failure.raise_if_set()
        self._shortfall.look(cursor.position, self._clock.monotonic())
        self._over = self._shortfall.heard(cursor.position, buffer.quiet)
        is_ahead = not self._may_restart() and buffer.ends_before(cursor.position)
        if is_ahead and self._clock.monotonic() - self._began_at >= AHEAD_SECONDS:
            # Do not wait for the buffer, because other queries use it at a position before this range.
            raise NotBufferedError(ShardRange(self._left.key, cursor.settled, self._left.through, self._left.last))
        return not self._over


def _buffer_for(feed: ShardFeed, wanted: ShardRange) -> ShardBuffer:
    """The buffer of a feed that has or will receive a range."""
    buffer = feed.from_position(wanted.after)
    if buffer.start == wanted.after and wanted.through.kind is PositionKind.AFTER:
        buffer.vouch(wanted.through.value)
    return buffer
