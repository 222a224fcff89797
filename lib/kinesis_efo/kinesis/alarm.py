"""The time limits of one open subscription: how long the next event may take, and how long the sink may have no room for it."""

from __future__ import annotations

import asyncio
from math import inf

from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.transport import EventStream


class Alarm:
    """Closes a connection when what is expected takes too long.

    One timer per subscription, which is set anew when it goes off, is cheaper than one per event. It never comes too late: no
    limit is shorter than its naps, so nothing that began during a nap is overdue at its end.

    Args:
        stream: The connection.
        clock: Time.
        limits: Kinesis' times.
        stats: Learns that it is closed.

    Attributes:
        rang: Whether it took too long, and the connection is closed.
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
        """From now on, silence counts."""
        self._reads = True
        self._heard = self._stream.received
        self._deadline = self._clock.monotonic() + self._limits.silence

    def expect_room(self) -> None:
        """From now on, nothing is read: the sink takes an event."""
        self._reads = False
        self._deadline = self._clock.monotonic() + self._limits.full

    def pause(self) -> None:
        """Expect nothing."""
        self._deadline = inf

    def stop(self) -> None:
        """Never go off any more."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._deadline - self._clock.monotonic()
        if left <= 0 and self._reads and self._stream.received != self._heard:
            # Slow, not dead: a large event is on its way.
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
