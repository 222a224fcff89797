"""What a query does without any fetcher: it waits, fetches beside the planner where it may, and fails in the end. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kinesis_efo.errors import FetcherError

logger = logging.getLogger(__name__)


class Absence:
    """Follows for how long there has been no fetcher.

    Args:
        patience: Seconds after which the query fails.
        now: Monotonic time, seconds. None has come yet.
        failed: Called with the error.
        fetch_here: Starts a fetcher in this process, and tells whether it has. Called once, after half of that time.
        excuse: Why none may have come, for messages.
    """

    def __init__(
        self,
        patience: float,
        now: float,
        failed: Callable[[FetcherError], None],
        fetch_here: Callable[[], bool],
        excuse: Callable[[], str],
    ) -> None:
        self._patience = patience
        self._since = now
        self._failed = failed
        self._fetch_here = fetch_here
        self._asked = False
        self._excuse = excuse

    def begin(self, now: float) -> None:
        """Take note that the last one is gone."""
        self._since = now

    def look(self, now: float) -> None:
        """Do what is due while there is none."""
        seconds = now - self._since
        if seconds >= self._patience:
            self._failed(
                FetcherError(
                    f"no fetcher has come up for {seconds:.0f} s. {self._excuse()}".strip()
                    + " Fetchers run as Spark tasks: Spark's UI shows their job, 'kinesis-efo fetchers', and why it waits or fails"
                )
            )
        elif seconds >= self._patience / 2 and not self._asked:
            self._asked = True
            if self._fetch_here():
                logger.warning("no fetcher for %.0f s: fetching beside the planner. %s", seconds, self._excuse())
