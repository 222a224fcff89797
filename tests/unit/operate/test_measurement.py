"""What follows from what subscriptions showed: which transport works, and what to do about one that does not."""

import pytest
from botocore.exceptions import HTTPClientError

from kinesis_efo.http2.response import HttpFacts
from kinesis_efo.manifest import StreamRef
from kinesis_efo.records.events import Event, read_head
from kinesis_efo_tools.operate.findings import Finding, Status
from kinesis_efo_tools.operate.measurement import TRANSPORTS, Measurement, SubscriptionResult
from tests.support.transports import broken_off, payload, refused

ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/prod-orders"
ORDERS = StreamRef("orders", "prod-orders", ARN, f"{ARN}/consumer/lake:1700000000")
NO_HTTP2 = HTTPClientError(error="the endpoint speaks HTTP/1.1 only")


def _subscribed(transport: str, error: Exception | None = None, events: int = 3) -> SubscriptionResult:
    found = SubscriptionResult(
        transport, HttpFacts(TRANSPORTS[transport]), answered_after=0.04, read_for=10.0, error=error
    )
    for number in range(events):
        event = payload(7, records=number)
        found.add(Event(event, read_head(event)), after=0.31 + number)
    return found


def _findings(*subscriptions: SubscriptionResult) -> list[Finding]:
    return Measurement(ORDERS, "shardId-000000000000", "https://kinesis", subscriptions).findings()


def test_transports_that_work_pass_with_their_events() -> None:
    counted = _subscribed("http2")
    sizes = [len(payload(7, records=number)) for number in range(3)]
    assert (counted.first_event_after, counted.events, counted.records) == (0.31, 3, 0 + 1 + 2)
    assert (counted.bytes, counted.largest_event) == (sum(sizes), max(sizes))
    first, second = _findings(counted, _subscribed("http1"))
    assert (first.subject, second.subject) == ("orders over HTTP/2", "orders over HTTP/1.1")
    assert first.status is second.status is Status.PASSED
    assert first.detail == "shardId-000000000000: first event after 310 ms, 3 events in 10.0 s"


@pytest.mark.parametrize("failing", TRANSPORTS)
@pytest.mark.parametrize("error", [NO_HTTP2, TimeoutError("no event for 12 s"), EOFError("ended")])
def test_one_transport_is_enough_for_a_query(failing: str, error: Exception) -> None:
    found = _findings(*(_subscribed(each, error if each == failing else None, events=0) for each in TRANSPORTS))
    failed, works = sorted(found, key=lambda each: each.status is Status.PASSED)
    assert failed.subject == f"orders over {TRANSPORTS[failing]}"
    assert (failed.status, works.status) == (Status.UNKNOWN, Status.PASSED)
    assert str(error) in failed.detail
    assert failed.fix.startswith("none where queries may use HTTP/")
    assert TRANSPORTS[failing] not in failed.fix


def test_query_without_any_transport_fails() -> None:
    found = _findings(_subscribed("http2", NO_HTTP2, events=0), _subscribed("http1", ConnectionResetError(), events=2))
    assert [each.status for each in found] == [Status.FAILED, Status.FAILED]
    assert found[1].detail == "ConnectionResetError, after 2 events"
    denied = refused("AccessDeniedException", "User: arn:aws:sts::1:assumed-role/lake/me is not authorized")
    for each in _findings(*(_subscribed(each, denied, events=0) for each in TRANSPORTS)):
        assert each.status is Status.FAILED
        assert each.detail.startswith("AccessDeniedException: User: arn:aws:sts::1:assumed-role/lake/me")
        assert each.fix.startswith("allow kinesis:SubscribeToShard to the role")


@pytest.mark.parametrize(
    ("error", "status", "fix"),
    [
        (refused("ResourceInUseException", "Another active subscription exists for this consumer"), Status.UNKNOWN, "stop the other reader"),
        (refused("ResourceInUseException", "Consumer is not in ACTIVE status."), Status.FAILED, "wait until the consumer"),
        (broken_off("ResourceInUseException", "taken over"), Status.UNKNOWN, "stop the other reader"),
        (refused("ResourceNotFoundException"), Status.FAILED, "deploy again"),
        (refused("ExpiredTokenException"), Status.FAILED, "renew the credentials"),
        (refused("KMSDisabledException"), Status.FAILED, "enable the key"),
        (refused("InvalidArgumentException"), Status.FAILED, "correct the request to kinesis:SubscribeToShard"),
        (RuntimeError("huh"), Status.FAILED, "none: this is a bug"),
    ],
)  # fmt: skip
def test_refusal_has_its_fix(error: Exception, status: Status, fix: str) -> None:
    found = _findings(_subscribed("http2", error, events=0), _subscribed("http1"))[0]
    assert (found.status, found.fix[: len(fix)]) == (status, fix)


def test_take_over_after_events_passes() -> None:
    taken = _subscribed("http2", broken_off("ResourceInUseException", "taken over"))
    found = _findings(taken, _subscribed("http1", ConnectionResetError()))
    assert [each.status for each in found] == [Status.PASSED, Status.UNKNOWN]
    assert found[0].detail.endswith("3 events in 10.0 s, until another reader took the shard over")
