"""Backs off from a failing shard: how long to wait before the next try, and when to give up. Pure."""

from __future__ import annotations

from collections.abc import Callable

from kinesis_efo.options import RetrySettings


def jitter(settings: RetrySettings, failures: int, random: Callable[[], float]) -> float:
    """Seconds to wait after so many failures in a row: anything up to a limit that grows with each ("full jitter").

    Args:
        settings: Base, factor and maximum.
        failures: Failures in a row, at least 1.
        random: Gives numbers in `[0, 1)`.

    >>> [jitter(RetrySettings(), failures, lambda: 1.0) for failures in (1, 2, 3, 10**6)]
    [1.0, 1.5, 2.25, 10.0]
    """
    # The power would overflow some day, long after the maximum applies.
    growth: float = settings.factor ** min(failures - 1, 200)
    return random() * min(settings.max_ms, settings.base_ms * growth) / 1000


class Backoff:
    """Counts failures in a row. Any progress resets the count.

    Args:
        settings: How often to retry, and how long to wait.
        random: Gives numbers in `[0, 1)`.

    Attributes:
        failures: Failures in a row.
        first: The first of them; later ones may only be its consequences.
    """

    def __init__(self, settings: RetrySettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self.failures = 0
        self.first: Exception | None = None

    def failed(self, error: Exception) -> float | None:
        """Count a failure.

        Returns:
            Seconds to wait before the next try; None when there were more than `max_retries` in a row.
        """
        self.first = self.first or error
        self.failures += 1
        if self.failures > self._settings.max_retries:
            return None
        return jitter(self._settings, self.failures, self._random)

    def reset(self) -> None:
        """Note progress."""
        self.failures = 0
        self.first = None
