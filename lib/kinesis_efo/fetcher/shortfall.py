"""Handles ranges whose records do not arrive: logs warnings while such a range waits, and gives up after a time limit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kinesis_efo.decisions.quiet import Quiet
from kinesis_efo.errors import RetriesExhaustedError
from kinesis_efo.kinesis.faults import lost_after
from kinesis_efo.positions import Position, ShardRange

logger = logging.getLogger(__name__)

WARN_SECONDS: Final = 30.0
"""While a range makes no progress, a warning is logged each time this many seconds have passed."""


class Shortfall:
    """Watches the progress of one range, and gives up on it after `timeout` seconds without progress.

    Args:
        timeout: The time limit in seconds (option `retryTimeout`).
        waits_for: Returns the reason for waiting, for log messages.
        fail: Whether a lost record fails the query. If not, the attribute `lost` describes the loss.
        beyond_since: When an earlier attempt to read the range first missed the last record, monotonic seconds; None if it never did.
    """

    def __init__(
        self,
        wanted: ShardRange,
        timeout: float,
        now: float,
        waits_for: Callable[[], str],
        *,
        fail: bool,
        beyond_since: float | None = None,
    ) -> None:
        self._wanted = wanted
        self._timeout = timeout
        self._waits_for = waits_for
        self._fail = fail
        self.lost = ""
        self._progress_at = now
        self._beyond_since = beyond_since
        self._position = wanted.after
        self._moved_at = self._warned_at = now

    def progressed(self, now: float) -> None:
        """Restart the time limits after records of the range have arrived."""
        self._progress_at, self._beyond_since = now, None

    def check_progress(self, position: Position, now: float) -> None:
        """Log a warning if the range has not moved from a position for a long time."""
        if position != self._position:
            self._position, self._moved_at, self._warned_at = position, now, now
        elif now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            logger.warning(
                "shard %s: a task has waited for %.0f s at %s for the rest of its range, which ends at %s: %s",
                self._wanted.key,
                now - self._moved_at,
                position,
                self._wanted.through,
                self._waits_for(),
            )

    def went_beyond(self, position: Position, now: float) -> bool:
        """Called if an event is past the range's last record but does not contain that record.

        Returns False if the caller should read from Kinesis again. After `timeout` seconds, raises `DataLossError` or, if the loss is
        accepted, returns True to end the range without the record.
        """
        self._beyond_since = now if self._beyond_since is None else self._beyond_since
        seconds = now - self._beyond_since
        return seconds >= self._timeout and self._gone(
            position, seconds, "later records arrived without it at each attempt"
        )

    def check_quiet(self, position: Position, quiet: Quiet) -> bool:
        """Return whether to end the range without its last record, because only empty events came for `timeout` seconds.

        Raises DataLossError if that record's sequence number is known and its loss is not accepted, and RetriesExhaustedError if it is
        unknown whether a record is missing.
        """
        seconds = quiet.seconds_empty(self._progress_at)
        if seconds < self._timeout:
            return False
        if self._wanted.last is not None:
            return self._gone(position, seconds, str(quiet))
        raise RetriesExhaustedError(
            f"shard {self._wanted.key} was read up to {position} and does not get to {self._wanted.through}, where the range ends, for "
            f"{seconds:.0f} s: {quiet}. No record is known to be missing",
            remedy="restart the query, and check the AWS Health Dashboard for Kinesis problems",
        ).about(*self._wanted.key)

    def _gone(self, position: Position, seconds: float, why: str) -> bool:
        self.lost = (
            f"shard {self._wanted.key} was read up to {position}, and record {self._wanted.last}, up to which the micro-batch was planned, "
            f"has not come again for {seconds:.0f} s: {why}"
        )
        if self._fail:
            raise lost_after(self.lost, *self._wanted.key, self._wanted.after)
        return True
