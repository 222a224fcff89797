"""The fetcher: reads the shards of streams whose lease it holds, one feed per shard, and answers polls, commits and reads.

It lives in one asyncio loop and is not thread-safe. Positions from outside (Spark's offsets) decide what is read; leases only
decide whether this fetcher may read at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kinesis_efo.clock import Clock
from kinesis_efo.errors import (
    FetcherError,
    FetcherUnreachableError,
    KinesisEfoError,
    LeaseLostError,
)
from kinesis_efo.fetcher.budget import Budget, Signal
from kinesis_efo.fetcher.buffer import Portion
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.fetcher.messages import PollReply, ShardProgress
from kinesis_efo.fetcher.planning import plan
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.events import ChildShard
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.subscription import EventSink, ShardSubscription
from kinesis_efo.leases.checkpoints import Checkpoints, Pace
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease, LeaseKeys
from kinesis_efo.leases.run import RunLease
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)

LIST_SHARDS_SECONDS: Final = 60.0
"""Time between two listings of a stream's shards. A parent's last event usually announces its children earlier."""

LIST_AGAIN_SECONDS: Final = 2.0
"""The same, while an announced child has a parent that is not known."""

READ_CHUNK_BYTES: Final = 1 << 20
"""About how much a `get` sends at a time. Each chunk is copied a few times on its way out, on top of the budget."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Settings of a fetcher.

    Attributes:
        fail_on_data_loss: Whether records that are gone fail the query.
        lease_timeout: Seconds without renewal after which a lease is free. How long a read waits for a lease follows from it.
        pace: How often checkpoints are written.
    """

    fail_on_data_loss: bool
    lease_timeout: float
    pace: Pace = Pace()  # noqa: RUF009


class Fetcher:
    """Fetches the shards of an application.

    Args:
        streams: By logical name.
        leases: The run's lease on each stream; not started yet.
        table: Where checkpoints are written.
        lease_keys: Which row belongs to which shard.
        budget: The bytes that all shards share.
        settings: See `FetcherSettings`.
        clock: Time.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        leases: RunLease,
        table: LeaseStore,
        lease_keys: LeaseKeys,
        budget: Budget,
        settings: FetcherSettings,
        clock: Clock,
    ) -> None:
        self._streams = Streams(streams)
        self._leases = leases
        self._checkpoints = Checkpoints(
            table, lease_keys, leases.epoch, settings.pace, clock, read_until=self._read_until, failed=self.failed
        )
        self._settings = settings
        self._clock = clock
        self.budget = budget
        self._feeds: dict[ShardKey, ShardFeed] = {}
        self._offset: Offset | None = None
        self._committed: Mapping[ShardKey, Position] = {}
        self._fresh: set[ShardKey] = set()
        self._waiting: set[ShardKey] = set()
        self._reading: Counter[ShardKey] = Counter()
        self._news = Signal()
        self._held = Signal()
        self._outdated = Signal()
        self._failure: KinesisEfoError | None = None
        self._tips: asyncio.Task[Offset] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, endpoint: str) -> None:
        """Begin to take leases and to watch the streams.

        Args:
            endpoint: Where this fetcher serves data; other processes find it with its leases.

        Raises:
            LeaseTableError: The lease table cannot be used.
            StreamError: A stream cannot be listed.
        """
        await self._leases.start(self, endpoint)
        self._checkpoints.start()
        await self._streams.refresh()
        self._spawn(self._watch_shards)

    async def stop(self) -> None:
        """Stop fetching, write the last checkpoints and release the leases. Waiting calls fail."""
        self._failure = self._failure or FetcherUnreachableError("the fetcher has stopped: its query has ended")
        self._wake_all()
        closing = [task for feed in self._feeds.values() if (task := feed.close())]
        for task in self._tasks:
            task.cancel()
        if self._tips is not None:
            self._tips.cancel()
        await self._checkpoints.stop()
        await self._leases.stop()
        await asyncio.gather(*closing, *self._tasks, return_exceptions=True)
        self._feeds.clear()

    @property
    def feeds(self) -> list[ShardFeed]:
        """The shards that are read now; a copy, which may be asked for from any thread."""
        return list(self._feeds.values())

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment."""
        return any(self._reading.values())

    # -- what the stream reader asks

    async def poll(
        self, offset: Offset, max_bytes: int, max_records: int, at_most: float, *, everything: bool = False
    ) -> PollReply:
        """Tell how far the next micro-batch may go: at once where there is something new, else after the timeout.

        Where thousands of shards are idle, looking at all of them would take longer than everything else. So only those are looked
        at in which something happened since the last poll, and those that have records which no micro-batch took yet.

        Args:
            offset: How far the query has come: positions of all shards.
            max_bytes: Most bytes of the next micro-batch.
            max_records: Most records of it.
            at_most: Seconds to wait where there is nothing new.
            everything: Look at all shards: the caller does not remember what former replies said of idle ones.
        """
        self._follow(offset)
        if everything:
            self._fresh |= offset.keys()
        try:
            await self._streams.check_loss(offset)
        except KinesisEfoError as error:
            self.failed(error)
            raise
        give_up_at = self._clock.monotonic() + at_most
        idle: dict[ShardKey, Portion] = {}
        while True:
            self._check()
            idle |= self._look(offset)
            reply = self._reply(offset, max_bytes, max_records, idle)
            news = reply.starting or any(shard.records or shard.through == "SHARD_END" for shard in reply.shards)
            if news or not await self._wait(self._news, give_up_at):
                return reply

    def _follow(self, offset: Offset) -> None:
        """Take note of where the query is: which shards it reads, and which have to be looked at again."""
        before = self._offset
        if offset is before:
            return
        known: Mapping[ShardKey, Position] = before or {}
        if offset.keys() != known.keys():
            self._checkpoints.want({key: self._streams.lease_info(key, offset[key]) for key in offset})
        moved = {key for key, position in offset.items() if known.get(key) != position}
        self._fresh |= moved
        self._waiting -= moved | (known.keys() - offset.keys())
        self._offset = offset
        self._leases.want(self._streams.streams)
        for key in self._feeds.keys() - offset.keys():
            self._close_unneeded(key)

    def _look(self, offset: Offset) -> dict[ShardKey, Portion]:
        """Find out what happened in the shards where something did.

        Returns:
            How far those go on that have no records.
        """
        idle = {}
        fresh, self._fresh = self._fresh, set()
        for key in fresh:
            self._waiting.discard(key)
            position = offset.get(key)
            if position is None or position.is_end:
                continue
            if (feed := self._feed(key)) is None:
                # It may be held again without having been lost, and a shard's last event does not come twice.
                self._fresh.add(key)
                continue
            buffer = feed.from_position(position)
            if buffer.news_since(position) is None:
                idle[key] = buffer.portion(position, 0, 0)
            else:
                self._waiting.add(key)
        return idle

    def _reply(self, offset: Offset, max_bytes: int, max_records: int, idle: Mapping[ShardKey, Portion]) -> PollReply:
        buffers = {
            key: feed.from_position(offset[key]) for key in self._waiting if (feed := self._feed(key)) is not None
        }
        # At most half of the budget: the next micro-batch is fetched into the other half while Spark works on this one.
        portions = plan(buffers, offset, min(max_bytes, self.budget.limit // 2), max_records)
        shards = [
            ShardProgress(*key, str(portion.through), portion.records, portion.bytes, feed.millis_behind)
            for key, portion in {**idle, **portions}.items()
            if (feed := self._feeds.get(key)) is not None
        ]
        ends = {key: portion.through for key, portion in portions.items() if portion.through.is_end}
        if not ends and not offset.has_ends:
            return PollReply(shards)
        return PollReply(shards, self._streams.starting({**offset, **ends}), self._streams.finished(offset))

    async def commit(self, offset: Offset) -> None:
        """Drop what Spark will not ask for again, and move the checkpoints.

        Args:
            offset: Positions up to which everything is processed.
        """
        self._check()
        for key, position in offset.items():
            feed = self._feeds.get(key)
            if feed is not None and position.is_end:
                feed.close()
                del self._feeds[key]
            elif feed is not None and feed.buffer is not None:
                # Also where the position stays: what came twice, or for another attempt at a range, goes now.
                feed.buffer.commit(position)
            if self._committed.get(key) == position:
                continue
            if position.is_end:
                self._checkpoints.finish(key, self._streams.stream(key.stream).lineage.children(key.shard))
            else:
                self._checkpoints.note(key, position, _last_record(feed, position))
        self._committed = offset

    async def hash_range(self, key: ShardKey) -> tuple[int, int] | None:
        """First and last hash key of a shard; None where they are not known."""
        return self._streams.stream(key.stream).hash_range(key.shard)

    # -- what tasks ask

    async def read(self, wanted: ShardRange) -> AsyncIterator[list[bytes]]:
        """The payloads that cover a range, some at a time. What is not in the buffer is read from Kinesis again."""
        key, position, through = wanted
        self._reading[key] += 1
        try:
            while not position.reaches(through):
                feed = await self._held_feed(key)
                buffer = feed.from_position(position)
                with buffer.reading(position, through) as cursor:
                    while buffer.covers(cursor.position) and self._feed(key) is feed:
                        payloads = cursor.take(READ_CHUNK_BYTES)
                        position = cursor.position
                        if payloads:
                            yield payloads
                        if cursor.done:
                            return
                        if not payloads:
                            await self._wait(feed.news, self._clock.monotonic() + 1)
                            self._check()
        finally:
            self._reading[key] -= 1
            self._close_unneeded(key)

    def _close_unneeded(self, key: ShardKey) -> None:
        """End the feed of a shard that the query has left behind: it was read for another attempt at a range."""
        if self._offset is None or self._reading[key] > 0:
            return
        position = self._offset.get(key)
        if position is None or (position.is_end and self._committed.get(key) == position):
            feed = self._feeds.pop(key, None)
            if feed is not None:
                feed.close()

    async def _held_feed(self, key: ShardKey) -> ShardFeed:
        """The feed of a shard, once its lease is held. After a crash, the old lease has to expire first."""
        self._leases.want(self._streams.streams)
        patience = 3 * self._settings.lease_timeout + 30
        give_up_at = self._clock.monotonic() + patience
        while (feed := self._feed(key)) is None:
            self._check()
            if not await self._wait(self._held, give_up_at):
                raise FetcherError(
                    f"the lease on stream {key.stream} could not be taken within {patience:.0f} s: another run holds it, or the "
                    "lease table does not answer; `kinesis-efo leases list` shows its owner: stop that query"
                )
        return feed

    # -- where the streams end right now

    async def tips(self, offset: Offset, at_most: float) -> Offset | None:
        """Tell where the streams end right now, for the shards of an offset and their descendants.

        Args:
            offset: Positions of all shards.
            at_most: Seconds to wait for the answer.

        Returns:
            A position per shard, `SHARD_END` for closed ones; None while that is not known yet: ask again.
        """
        self._check()
        if self._tips is None:
            self._tips = asyncio.create_task(self._find_tips(offset), name="tips")
        done, _ = await asyncio.wait({self._tips}, timeout=at_most)
        self._check()
        if not done:
            return None
        task, self._tips = self._tips, None
        return task.result()

    async def _find_tips(self, offset: Offset) -> Offset:
        await self._streams.refresh()
        found = self._streams.ends(offset)
        open_shards = [key for key, end in found.items() if end is None]
        # Asking takes a subscription and would end another run's: so it needs the lease, as reading does.
        for feed in await asyncio.gather(*map(self._held_feed, open_shards)):
            feed.close()
        tips = await asyncio.gather(
            *(self._streams.stream(key.stream).tip(key.shard, offset.get(key, TRIM_HORIZON)) for key in open_shards)
        )
        ends = {key: end for key, end in found.items() if end is not None}
        return Offset({**ends, **dict(zip(open_shards, tips, strict=True))})

    # -- what the run's lease tells it

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Start to fetch a stream whose lease is held now, from the query's position, without waiting for the next poll."""
        self._checkpoints.found(stream, rows)
        for key, position in (self._offset or {}).items():
            if key.stream == stream:
                if not position.is_end and (feed := self._feed(key)) is not None:
                    feed.from_position(position)
                self._fresh.add(key)
        self._held.notify()
        self._news.notify()

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """Stop reading a stream whose lease is gone. Where another run took it, the query fails."""
        for key in [key for key in self._feeds if key.stream == stream]:
            self._feeds.pop(key).close()
        if owner is not None:
            self.failed(
                LeaseLostError(
                    f"{readable(owner)} took the lease on stream {stream} while this query was reading: the application has a second "
                    "query, or this one was stopped for longer than leaseTimeout. Nothing was lost; run one query per application"
                )
            )
        self._news.notify()

    def failed(self, error: KinesisEfoError) -> None:
        """Make every call from now on fail with this error, or with the first one where there were several."""
        if self._failure is None:
            self._failure = error
            logger.error("%s", error)
        self._wake_all()

    def _wake_all(self) -> None:
        for signal in (self._held, self._news, *(feed.news for feed in self._feeds.values())):
            signal.notify()

    def _read_until(self, key: ShardKey, position: Position) -> float | None:
        feed = self._feeds.get(key)
        return feed.read_until(position) if feed is not None else None

    def _feed(self, key: ShardKey) -> ShardFeed | None:
        """The feed of a shard; None while its lease is not held."""
        if not self._leases.is_held(key.stream):
            return None
        if key not in self._feeds:
            self._feeds[key] = ShardFeed(
                key,
                partial(self._subscribe, key),
                self.budget,
                self,
                self._clock,
                fail_on_data_loss=self._settings.fail_on_data_loss,
            )
        return self._feeds[key]

    def _subscribe(self, key: ShardKey, start: Position, sink: EventSink) -> ShardSubscription:
        read_until = self._checkpoints.read_until(key, start)
        stream = self._streams.stream(key.stream)
        return stream.subscribe(key.shard, start, sink, read_until)

    # -- what feeds tell it

    def arrived(self, key: ShardKey) -> None:
        """Look at a shard with the next poll, and wake the one that waits: it has something new."""
        self._fresh.add(key)
        self._news.notify()

    def moved(self, key: ShardKey) -> None:
        """Look at a shard with the next poll. Nobody waits for it: it only told that nothing arrived."""
        self._fresh.add(key)

    def ended(self, key: ShardKey, children: Sequence[ChildShard]) -> None:
        """Take note of a shard's children, which its last event announced."""
        stream = self._streams.stream(key.stream)
        stream.learn(key.shard, children)
        if stream.lineage.outdated:
            self._outdated.notify()

    # -- watching

    async def _watch_shards(self) -> None:
        while True:
            if self._streams.outdated:
                await self._clock.sleep(LIST_AGAIN_SECONDS)
            else:
                await self._wait(self._outdated, self._clock.monotonic() + LIST_SHARDS_SECONDS)
            for name, stream in self._streams.streams.items():
                try:
                    await stream.refresh()
                except KinesisEfoError as error:
                    logger.warning(
                        "stream %s cannot be listed, trying again in %.0f s: %s", name, LIST_SHARDS_SECONDS, error
                    )
                    continue
                for key, feed in self._feeds.items():
                    shard = stream.shard(key.shard) if key.stream == name else None
                    if shard is not None and shard.last is not None:
                        feed.close_at(shard.last, stream.children(key.shard))
            self._news.notify()

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except KinesisEfoError as error:
                self.failed(error)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- helpers

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait(self, signal: Signal, give_up_at: float) -> bool:
        """Wait for a signal; False where the time is up first."""
        remaining = give_up_at - self._clock.monotonic()
        if remaining <= 0:
            return False
        try:
            await asyncio.wait_for(signal.wait(), remaining)
        except TimeoutError:
            return False
        return True


def _last_record(feed: ShardFeed | None, position: Position) -> int | None:
    """Number of the last record before a position, where the feed knows it: it may have begun behind that position."""
    buffer = feed.buffer if feed is not None else None
    return buffer.last_record if buffer is not None and buffer.start == position else None
