"""Backs off from a failing shard: how long to wait before the next try, and when to give up. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import jitter

_LONGEST_TRY: Final = 120.0
"""Seconds. A try that fails later than this after it was due began later: nobody read meanwhile, as without a lease or room."""


class Backoff:
    """Counts failures in a row, and the time for which there is nothing else. Any progress resets both.

    Args:
        settings: How often and for how long to retry, and how long to wait.
        random: Gives numbers in `[0, 1)`.

    Attributes:
        failures: Failures in a row.
        first: The first of them; later ones may only be its consequences.
        seconds: How long it has only failed.
    """

    def __init__(self, settings: RetrySettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self.failures = 0
        self.first: Exception | None = None
        self.seconds = 0.0
        self._since = 0.0
        self._due = 0.0

    def failed(self, error: Exception, now: float) -> float | None:
        """Count a failure.

        Args:
            error: The failure.
            now: Monotonic time, seconds.

        Returns:
            Seconds to wait before the next try; None when there were more than `max_retries` in a row, or for so long as `timeout`.
        """
        if self.first is None or now - self._due > _LONGEST_TRY:
            self._since = now
        self.first = self.first or error
        self.failures += 1
        self.seconds = now - self._since
        most = self._settings.max_retries
        if (most is not None and self.failures > most) or self.seconds >= self._settings.timeout:
            return None
        delay = jitter(self._settings, self.failures, self._random)
        self._due = now + delay
        return delay

    def reset(self) -> None:
        """Note progress."""
        self.failures = 0
        self.first = None
