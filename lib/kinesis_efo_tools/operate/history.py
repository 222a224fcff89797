"""The history of a run during the last hour: its sums per short interval, in bounded memory. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from kinesis_efo_tools.operate.pulse import Sum, View

KEPT_SECONDS: Final = 3600.0
STRETCH_SECONDS: Final = 10.0
"""Length of an interval. Rates cover twice as much (`pulse.WINDOW_SECONDS`), so the last ones of each interval leave no gap."""

ALL: Final = ""
"""The key of all streams together."""


class Point(NamedTuple):
    """The figures of a run in one interval.

    `at` is when the interval begins, epoch seconds. `sums` has the longest lag in the interval and the last rates, by stream; `ALL` is the
    key of the total.
    """

    at: float
    sums: Mapping[str, Sum]


class History:
    """Keeps the points of the last hour.

    An interval is not shorter than `pause`, the seconds between two observations.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self.stretch = max(STRETCH_SECONDS, pause)
        self._points: deque[Point] = deque(maxlen=max(1, round(KEPT_SECONDS / self.stretch)))

    def add(self, at: float, view: View) -> None:
        """Add the present figures. `at` is in epoch seconds."""
        begin = at - at % self.stretch
        while self._points and self._points[-1].at > begin:
            self._points.pop()  # the clock was set back
        before = self._points.pop().sums if self._points and self._points[-1].at == begin else {}
        now = {ALL: view.total(), **{stream: view.total(stream) for stream in view.streams}}
        self._points.append(
            Point(begin, {**before, **{key: _worst(before.get(key), each) for key, each in now.items()}})
        )

    def since(self, at: float = 0.0) -> list[Point]:
        """Return the points from a time on, oldest first, at most an hour before the newest.

        `at` is in epoch seconds. The newest point still changes, so the next call should begin with its time. If `at`
        is in the future, because the clock was set back, all points are returned.
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
