"""Reads one shard: opens and renews its subscription until the shard ends or can no longer be read.

Delivers every event once and in order to a sink, which may block. The module `recovery` handles errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, NamedTuple

from kinesis_efo.aws_errors import describe
from kinesis_efo.clock import Clock, within
from kinesis_efo.decisions.losses import NO_FACTS, Facts
from kinesis_efo.errors import DataLossError, FrameError
from kinesis_efo.kinesis.delivery import EventSink, ShardDelivery
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.recovery import Limits, ReadContext
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.transport import EventStream, NoRoom, Quota
from kinesis_efo.positions import TRIM_HORIZON, Position
from kinesis_efo.records.events import ChildShard, Event

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 10.0
"""Maximum seconds per sleep while the start time is in the future. Meanwhile, other responses may correct the estimate of Kinesis' time."""

_SLOW_SECONDS: Final = 2.0
"""If checking for losses takes longer, events may have waited in the socket, so that their lag is outdated."""


class _Outcome(NamedTuple):
    """How one subscription ended: the reason, for log messages, and the error if there was one."""

    why: str
    error: Exception | None = None


_FULL: Final = _Outcome("the buffer was full")
_STOOD_STILL: Final = _Outcome("the process was suspended")
_CLOSED: Final = _Outcome("the shard is closed")


class ShardSubscription:
    """Reads one shard from a position on; see `Stream.subscribe` for the other arguments.

    Args:
        retention: Checks whether records after a position may have been trimmed; None skips the check.
    """

    def __init__(
        self,
        context: ReadContext,
        shard_id: str,
        start: Position,
        sink: EventSink,
        *,
        retention: Retention | None = None,
        known: Facts = NO_FACTS,
        may_open: Callable[[], Awaitable[None]] | None = None,
        reader: str | None = None,
    ) -> None:
        self._context = context
        self._recovery = context.recovery(shard_id)  # Shared with the shard's former subscriptions, which have ended
        self.stats: SubscriptionStats = self._recovery.stats
        context.stats[shard_id] = self.stats
        self._delivery = ShardDelivery(context, shard_id, start, sink, self.stats, retention, known, reader)
        self._place = QueuedRoom(sink.room, context.clock, context.limits.full)
        self._may_open = may_open

    @property
    def position(self) -> Position:
        """The position after the last event that the sink admitted."""
        return self._delivery.position

    @property
    def read_until(self) -> float | None:
        """The low watermark of `position`, epoch seconds; None if unknown."""
        return self._delivery.known.read_until

    @property
    def lost(self) -> bool:
        """Whether records after `position` were trimmed and the loss is accepted. Other queries must not use `read_until` then."""
        return self._delivery.lost

    @property
    def accepts_loss(self) -> bool:
        """Whether the loss of the records after `position` is accepted."""
        return self._delivery.known.accepts_loss(self.position)

    def close_at(self, last: int, children: tuple[ChildShard, ...]) -> None:
        """Set the last sequence number and the children of a shard that ListShards shows as closed.

        Once the position has reached `last`, the end of the shard is delivered even if Kinesis sends no event for it.
        """
        self._delivery.closing = (last, children)

    async def run(self) -> None:
        """Read until the shard's end has been delivered. Cancellation closes the connection immediately.

        Raises DataLossError if records after the position or the whole shard were trimmed, StreamError if reading fails for good.
        """
        clock = self._context.clock
        self._delivery.last_event_at = clock.monotonic()
        try:
            while not self.position.is_end:
                await self._wait_for_turn()
                outcome = await self._subscribe_once()
                if outcome.error is None:
                    continue
                self.stats.state = State.WAITING
                fault = classify(outcome.error)
                self.stats.failures[fault.code] += 1
                self._place.release()  # other shards can use the space until the next attempt
                if fault.verdict is Verdict.TAKEN_OVER and self._may_open is not None:
                    await self._may_open()  # blocks while another run owns the lease and reads the shard
                await clock.sleep(await self._recovery.delay(fault, self.position))
            self._recovery.progressed()
            self.stats.state = State.ENDED
        except BaseException as error:
            self.stats.state = State.CLOSED if isinstance(error, asyncio.CancelledError) else State.FAILED
            raise
        finally:
            self._place.cancel()

    async def _wait_for_turn(self) -> None:
        clock = self._context.clock
        if self._place.waits:
            self.stats.state = State.PAUSED
            await self._place.wait_granted()
            self._recovery.progressed()  # restart the retry timeout: Kinesis was not called while waiting
        while (ahead := self._delivery.seconds_ahead) > 0:
            # Kinesis rejects a start time that is in the future by its clock.
            self.stats.state = State.WAITING
            await clock.sleep(min(ahead, _LOOK_SECONDS))
        if (delay := self._recovery.next_call - clock.monotonic()) > 0:
            self.stats.state = State.WAITING
            await clock.sleep(delay)
        if self._may_open is not None:
            await self._may_open()

    async def _subscribe_once(self) -> _Outcome:
        """Open a subscription and read until it ends. Raises DataLossError and sink errors; returns other errors in the outcome."""
        delivery, stats, clock, limits = self._delivery, self.stats, self._context.clock, self._context.limits
        if await delivery.deliver_known_end():
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
        logger.debug("%s: %s at %s", delivery, "polled" if self._context.stream.polled else "subscribed", self.position)
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
                delivery,
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
        context, delivery = self._context, self._delivery
        start = TRIM_HORIZON if await delivery.is_passed() else self.position
        self._recovery.next_call = context.clock.monotonic() + context.limits.between_calls
        subscribe = context.transport.subscribe(context.stream, delivery.shard_id, start, self._place)
        stream = await within(context.clock, context.limits.opening, subscribe, discard=lambda late: late.close())
        if stream is None:
            raise TimeoutError(f"the {context.way} did not begin within {context.limits.opening:g} s")
        return stream

    async def _read(self, events: OpenSubscription, opened: float) -> _Outcome:
        delivery, first = self._delivery, self.stats.events
        while True:
            try:
                event = await events.next()
                came = self._context.clock.monotonic()
                if event is not None:
                    # Check before each event: the trim horizon may overtake a slow reader. Even an event without records may follow a gap.
                    await delivery.is_passed()
            except DataLossError:
                raise
            except NoRoom:
                return _FULL
            except Exception as error:
                return _Outcome(describe(error), error)
            if events.outdated or self._context.clock.monotonic() - came > _SLOW_SECONDS:
                # Subscribe again: Kinesis may have sent this event long ago, so its lag does not reveal records trimmed since then.
                return _STOOD_STILL
            if event is None:
                any_event = self.stats.events > first
                closed = not any_event and await delivery.deliver_listed_end()
                return _CLOSED if closed else self._clean_end(opened, any_event=any_event)
            events.expect_room()
            self._recovery.progressed()
            await delivery.deliver(event)
            if self.position.is_end:
                return _Outcome("the shard has ended")
            if events.timed_out:
                return _FULL
            if await delivery.deliver_known_end():
                return _CLOSED

    def _clean_end(self, opened: float, *, any_event: bool) -> _Outcome:
        now, limits = self._context.clock.monotonic(), self._context.limits
        if not any_event and (now - opened < limits.too_short or now - self._delivery.last_event_at > limits.silence):
            # Count this as a failure: the response may come from a proxy. Subscribing again and again would hide that nothing is read.
            return _Outcome(
                "ended without an event", FrameError(f"the {self._context.way} ended without a single event")
            )
        self.stats.renewed += 1
        return _Outcome("expired")


class OpenSubscription:
    """Reads the events of an open subscription. Closes the connection if the next event, or the sink, takes longer than its time limit.

    A single timer restarts itself, which costs less than a timer for each event. If the timer is late, the process was suspended. To detect
    suspensions in time, the timer's interval never exceeds the shorter time limit.
    """

    def __init__(self, stream: EventStream, clock: Clock, limits: Limits, stats: SubscriptionStats) -> None:
        self.timed_out = False
        self._stream = stream
        self._events = aiter(stream)
        self._clock = clock
        self._limits = limits
        self._stats = stats
        self._timer: asyncio.TimerHandle
        self._looks_at = inf
        self._was_late = False
        self.expect_event()
        self._check()

    @property
    def outdated(self) -> bool:
        """Whether the timer is so late that the process must have been suspended. Events in the socket may then be outdated."""
        return self._was_late or self._clock.monotonic() - self._looks_at > self._limits.full

    async def next(self) -> Event | None:
        """Return the next event; None after the last. Raises `TimeoutError` if no event arrives within `Limits.silence`."""
        self.expect_event()
        try:
            event = await anext(self._events, None)
        except Exception:
            if not self.timed_out:
                raise
        else:
            if not self.timed_out:
                return event
        # The timer closed the connection, so the error of the closed connection would be misleading.
        raise TimeoutError(f"no event for {self._limits.silence:g} s")

    def expect_event(self) -> None:
        """Start the time limit for the next event."""
        self._reads = True
        self._received = self._stream.received
        self._deadline = self._clock.monotonic() + self._limits.silence

    def expect_room(self) -> None:
        """Start the time limit for the sink to accept the event."""
        self._reads = False
        self._deadline = self._clock.monotonic() + self._limits.full

    def pause(self) -> None:
        self._deadline = inf

    def close(self) -> None:
        self._timer.cancel()
        self._stream.close()

    def _check(self) -> None:
        self._was_late = self.outdated  # kept, because this timer may restart before the late event is read
        left = self._deadline - self._clock.monotonic()
        if left <= 0 and self._reads and self._stream.received != self._received:
            # The bytes of a large event are still arriving, so extend the time limit.
            self._received = self._stream.received
            self._deadline += self._limits.silence
            left += self._limits.silence
        if left > 0:
            nap = min(left, self._limits.silence, self._limits.full)
            self._looks_at = self._clock.monotonic() + nap
            self._timer = asyncio.get_running_loop().call_later(nap, self._check)
            return
        self.timed_out = True
        self._stats.state = State.CLOSED if self._reads else State.PAUSED
        self._stream.close()


class QueuedRoom:
    """Requests buffer space for a shard's transport; implements `Quota`.

    While a request is queued, the time limits of the open `subscription` do not apply. The request stays queued if the subscription closes.
    """

    def __init__(self, room: Quota, clock: Clock, full: float) -> None:
        self.subscription: OpenSubscription
        self._room = room
        self._clock = clock
        self._full = full
        self._waiting: asyncio.Future[None] | None = None

    @property
    def share(self) -> int:
        return self._room.share

    def try_reserve(self, size: int) -> bool:
        return self._room.try_reserve(size)

    async def reserve(self, size: int) -> None:
        self.subscription.pause()
        self._waiting = asyncio.ensure_future(self._room.reserve(size))
        await within(self._clock, self._full, asyncio.wait((self._waiting,)))
        if not self._waiting.done():
            raise NoRoom
        await self.wait_granted()
        self.subscription.expect_event()

    @property
    def waits(self) -> bool:
        """Whether a request for space is queued."""
        return self._waiting is not None

    async def wait_granted(self) -> None:
        """Wait until the queued request for space, if any, is granted."""
        if self._waiting is not None:
            await self._waiting
            self._waiting = None

    def release(self) -> None:
        """Release reserved space that is unused, unless a request for space is queued."""
        if self._waiting is None:
            self._room.release()

    def cancel(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
