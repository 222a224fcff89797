"""Notices that a range does not come to its end: warns while it waits, and says in the end what is missing.

No range waits for ever, and none ends short in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kinesis_efo.errors import DataLossError, RetriesExhaustedError
from kinesis_efo.kinesis.quiet import Quiet
from kinesis_efo.positions import Position, ShardRange

logger = logging.getLogger(__name__)

WARN_SECONDS: Final = 30.0
"""Time without anything for a range until that is said, and from then on until it is said again."""


class Shortfall:
    """Watches over one range that is read.

    Args:
        wanted: The range.
        timeout: Seconds without progress after which it is given up, `subscribe.retryTimeout`.
        fail: Whether a record that is gone fails the query.
        now: Monotonic time, seconds.
    """

    def __init__(self, wanted: ShardRange, timeout: float, now: float, *, fail: bool) -> None:
        self._wanted = wanted
        self._timeout = timeout
        self._fail = fail
        self._progress_at = now
        self._astray_since: float | None = None

    def progressed(self, now: float) -> None:
        """Take note that records of the range came."""
        self._progress_at, self._astray_since = now, None

    def went_astray(self, position: Position, now: float) -> bool:
        """Take note that what came lies behind the last record of the range, without that record.

        Args:
            position: How far the range has been read.
            now: Monotonic time, seconds.

        Returns:
            Whether the range ends here, as `failOnDataLoss=false` asks. If not, it is worth asking again.

        Raises:
            DataLossError: That goes on for too long.
        """
        self._astray_since = now if self._astray_since is None else self._astray_since
        seconds = now - self._astray_since
        return seconds >= self._timeout and self._gone(
            position, seconds, "what lies behind it came without it, each time"
        )

    def heard(self, position: Position, quiet: Quiet) -> bool:
        """Take note of the newest answers.

        Args:
            position: How far the range has been read.
            quiet: The answers.

        Returns:
            Whether the range ends here, as `failOnDataLoss=false` asks.

        Raises:
            DataLossError: For too long, nothing has come although the last record of the range is known.
            RetriesExhaustedError: For too long, nothing has come, and the end of the range is not reached.
        """
        seconds = quiet.lasts(self._progress_at)
        if seconds < self._timeout:
            return False
        if self._wanted.last is not None:
            return self._gone(position, seconds, str(quiet))
        raise RetriesExhaustedError(
            f"shard {self._wanted.key} was read up to {position} and does not get to {self._wanted.through}, where the range ends, for "
            f"{seconds:.0f} s: {quiet}. Not a record is known to be missing; start the query again, and see whether Kinesis has a problem"
        )

    def _gone(self, position: Position, seconds: float, why: str) -> bool:
        message = (
            f"shard {self._wanted.key} was read up to {position}, and record {self._wanted.last}, up to which the micro-batch was planned, "
            f"has not come again for {seconds:.0f} s: {why}"
        )
        if self._fail:
            raise DataLossError(f"{message}. Set kinesis-efo option 'failOnDataLoss' to false to go on without it")
        logger.warning("%s; going on without it, as option failOnDataLoss=false asks", message)
        return True


class StallWarning:
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
        """Say something if it is due.

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
