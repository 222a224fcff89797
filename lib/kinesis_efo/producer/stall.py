"""Says once that a producer stands still, and once that it goes on. Relies on asyncio's timers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kinesis_efo.clock import Clock

logger = logging.getLogger(__name__)


class StallWatch:
    """Warns when nothing was acknowledged for a while although somebody waits; once per stall.

    Args:
        seconds: How long is a stall.
        clock: Monotonic time.
        loop: For the timer.
        what: The state for the message; None where nobody waits.
    """

    def __init__(
        self, seconds: float, clock: Clock, loop: asyncio.AbstractEventLoop, what: Callable[[], str | None]
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._loop = loop
        self._what = what
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._warned = False
        self.fault = ""

    def start(self) -> None:
        """Somebody waits from now on."""
        if self._timer is None:
            self._since = self._clock.monotonic()
            self._timer = self._loop.call_later(self._seconds, self._look)

    def progress(self) -> None:
        """Something was acknowledged."""
        now = self._clock.monotonic()
        if self._warned:
            logger.warning("writing goes on after %.0f s", now - self._since)
        self._since, self._warned, self.fault = now, False, ""

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        what = self._what()
        if what is None:
            return
        waited = self._clock.monotonic() - self._since
        if waited >= self._seconds and not self._warned:
            self._warned = True
            cause = f"; the last fault was {self.fault}" if self.fault else "; Kinesis has not answered"
            logger.warning("%s and none was acknowledged for %.0f s%s", what, waited, cause)
        rest = self._seconds - waited if waited < self._seconds else self._seconds
        self._timer = self._loop.call_later(rest, self._look)
