"""Decides whether a shard has been read to its tip. A single empty response does not prove that.

GetRecords may return an empty response while the shard has more records, and some servers report a lag although everything was read.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from kinesis_efo.records.events import EventHead

QUIET_ANSWERS: Final = 3
"""How many successive empty GetRecords responses are needed to consider a shard read to its tip."""

QUIET_EVENTS: Final = 2
"""How many successive empty SubscribeToShard events are needed to consider a shard read to its tip; Kinesis sends one every 5 s."""

QUIET_SECONDS: Final = 2.0
"""Minimum seconds from the first to the last of the empty responses (or events) that show that a shard was read to its tip."""

SETTLED_SECONDS: Final = 1.0
"""Seconds to wait after a given time before reading up to it. All records that arrived before that time can then be read."""

FUTURE_SECONDS: Final = 5.0
"""The end of a read may be at most this many seconds in the future: a user's clock may be ahead of Kinesis'. The read waits until then."""

_LATELY_SECONDS: Final = 12.0
"""The last response counts as recent for this many seconds, in which Kinesis sends at least two SubscribeToShard events."""

_REMEMBERED: Final = 64
_STEP_SECONDS: Final = QUIET_SECONDS / 16
"""About one response in this many seconds is stored, so that `_REMEMBERED` responses cover more than `QUIET_SECONDS`."""


class Quiet:
    """Counts successive empty responses or events of a shard.

    The reader is at the tip if they report a zero lag, or a lag that does not shrink while the iterator moves. A shrinking lag restarts
    the count: the reader is passing a period without records.

    >>> quiet = Quiet()
    >>> for second in range(3):
    ...     quiet.observe(EventHead(0, millis_behind=0, records=0, still=True), second)
    >>> quiet.is_at_tip(), quiet.is_at_tip(asked_at=1), str(quiet)
    (True, False, '3 responses in 2 s had no records; the last one reported a lag of 0 ms')
    """

    __slots__ = ("_behind", "_counted", "_least", "_needed", "answers", "latest_at", "since")

    def __init__(self) -> None:
        self.answers = 0
        self.since = self.latest_at = 0.0  # Start of the count, and time of the last response, monotonic seconds
        self._behind = self._least = 0
        self._counted: deque[float] = deque(maxlen=_REMEMBERED)
        self._needed = QUIET_ANSWERS

    def observe(self, head: EventHead, now: float) -> None:
        """Process an event or response (its `EventHead`) that was received at `now` (monotonic seconds)."""
        behind = head.millis_behind
        if not head.brings_nothing or not self.answers or behind < self._least:
            self.answers = 0
            self._counted.clear()
            self.since, self._least = now, behind
        if not head.brings_nothing:
            return
        self.answers += 1
        if not head.still and now - self.latest_at > _LATELY_SECONDS:
            self._counted.clear()  # After a silence, ignore earlier events: records may have arrived since
        if behind and head.stuck:
            # An iterator that does not move, but reports a lag, may have more to read: restart the count.
            self._counted.clear()
        else:
            if len(self._counted) > 1 and now - self._counted[-2] < _STEP_SECONDS:
                self._counted.pop()
            self._counted.append(now)
        self.latest_at, self._behind = now, behind
        self._needed = QUIET_ANSWERS if head.still else QUIET_EVENTS

    def interrupt(self) -> None:
        """Restart the count when a subscription's event waits for space. Not needed for GetRecords: it is called only if there is space."""
        if self._needed == QUIET_EVENTS:
            self.answers = 0
            self._counted.clear()

    def is_at_tip(self, asked_at: float = -inf) -> bool:
        """Whether the shard has been read to its tip. Responses before `asked_at` do not count: records may have arrived since."""
        counted = [at for at in self._counted if at >= asked_at]
        return len(counted) >= self._needed and counted[-1] - counted[0] >= QUIET_SECONDS

    def seconds_at_tip(self, now: float) -> float:
        """Return for how many seconds the shard has apparently been read to its tip; 0 if it may have more records.

        Also 0 without a recent response, for example while the buffer is full.
        """
        usual = (self.latest_at - self.since) / max(1, self.answers - 1)
        lately = now - self.latest_at <= max(_LATELY_SECONDS, 2 * usual)
        return now - self.since if lately and self.is_at_tip() else 0.0

    def seconds_empty(self, since: float) -> float:
        """Return for how many seconds all responses have been empty. Time before `since` does not count."""
        return self.latest_at - max(self.since, since) if self.answers else 0.0

    def __str__(self) -> str:
        if not self.answers:
            return "no response without records"
        seconds = self.latest_at - self.since
        return f"{self.answers} responses in {seconds:.0f} s had no records; the last one reported a lag of {self._behind} ms"
