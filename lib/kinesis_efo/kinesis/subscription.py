"""Reads one shard: opens and renews its subscription until the shard ends or cannot be read.

Delivers every event once and in order to a sink, which may block. `recovery` decides what to do about errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf
from typing import Final, NamedTuple, Protocol

from kinesis_efo.aws_errors import describe
from kinesis_efo.clock import within
from kinesis_efo.errors import DataLossError, FrameError
from kinesis_efo.kinesis.alarm import Alarm
from kinesis_efo.kinesis.events import ChildShard, Event, EventHead
from kinesis_efo.kinesis.faults import classify
from kinesis_efo.kinesis.recovery import ReadContext, Recovery
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.transport import EventStream, NoRoom, Room
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind

logger = logging.getLogger(__name__)

AT_HORIZON_SECONDS: Final = 600.0
"""A reader that begins at the trim horizon reads records that are about to be trimmed. While it is near the horizon, the horizon may be
this many seconds ahead without counting as a loss."""

_LOOK_SECONDS: Final = 10.0
"""Longest sleep while a future position is waited for, since Kinesis' clock becomes more exact with each response."""


class EventSink(Protocol):
    """Receives the events of a shard and grants the room for them. A full sink is the back-pressure."""

    @property
    def room(self) -> Room:
        """The quota from which the transport takes room for the next event."""
        ...

    async def admit(self, event: Event) -> None:
        """Take the next event and its room. Waits for room if none was taken for it."""
        ...


class _Outcome(NamedTuple):
    """How one subscription ended.

    Attributes:
        why: The reason, for the log.
        error: The error that ended it; None: a normal end.
    """

    why: str
    error: Exception | None = None


_FULL: Final = _Outcome("the buffer was full")
_CLOSED: Final = _Outcome("the shard is closed")


class ShardHistory:
    """State that the subscriptions of a shard share: the time of the next call, the failures in a row, and the statistics.

    It holds no sink, and so no records.

    Args:
        context: How the stream is read.
        shard_id: The shard.

    Attributes:
        recovery: Decides what to do after each error.
        stats: Statistics of all of them.
        next_call: When Kinesis allows the next call for this shard, seconds on the monotonic clock.
    """

    __slots__ = ("next_call", "recovery", "stats")

    def __init__(self, context: ReadContext, shard_id: str) -> None:
        self.recovery = Recovery(context, shard_id)
        self.stats = SubscriptionStats()
        self.next_call = -inf


class ShardSubscription:
    """Reads one shard from a position on.

    Args:
        context: How the stream is read.
        shard_id: The shard.
        start: Where to begin.
        sink: Receives the events.
        retention: Checks whether records after a position may be gone; None: not checked.
        read_until: Records that arrived before this time lie at or before `start`, epoch seconds; None: not known.
        history: State of the shard's former subscriptions, which have ended; None: there were none.
        may_open: Awaited before each SubscribeToShard, and returns once it is allowed; None: always allowed.

    Attributes:
        position: The position after the last event that the sink admitted.
        read_until: Records that arrived before this time lie at or before `position`, epoch seconds; None: not known.
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
        history: ShardHistory | None = None,
        may_open: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._history = history or ShardHistory(context, shard_id)
        self.position = start
        self.read_until = read_until
        self.stats: SubscriptionStats = self._history.stats
        self._stream = context.stream
        self._shard_id = shard_id
        self._reading = "polling" if context.stream.polled else "subscription"
        self._sink = sink
        self._room = sink.room
        self._may_open = may_open
        self._transport = context.transport
        self._presence = context.presence
        self._retention = retention
        self._at_horizon = start == TRIM_HORIZON
        self._limits = context.limits
        self._clock = context.clock
        self._recovery: Recovery = self._history.recovery
        self._last_sign: float
        self._alarm: Alarm
        self._closing: tuple[int, tuple[ChildShard, ...]] | None = None
        self._in_line: asyncio.Future[None] | None = None

    def close_at(self, last: int, children: tuple[ChildShard, ...]) -> None:
        """Note that ListShards shows the shard as closed, in case Kinesis does not announce its end.

        Once the position has reached `last`, the end is delivered as if Kinesis had announced it.

        Args:
            last: The shard's last sequence number.
            children: The children of the shard.
        """
        self._closing = (last, children)

    async def run(self) -> None:
        """Read until the shard's end has been delivered. Cancelling closes the connection at once.

        Raises:
            StreamError: The shard cannot be read any more; the message says why and what to do.
            DataLossError: The shard does not exist any more, or the trim horizon has passed the position.
        """
        self._last_sign = self._clock.monotonic()
        try:
            while not self.position.is_end:
                await self._wait_for_room()
                await self._wait_for_turn()
                outcome = await self._subscribe_once()
                if outcome.error is None:
                    continue
                self.stats.state = State.WAITING
                fault = classify(outcome.error)
                self.stats.failures[fault.code] += 1
                self._room.release()  # others can use the room until the next try
                await self._clock.sleep(await self._recovery.delay(fault, self.position))
            self.stats.state = State.ENDED
        except asyncio.CancelledError:
            self.stats.state = State.CLOSED
            raise
        except BaseException:
            self.stats.state = State.FAILED
            raise
        finally:
            if self._in_line is not None:
                self._in_line.cancel()

    # -- one subscription

    async def _wait_for_room(self) -> None:
        if self._in_line is not None:
            self.stats.state = State.PAUSED
            await self._in_line
            self._in_line = None

    async def _wait_for_turn(self) -> None:
        while (ahead := self._seconds_ahead()) > 0:
            # Kinesis refuses a position in its future.
            self.stats.state = State.WAITING
            await self._clock.sleep(min(ahead, _LOOK_SECONDS))
        delay = self._history.next_call - self._clock.monotonic()
        if delay > 0:
            self.stats.state = State.WAITING
            await self._clock.sleep(delay)
        if self._may_open is not None:
            await self._may_open()

    def _seconds_ahead(self) -> float:
        """Return how far the position is in the future; 0 or less if it is not."""
        timed = self.position.kind is PositionKind.AT_TIMESTAMP
        return self.position.value / 1000 - self._clock.time() if timed else 0.0

    async def _subscribe_once(self) -> _Outcome:
        """Open a subscription and read until it ends. Raises errors of the sink, and DataLossError."""
        if await self._deliver_known_end():
            return _CLOSED
        self.stats.state = State.OPENING
        try:
            stream = await self._open()
        except DataLossError:
            raise
        except Exception as error:
            return _Outcome(describe(error), error)
        opened = self._clock.monotonic()
        self._history.next_call = opened + self._limits.after_success
        self._recovery.opened()
        self.stats.opened += 1
        self.stats.state = State.STREAMING
        logger.debug("%s: %s at %s", self._name, "polled" if self._stream.polled else "subscribed", self.position)
        before = self.stats.events
        self._alarm = Alarm(stream, self._clock, self._limits, self.stats)
        outcome = _Outcome("stopped")
        try:
            outcome = await self._read(stream, opened)
        finally:
            self._alarm.stop()
            stream.close()
            if self._in_line is None:
                self._room.release()
            logger.debug(
                "%s: %s ended after %.1f s and %d events at %s: %s",
                self._name,
                self._reading,
                self._clock.monotonic() - opened,
                self.stats.events - before,
                self.position,
                outcome.why,
            )
        if outcome is _FULL:
            self.stats.paused += 1
        return outcome

    async def _open(self) -> EventStream:
        start = TRIM_HORIZON if await self._is_passed() else self.position
        self._history.next_call = self._clock.monotonic() + self._limits.between_calls
        subscribe = self._transport.subscribe(self._stream, self._shard_id, start, self)
        stream = await within(self._clock, self._limits.opening, subscribe, discard=_close)
        if stream is None:
            raise TimeoutError(f"the {self._reading} did not begin within {self._limits.opening:g} s")
        return stream

    async def _read(self, stream: EventStream, opened: float) -> _Outcome:
        events = aiter(stream)
        first = self.stats.events
        while True:
            try:
                event = await self._next(events)
                if event is not None and event.head.records and self.read_until is not None:
                    await self._is_passed()  # the trim horizon may overtake a slow reader
            except DataLossError:
                raise
            except NoRoom:
                return _FULL
            except Exception as error:
                return _Outcome(describe(error), error)
            if event is None:
                any_event = self.stats.events > first
                closed = not any_event and await self._is_closed()
                return _CLOSED if closed else self._clean_end(opened, any_event=any_event)
            self._alarm.expect_room()
            await self._deliver(event)
            if self.position.is_end:
                return _Outcome("the shard has ended")
            if self._alarm.rang:
                return _FULL
            if await self._deliver_known_end():
                return _CLOSED

    async def _next(self, events: AsyncIterator[Event]) -> Event | None:
        self._alarm.expect_event()
        try:
            event = await anext(events, None)
        except Exception:
            if not self._alarm.rang:
                raise
        else:
            if not self._alarm.rang:
                return event
        # The alarm closed the connection; its own error would mislead.
        raise TimeoutError(f"no event for {self._limits.silence:g} s")

    async def _is_passed(self) -> bool:
        if self._retention is None:
            return False
        grace = AT_HORIZON_SECONDS if self._at_horizon else 0.0
        passed = await self._retention.check(self._shard_id, self.position, self.read_until, grace)
        self._at_horizon = self._at_horizon or passed
        return passed

    async def _deliver(self, event: Event) -> None:
        stats, head = self.stats, event.head
        read_until = self._clock.time() - head.millis_behind / 1000
        self._last_sign = stats.last_event = self._clock.monotonic()
        stats.millis_behind = head.millis_behind
        self._recovery.progressed()
        await self._sink.admit(event)
        self._last_sign = self._clock.monotonic()
        self.read_until = read_until
        if self._clock.time() - read_until < self._limits.shortest_retention - AT_HORIZON_SECONDS:
            self._at_horizon = False
        if not head.still:
            self.position = event.through
        stats.events += 1
        stats.records += head.records
        stats.bytes += len(event.payload)

    async def _deliver_known_end(self) -> bool:
        if self._closing is None or self.position.kind is not PositionKind.AFTER:
            return False
        last, children = self._closing
        if self.position.value < last:
            return False
        await self._deliver(Event(b"", EventHead(None, 0, 0, children)))
        return True

    async def _is_closed(self) -> bool:
        """If nothing came because the shard is closed and read, deliver its end. Returns whether it did."""
        try:
            end = await self._presence.end(self._shard_id)
        except Exception as error:
            logger.info("%s: whether the shard is closed cannot be asked for now: %s", self._name, describe(error))
            return False
        self._closing = end or self._closing
        return await self._deliver_known_end()

    def _clean_end(self, opened: float, *, any_event: bool) -> _Outcome:
        now = self._clock.monotonic()
        if not any_event and (now - opened < self._limits.too_short or now - self._last_sign > self._limits.silence):
            # A proxy answers, but Kinesis does not: renewing for ever would be a silent stall.
            return _Outcome("ended without an event", FrameError(f"the {self._reading} ended without a single event"))
        self.stats.renewed += 1
        return _Outcome("expired")

    # -- room, as the transport asks for it

    @property
    def share(self) -> int:
        return self._room.share

    def take(self, size: int) -> bool:
        return self._room.take(size)

    async def wait(self, size: int) -> None:
        """Wait for room, which does not count as silence. After `Limits.full` it raises NoRoom and keeps its place in line."""
        self._alarm.pause()
        self._in_line = asyncio.ensure_future(self._room.wait(size))
        await within(self._clock, self._limits.full, asyncio.wait((self._in_line,)))
        if not self._in_line.done():
            raise NoRoom
        await self._in_line
        self._in_line = None
        self._alarm.expect_event()

    @property
    def _name(self) -> str:
        return f"{self._stream.name}:{self._shard_id}"


def _close(stream: EventStream) -> None:
    stream.close()
