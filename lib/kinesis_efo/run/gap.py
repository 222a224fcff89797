"""Warns if a query that is catching up falls further behind instead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Final

from kinesis_efo.fetcher.status import QueryStatus

logger = logging.getLogger(__name__)

GROWS_SECONDS: Final = 600.0
"""A warning is logged if a query's gap to the tip grows for this many seconds."""

_LOOK_SECONDS: Final = 60.0
_LEAST_SECONDS: Final = 10.0
"""Minimum growth of the gap, in seconds, from the first third of `GROWS_SECONDS` to the last third; less may be noise."""
_AGAIN_SECONDS: Final = 3600.0


class GapWatch:
    """Checks once a minute whether a query that is catching up falls further behind instead."""

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque()
        self._looked_at = -inf
        self._warned_at = -inf

    def look(self, now: float, status: Callable[[], QueryStatus] | None) -> None:
        """Warn if the query has kept falling further behind for `GROWS_SECONDS`. Checks at most once a minute. `now` is monotonic seconds.

        `status` returns the query's status with the list of its shards; it is None if the query is not catching up.
        """
        if status is None:
            self._gaps.clear()
            return
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        query = status()
        gap = max((each.millis for each in query.shards or () if each.apart and each.millis is not None), default=None)
        if gap is None:
            if not query.apart:
                self._gaps.clear()
            return
        self._gaps.append((now, gap / 1000))
        while now - self._gaps[0][0] > GROWS_SECONDS + _LOOK_SECONDS:
            self._gaps.popleft()
        if now - self._gaps[0][0] < GROWS_SECONDS or now - self._warned_at < _AGAIN_SECONDS:
            return
        if self._grows(now):
            self._warned_at = now
            logger.warning(
                "%s of this program catches up in %d shards, and falls behind: %.0f s behind now, %.0f s ten minutes ago. If Kinesis has "
                "the rate to spare, set kinesis-efo option 'maxShardRate' higher; with 'slowQueries=hold' the other queries wait for it",
                query.label,
                query.apart,
                self._gaps[-1][1],
                self._gaps[0][1],
            )

    def _grows(self, now: float) -> bool:
        # Compare the smallest gap in each third of `GROWS_SECONDS`, because a single micro-batch can change the gap by minutes.
        thirds: list[list[float]] = [[], [], []]
        for at, gap in self._gaps:
            thirds[min(2, int(3 * max(0.0, now - at) / GROWS_SECONDS))].append(gap)
        least = [min(gaps, default=inf) for gaps in reversed(thirds)]
        return all(after - before >= _LEAST_SECONDS / 2 for before, after in pairwise(least))
