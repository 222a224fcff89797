"""Reads one shard: opens and renews its subscription until the shard ends or cannot be read.

Delivers every event once and in order to a sink, which may block. `recovery` decides what to do about errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from kinesis_efo.aws_errors import describe
from kinesis_efo.clock import within
from kinesis_efo.errors import DataLossError, FrameError
from kinesis_efo.kinesis.faults import classify
from kinesis_efo.kinesis.open_subscription import OpenSubscription, PlaceInLine
from kinesis_efo.kinesis.progress import EventSink, ShardProgress
from kinesis_efo.kinesis.recovery import ReadContext, Recovery
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.transport import EventStream, NoRoom
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.records.events import ChildShard

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 10.0
"""Maximum sleep in seconds while the start is in the future, because Kinesis' clock becomes more exact with each response."""


class _Outcome(NamedTuple):
    """How one subscription ended: the reason for the log, and the error, if an error ended it."""

    why: str
    error: Exception | None = None


_FULL: Final = _Outcome("the buffer was full")
_CLOSED: Final = _Outcome("the shard is closed")


class ShardSubscription:
    """Reads one shard from a position on. It has the arguments of `Stream.subscribe` and two more.

    Args:
        retention: Checks whether records after a position may be gone; None: not checked.
        recovery: State of the shard's former subscriptions, which have ended; None: there were none.

    Attributes:
        stats: Statistics of this and the former subscriptions.
    """

    def __init__(
        self,
        context: ReadContext,
        shard_id: str,
        start: Position,
        sink: EventSink,
        *,
        retention: Retention | None = None,
        read_until: float | None = None,
        recovery: Recovery | None = None,
        may_open: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._context = context
        self._recovery = recovery or Recovery(context, shard_id)
        self.stats: SubscriptionStats = self._recovery.stats
        self._progress = ShardProgress(context, shard_id, start, sink, self.stats, retention, read_until)
        self._place = PlaceInLine(sink.room, context.clock, context.limits.full)
        self._may_open = may_open

    @property
    def position(self) -> Position:
        """The position after the last event that the sink admitted."""
        return self._progress.position

    @property
    def read_until(self) -> float | None:
        """All records that arrived before this time, epoch seconds, lie at or before `position`; None: not known."""
        return self._progress.read_until

    def close_at(self, last: int, children: tuple[ChildShard, ...]) -> None:
        """Set the last sequence number and the children of the shard, which ListShards shows as closed.

        Once the position has reached `last`, the end of the shard is delivered, even if Kinesis does not announce it in an event.
        """
        self._progress.closing = (last, children)

    async def run(self) -> None:
        """Read until the shard's end has been delivered. Cancelling closes the connection immediately.

        Raises DataLossError if the trim horizon has passed the position or the shard is gone, StreamError if it cannot be read any more.
        """
        clock = self._context.clock
        self._progress.heard_at = clock.monotonic()
        try:
            while not self.position.is_end:
                await self._wait_for_turn()
                outcome = await self._subscribe_once()
                if outcome.error is None:
                    continue
                self.stats.state = State.WAITING
                fault = classify(outcome.error)
                self.stats.failures[fault.code] += 1
                self._place.release()  # others can use the room until the next try
                await clock.sleep(await self._recovery.delay(fault, self.position))
            self._recovery.progressed()
            self.stats.state = State.ENDED
        except BaseException as error:
            self.stats.state = State.CLOSED if isinstance(error, asyncio.CancelledError) else State.FAILED
            raise
        finally:
            self._place.leave()

    # -- one subscription

    async def _wait_for_turn(self) -> None:
        clock = self._context.clock
        if self._place.waits:
            self.stats.state = State.PAUSED
            await self._place.arrive()
        while (ahead := self._progress.seconds_ahead) > 0:
            # Wait, because Kinesis refuses a position in its future.
            self.stats.state = State.WAITING
            await clock.sleep(min(ahead, _LOOK_SECONDS))
        if (delay := self._recovery.next_call - clock.monotonic()) > 0:
            self.stats.state = State.WAITING
            await clock.sleep(delay)
        if self._may_open is not None:
            await self._may_open()

    async def _subscribe_once(self) -> _Outcome:
        """Open a subscription and read until it ends. Raises errors of the sink, and DataLossError."""
        progress, stats, clock, limits = self._progress, self.stats, self._context.clock, self._context.limits
        if await progress.deliver_known_end():
            return _CLOSED
        stats.state = State.OPENING
        try:
            stream = await self._open()
        except DataLossError:
            raise
        except Exception as error:
            return _Outcome(describe(error), error)
        opened = clock.monotonic()
        self._recovery.next_call = opened + limits.after_success
        self._recovery.opened()
        stats.opened += 1
        stats.state = State.STREAMING
        logger.debug("%s: %s at %s", progress, "polled" if self._context.stream.polled else "subscribed", self.position)
        before = stats.events
        events = self._place.subscription = OpenSubscription(stream, clock, limits, stats)
        outcome = _Outcome("stopped")
        try:
            outcome = await self._read(events, opened)
        finally:
            events.close()
            self._place.release()
            logger.debug(
                "%s: %s ended after %.1f s and %d events at %s: %s",
                progress,
                self._context.way,
                clock.monotonic() - opened,
                stats.events - before,
                self.position,
                outcome.why,
            )
        if outcome is _FULL:
            stats.paused += 1
        return outcome

    async def _open(self) -> EventStream:
        context, progress = self._context, self._progress
        start = TRIM_HORIZON if await progress.is_passed() else self.position
        self._recovery.next_call = context.clock.monotonic() + context.limits.between_calls
        subscribe = context.transport.subscribe(context.stream, progress.shard_id, start, self._place)
        stream = await within(context.clock, context.limits.opening, subscribe, discard=_close)
        if stream is None:
            raise TimeoutError(f"the {context.way} did not begin within {context.limits.opening:g} s")
        return stream

    async def _read(self, events: OpenSubscription, opened: float) -> _Outcome:
        progress, first = self._progress, self.stats.events
        while True:
            try:
                event = await events.next()
                if event is not None and event.head.records and self.read_until is not None:
                    await progress.is_passed()  # check again, because the trim horizon may overtake a slow reader
            except DataLossError:
                raise
            except NoRoom:
                return _FULL
            except Exception as error:
                return _Outcome(describe(error), error)
            if event is None:
                any_event = self.stats.events > first
                closed = not any_event and await progress.deliver_listed_end()
                return _CLOSED if closed else self._clean_end(opened, any_event=any_event)
            events.expect_room()
            self._recovery.progressed()
            await progress.deliver(event)
            if self.position.is_end:
                return _Outcome("the shard has ended")
            if events.timed_out:
                return _FULL
            if await progress.deliver_known_end():
                return _CLOSED

    def _clean_end(self, opened: float, *, any_event: bool) -> _Outcome:
        now, limits = self._context.clock.monotonic(), self._context.limits
        if not any_event and (now - opened < limits.too_short or now - self._progress.heard_at > limits.silence):
            # A proxy may respond in place of Kinesis. Renewing the subscription for ever would be a silent stall.
            return _Outcome(
                "ended without an event", FrameError(f"the {self._context.way} ended without a single event")
            )
        self.stats.renewed += 1
        return _Outcome("expired")


def _close(stream: EventStream) -> None:
    stream.close()


class Subscriptions:
    """Makes the subscriptions to the shards of one stream with one transport, and keeps the state and statistics of each shard's."""

    def __init__(self, context: ReadContext, retention: Retention) -> None:
        self.context: Final = context
        self.stats: dict[str, SubscriptionStats] = {}
        self._retention = retention
        self._recoveries: dict[str, Recovery] = {}

    def make(
        self,
        shard_id: str,
        start: Position,
        sink: EventSink,
        read_until: float | None,
        may_open: Callable[[], Awaitable[None]] | None,
    ) -> ShardSubscription:
        """Make a subscription to one shard. The arguments are those of `Stream.subscribe`."""
        recovery = self.recovery(shard_id)
        self.stats[shard_id] = recovery.stats
        return ShardSubscription(
            self.context,
            shard_id,
            start,
            sink,
            retention=self._retention,
            read_until=read_until,
            recovery=recovery,
            may_open=may_open,
        )

    def recovery(self, shard_id: str) -> Recovery:
        """Return the state that a shard's subscriptions share."""
        if shard_id not in self._recoveries:
            self._recoveries[shard_id] = Recovery(self.context, shard_id)
        return self._recoveries[shard_id]

    def describe(self, shard_id: str) -> str:
        """Describe the subscription to a shard, for messages."""
        return self.stats.get(shard_id, SubscriptionStats()).describe(self.context.clock.monotonic())
