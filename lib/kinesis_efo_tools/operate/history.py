"""The lag and rates of a run during the last hour, in short intervals and bounded memory. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from kinesis_efo_tools.operate.pulse import Sum, View

KEPT_SECONDS: Final = 3600.0
STRETCH_SECONDS: Final = 10.0
"""Length of an interval in seconds. Rates cover twice this time (`pulse.WINDOW_SECONDS`), so one rate per interval is enough."""

ALL: Final = ""
"""The key for the total of all streams, in place of a stream's name."""


class Point(NamedTuple):
    """The figures of a run in one interval.

    `at` is the start of the interval, in epoch seconds. `sums` has the largest lag and the last rates in the interval, by stream and, under
    the key `ALL`, in total.
    """

    at: float
    sums: Mapping[str, Sum]


class History:
    """Stores the figures of a run in each interval of the last hour.

    `pause` is the time between two observations in seconds. Intervals are at least this long.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self.stretch = max(STRETCH_SECONDS, pause)
        self._points: deque[Point] = deque(maxlen=max(1, round(KEPT_SECONDS / self.stretch)))

    def add(self, at: float, view: View) -> None:
        """Add the figures in `view`, which were observed at `at` (epoch seconds)."""
        begin = at - at % self.stretch
        while self._points and self._points[-1].at > begin:
            self._points.pop()  # in the future, because the clock was set back
        before = self._points.pop().sums if self._points and self._points[-1].at == begin else {}
        now = {ALL: view.total(), **{stream: view.total(stream) for stream in view.streams}}
        self._points.append(
            Point(begin, {**before, **{key: _worst(before.get(key), each) for key, each in now.items()}})
        )

    def since(self, at: float = 0.0) -> list[Point]:
        """Return the points from `at` (epoch seconds) on, oldest first, at most one hour.

        The newest point may still change, so pass its time as `at` in the next call. If the clock was set back and `at` is in the future,
        all points are returned.
        """
        if not self._points:
            return []
        newest = self._points[-1].at
        oldest = max(at if at <= newest else 0.0, newest - KEPT_SECONDS)
        return [each for each in self._points if each.at >= oldest]


def _worst(before: Sum | None, now: Sum) -> Sum:
    if before is None or before.seconds is None:
        return now
    return now._replace(seconds=before.seconds if now.seconds is None else max(before.seconds, now.seconds))
