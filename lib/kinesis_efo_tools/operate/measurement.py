"""The results of subscribing to one shard over each transport, and whether each transport works. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kinesis_efo.aws_errors import Cause, cause_of, describe
from kinesis_efo.http2.response import HttpFacts
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.manifest import StreamRef
from kinesis_efo.records.events import Event
from kinesis_efo_tools.operate.findings import Finding, Status, failed_call

TRANSPORTS: Final = {"http2": "HTTP/2", "http1": "HTTP/1.1"}
"""The HTTP version of each transport, by its name in option `transport`, in the order of measurement."""

ACTION: Final = "kinesis:SubscribeToShard"


@dataclass(slots=True)
class SubscriptionResult:
    """What was measured for one subscription. All times are in seconds.

    Attributes:
        transport: The transport's name, a key of `TRANSPORTS`.
        http: The versions of HTTP and TLS; None if there was no response.
        answered_after: From the call until Kinesis accepted it, including the time to connect.
        first_event_after: From the call until the first event.
        read_for: From Kinesis' response until the end of reading.
        events: Events received, including those without records.
        records: Kinesis records in these events.
        bytes: Bytes of the events' JSON.
        largest_event: Bytes of the largest event.
        error: The error that ended the subscription; None if it was read for the intended time.
    """

    transport: str
    http: HttpFacts | None = None
    answered_after: float | None = None
    first_event_after: float | None = None
    read_for: float = 0.0
    events: int = 0
    records: int = 0
    bytes: int = 0
    largest_event: int = 0
    error: Exception | None = None

    def add(self, event: Event, after: float) -> None:
        """Count an event. `after` is seconds since the call."""
        if self.first_event_after is None:
            self.first_event_after = after
        size = len(event.payload)
        self.events += 1
        self.records += event.head.records
        self.bytes += size
        self.largest_event = max(self.largest_event, size)

    @property
    def works(self) -> bool:
        """Whether the transport works: events arrived until the end, or until another reader took over the shard."""
        if self.error is None:
            return True
        return self.events > 0 and classify(self.error).verdict is Verdict.TAKEN_OVER


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of subscribing to one shard over each transport, one after the other.

    `stream` has the consumer that subscribed; `subscriptions` has one result for each transport.
    """

    stream: StreamRef
    shard: str
    endpoint: str
    subscriptions: Sequence[SubscriptionResult]

    def findings(self) -> list[Finding]:
        """Return one `Finding` for each transport.

        A query needs only one transport. If one works, a transient error or a connection error of the other is not a failure.
        """
        one_works = any(each.works for each in self.subscriptions)
        return [self._finding(each, one_works) for each in self.subscriptions]

    def _finding(self, found: SubscriptionResult, one_works: bool) -> Finding:
        subject = f"{self.stream.name} over {TRANSPORTS[found.transport]}"
        error = found.error
        if error is None:
            return Finding(subject, Status.PASSED, self._came(found))
        if found.works:
            return Finding(subject, Status.PASSED, f"{self._came(found)}, until another reader took the shard over")
        fault = classify(error)
        detail = describe(error) + (f", after {_events(found.events)}" if found.events else "")
        match fault.verdict:
            case Verdict.TOO_SOON | Verdict.TAKEN_OVER:
                fix = f"stop the other reader of {self.stream.consumer_arn}, and measure again"
                return Finding(subject, Status.UNKNOWN, detail, fix)
            case Verdict.NOT_ACTIVE:
                return Finding(subject, Status.FAILED, detail, "wait until the consumer is ACTIVE")
            case Verdict.MISSING:
                fix = "deploy again, so that the manifest names the existing consumer, and measure again"
                return Finding(subject, Status.FAILED, detail, fix)
            case Verdict.UNEXPECTED:
                return Finding(subject, Status.FAILED, detail, "none: this is a bug, report it")
        if cause_of(error) is not Cause.PASSING:
            return failed_call(subject, error, ACTION)
        if one_works:
            return Finding(subject, Status.UNKNOWN, detail, _DISPENSABLE[found.transport])
        return Finding(subject, Status.FAILED, detail, "look at proxy and firewall on the way to the endpoint")

    def _came(self, found: SubscriptionResult) -> str:
        first = f"{found.first_event_after * 1000:,.0f} ms" if found.first_event_after is not None else "never"
        return f"{self.shard}: first event after {first}, {_events(found.events)} in {found.read_for:.1f} s"


_DISPENSABLE: Final = {
    "http2": "none where queries may use HTTP/1.1, which works, as with transport=auto; else look for a proxy on the way",
    "http1": "none where queries may use HTTP/2, which works, as with transport=auto; else look for a proxy on the way",
}
"""Fixes that are shown for a failing transport if the other transport works, by the name of the failing one."""


def _events(number: int) -> str:
    return f"{number:,} event{'s'[: number != 1]}"
