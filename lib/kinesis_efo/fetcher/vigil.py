"""Says now and then that a task waits for the rest of its range, and for what: it may wait for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kinesis_efo.positions import Position, ShardRange

logger = logging.getLogger(__name__)

WARN_SECONDS: Final = 30.0
"""Time without anything for a range until that is said, and from then on until it is said again."""


class Vigil:
    """Watches over one range that is read.

    Args:
        wanted: The range.
        now: Monotonic time, seconds.
        waits_for: Tells what keeps it waiting.
    """

    def __init__(self, wanted: ShardRange, now: float, waits_for: Callable[[], str]) -> None:
        self._wanted = wanted
        self._waits_for = waits_for
        self._position = wanted.after
        self._since = self._said = now

    def look(self, position: Position, now: float) -> None:
        """Say something where it is due.

        Args:
            position: How far the range has been read.
            now: Monotonic time, seconds.
        """
        if position != self._position:
            self._position, self._since, self._said = position, now, now
        elif now - self._said >= WARN_SECONDS:
            self._said = now
            logger.warning(
                "shard %s: a task has waited for %.0f s at %s for the rest of its range, which ends at %s: %s",
                self._wanted.key,
                now - self._since,
                position,
                self._wanted.through,
                self._waits_for(),
            )
