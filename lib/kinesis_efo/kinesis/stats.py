"""Statistics of a shard's subscriptions and its lag, for metrics and tools."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

SILENCE_SECONDS: Final = 10.0
"""A silence longer than this many seconds counts as lag. It is twice the time between two events of an idle shard."""


class State(Enum):
    """The state of a shard's subscription."""

    CLOSED = "closed"
    WAITING = "waiting"
    OPENING = "opening"
    STREAMING = "streaming"
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(slots=True)
class SubscriptionStats:
    """Statistics of a shard's subscriptions: plain numbers, read by other threads."""

    state: State = State.CLOSED
    opened: int = 0  # Number of opened subscriptions
    renewed: int = 0  # Number of subscriptions that ended normally
    paused: int = 0  # How often a subscription was closed because the sink was full
    failures: Counter[str] = field(default_factory=Counter)  # Number of errors, by error code
    events: int = 0  # Number of delivered events
    records: int = 0  # Number of Kinesis records in the delivered events
    bytes: int = 0  # Total size of the delivered events' payloads
    millis_behind: int | None = None
    last_event: float | None = None  # Time of the last event, monotonic seconds

    def silence(self, now: float) -> float | None:
        """Return the seconds since the last event; 0 for a finished shard, None before the first event."""
        if self.last_event is None:
            return None
        return 0.0 if self.state is State.ENDED else max(0.0, now - self.last_event)

    def describe(self, now: float) -> str:
        """Describe the subscription, for messages.

        >>> SubscriptionStats(State.STREAMING, last_event=10.0, failures=Counter(TimeoutError=2)).describe(52.0)
        'its subscription is streaming; the last event arrived 42 s ago; failures so far: TimeoutError 2'
        """
        silence = self.silence(now)
        heard = "no event has arrived" if silence is None else f"the last event arrived {silence:.0f} s ago"
        failures = ", ".join(f"{code} {number}" for code, number in sorted(self.failures.items()))
        return f"its subscription is {self.state.value}; {heard}" + (
            f"; failures so far: {failures}" if failures else ""
        )

    def lag(self, now: float) -> int | None:
        """Return the lag in milliseconds; None before the first event. Adds the last event's age if it is more than `SILENCE_SECONDS`."""
        silence = self.silence(now)
        if silence is None or self.millis_behind is None:
            return None
        return self.millis_behind + (round(silence * 1000) if silence > SILENCE_SECONDS else 0)
