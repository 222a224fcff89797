"""How long to wait before Spark is given a job again that has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_FIRST: Final = 1.0
_LONGEST: Final = 30.0


class Pauses:
    """Waits of a second, then twice as long each time, up to 30 s. A job that did run begins anew.

    Args:
        now: Monotonic time, seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next = _FIRST
        self._began = now()

    def begin(self) -> None:
        """Take note that the job is submitted."""
        self._began = self._now()

    def after_failure(self) -> float:
        """Seconds to wait, now that it has failed."""
        pause = _FIRST if self._now() - self._began > _LONGEST else self._next
        self._next = min(2 * pause, _LONGEST)
        return pause
