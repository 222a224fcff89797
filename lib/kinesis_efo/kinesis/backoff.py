"""Decides how long to wait before a failing shard is tried again, and when to give up. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import jitter

_LONGEST_TRY: Final = 120.0
"""Seconds. If a failure comes later than this after its try was due, the try began late (for want of lease or room); the timeout restarts."""


class Backoff:
    """Counts failures in a row and their duration. Any progress resets both.

    Args:
        settings: How often and for how long to retry, and how long to wait.
        random: Returns numbers in `[0, 1)`.

    Attributes:
        failures: Failures in a row.
        first: The first of them; later ones may only be its consequences.
        seconds: Time from the first to the last of them.
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
            Seconds to wait before the next try; None after more than `max_retries` failures in a row, or after `timeout`.
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
