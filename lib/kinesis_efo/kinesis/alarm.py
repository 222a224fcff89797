"""Closes a subscription if the next event takes too long, or if the sink has no room for too long."""

from __future__ import annotations

import asyncio
from math import inf

from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.transport import EventStream


class Alarm:
    """Closes a connection on timeout.

    There is one timer per subscription, restarted when it fires: cheaper than one per event. No limit is shorter than the
    timer's interval, so it is never late.

    Args:
        stream: The connection.
        clock: Time.
        limits: Kinesis' times.
        stats: Gets the new state when the connection is closed.

    Attributes:
        rang: Whether a limit was exceeded and the connection closed.
    """

    __slots__ = ("_clock", "_deadline", "_heard", "_limits", "_reads", "_stats", "_stream", "_timer", "rang")

    def __init__(self, stream: EventStream, clock: Clock, limits: Limits, stats: SubscriptionStats) -> None:
        self.rang = False
        self._stream = stream
        self._clock = clock
        self._limits = limits
        self._stats = stats
        self._timer: asyncio.TimerHandle
        self.expect_event()
        self._look()

    def expect_event(self) -> None:
        """Start the limit for the next event."""
        self._reads = True
        self._heard = self._stream.received
        self._deadline = self._clock.monotonic() + self._limits.silence

    def expect_room(self) -> None:
        """Start the limit for the sink to take an event."""
        self._reads = False
        self._deadline = self._clock.monotonic() + self._limits.full

    def pause(self) -> None:
        """Suspend both limits."""
        self._deadline = inf

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

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
        self.rang = True
        self._stats.state = State.CLOSED if self._reads else State.PAUSED
        self._stream.close()
