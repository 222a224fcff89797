"""Passes on the events of an open subscription. Ends the subscription if the next event, or room for it, does not come in time."""

from __future__ import annotations

import asyncio
from math import inf

from kinesis_efo.clock import Clock, within
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.transport import EventStream, NoRoom, Room
from kinesis_efo.records.events import Event


class OpenSubscription:
    """Passes events on. If the next event or the sink takes too long, it closes the connection and sets `timed_out`.

    It has one timer, which restarts itself, because a timer for each event costs more. The timer's interval is at most as long as the
    shorter limit, so the timer is never late.
    """

    def __init__(self, stream: EventStream, clock: Clock, limits: Limits, stats: SubscriptionStats) -> None:
        self.timed_out = False
        self._stream = stream
        self._events = aiter(stream)
        self._clock = clock
        self._limits = limits
        self._stats = stats
        self._timer: asyncio.TimerHandle
        self.expect_event()
        self._look()

    async def next(self) -> Event | None:
        """Return the next event; None after the last. Raises TimeoutError after `Limits.silence`, and errors of the transport."""
        self.expect_event()
        try:
            event = await anext(self._events, None)
        except Exception:
            if not self.timed_out:
                raise
        else:
            if not self.timed_out:
                return event
        # The timer closed the connection, so the connection's own error would mislead. Raise this one instead.
        raise TimeoutError(f"no event for {self._limits.silence:g} s")

    def expect_event(self) -> None:
        """Start the time limit for the next event."""
        self._reads = True
        self._heard = self._stream.received
        self._deadline = self._clock.monotonic() + self._limits.silence

    def expect_room(self) -> None:
        """Start the time limit for the sink, which must take the event."""
        self._reads = False
        self._deadline = self._clock.monotonic() + self._limits.full

    def pause(self) -> None:
        """Suspend the time limits."""
        self._deadline = inf

    def close(self) -> None:
        """Close the connection."""
        self._timer.cancel()
        self._stream.close()

    def _look(self) -> None:
        left = self._deadline - self._clock.monotonic()
        if left <= 0 and self._reads and self._stream.received != self._heard:
            # Bytes of a large event are still arriving.
            self._heard = self._stream.received
            self._deadline += self._limits.silence
            left += self._limits.silence
        if left > 0:
            nap = min(left, self._limits.silence, self._limits.full)
            self._timer = asyncio.get_running_loop().call_later(nap, self._look)
            return
        self.timed_out = True
        self._stats.state = State.CLOSED if self._reads else State.PAUSED
        self._stream.close()


class PlaceInLine:
    """Waits for the room that a shard's transport asks for; implements `Quota`. It goes on waiting after the subscription was closed.

    Attributes:
        subscription: The open subscription. Its time limits are suspended during a wait for room.
    """

    def __init__(self, room: Room, clock: Clock, full: float) -> None:
        self.subscription: OpenSubscription
        self._room = room
        self._clock = clock
        self._full = full
        self._waiting: asyncio.Future[None] | None = None

    @property
    def share(self) -> int:
        return self._room.share

    def take(self, size: int) -> bool:
        return self._room.take(size)

    async def wait(self, size: int) -> None:
        self.subscription.pause()
        self._waiting = asyncio.ensure_future(self._room.wait(size))
        await within(self._clock, self._full, asyncio.wait((self._waiting,)))
        if not self._waiting.done():
            raise NoRoom
        await self.arrive()
        self.subscription.expect_event()

    @property
    def waits(self) -> bool:
        """Whether a wait for room has not ended yet."""
        return self._waiting is not None

    async def arrive(self) -> None:
        """Wait until there is room, if a wait has not ended yet."""
        if self._waiting is not None:
            await self._waiting
            self._waiting = None

    def release(self) -> None:
        """Return unused room, unless a wait for room has not ended yet."""
        if self._waiting is None:
            self._room.release()

    def leave(self) -> None:
        """Stop waiting for room."""
        if self._waiting is not None:
            self._waiting.cancel()
