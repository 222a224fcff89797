"""Logs a warning once when a producer stalls, and once when it makes progress again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kinesis_efo.clock import Clock

logger = logging.getLogger(__name__)


class StallWatch:
    """Warns once per stall: Kinesis acknowledged no record for `seconds` although a caller waits.

    `describe` returns the producer's state for the message; None if no caller waits.
    """

    def __init__(
        self, seconds: float, clock: Clock, loop: asyncio.AbstractEventLoop, describe: Callable[[], str | None]
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._loop = loop
        self._describe = describe
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._warned = False
        self.fault = ""

    def start(self) -> None:
        """Start watching, unless this has started already. Called whenever a caller begins to wait."""
        if self._timer is None:
            self._since = self._clock.monotonic()
            self._timer = self._loop.call_later(self._seconds, self._check)

    def progress(self) -> None:
        """Note that Kinesis has acknowledged records, which ends a stall."""
        now = self._clock.monotonic()
        if self._warned:
            logger.warning("writing continues after %.0f s", now - self._since)
        self._since, self._warned, self.fault = now, False, ""

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        state = self._describe()
        if state is None:
            return
        waited = self._clock.monotonic() - self._since
        if waited >= self._seconds and not self._warned:
            self._warned = True
            cause = f"; the last fault was {self.fault}" if self.fault else "; Kinesis has not answered"
            logger.warning("%s and none was acknowledged for %.0f s%s", state, waited, cause)
        rest = self._seconds - waited if waited < self._seconds else self._seconds
        self._timer = self._loop.call_later(rest, self._check)
