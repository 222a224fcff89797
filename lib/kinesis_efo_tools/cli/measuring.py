"""``kinesis-efo doctor --subscribe``: protects live readers of the consumer, measures subscriptions, and formats the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rich.console import Group, RenderableType

from kinesis_efo.aws_errors import CALL_ERRORS, describe
from kinesis_efo.clock import Clock
from kinesis_efo.errors import LeaseError, UsageError
from kinesis_efo.http2.response import HttpFacts
from kinesis_efo.leases.owner import readable
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.cli.findings import Details
from kinesis_efo_tools.cli.measuring_options import Measuring
from kinesis_efo_tools.cli.status_line import StatusLine
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.findings import CheckFailed, Finding, failed_call
from kinesis_efo_tools.operate.lease_checkup import live_readers
from kinesis_efo_tools.operate.measurement import TRANSPORTS, Measurement, SubscriptionResult
from kinesis_efo_tools.operate.subscribing import measured, over_aws


async def refuse_live_readers(
    access: Access, manifest: Manifest, ref: StreamRef, wanted: Measuring, clock: Clock
) -> None:
    """Reject a measurement while a live run reads with the consumer: subscribing would disconnect that run.

    Raises UsageError if the stream has no consumer, CommandExit with `ExitCode.REFUSED` if such a run is or may be alive.
    """
    if ref.polled:
        raise UsageError(f"stream {ref.name} has no consumer to subscribe: --subscribe goes without it")
    if wanted.take_over:
        output.remark(f"a reader of {ref.name} with {ref.consumer_arn} is disconnected for some seconds: --take-over")
        return

    def waiting() -> None:
        output.remark(f"watching {manifest.lease_table} for up to {wanted.lease_timeout:g} s: is an owner alive?")

    try:
        readers = await live_readers(access, manifest, ref.name, wanted.lease_timeout, clock, waiting)
    except LeaseError as error:
        raise _refused(f"whether a run reads {ref.name} is not known: {error}") from error
    if readers:
        who = "; ".join(f"{readable(owner)} renews {', '.join(keys[:3])}" for owner, keys in readers.items())
        raise _refused(
            f"{ref.name} is being read: {who}. A subscription with its consumer would disconnect it. Stop that query first"
        )


def _refused(why: str) -> CommandExit:
    return CommandExit(output.ExitCode.REFUSED, f"{why}. Nothing was subscribed; --take-over does it anyway")


async def measure(
    access: Access, ref: StreamRef, wanted: Measuring, clock: Clock
) -> tuple[list[Finding], Details | None]:
    """Subscribe over each transport, and measure the subscriptions.

    Returns the outcomes to report, and the details to print below them. The details are None if no shard could be found.
    """
    status = StatusLine()
    subject = f"subscribing to {ref.name}"
    try:
        found = await measured(access, ref, over_aws(access), wanted.seconds, clock, tell=status.show)
    except CheckFailed as outcome:
        return [Finding(subject, outcome.status, outcome.detail, outcome.fix)], None
    except CALL_ERRORS as error:
        return [failed_call(subject, error, "kinesis:ListShards")], None
    finally:
        status.clear()
    return found.findings(), Details({"subscription": data(found)}, view(found))


def data(found: Measurement) -> dict[str, Any]:
    """Convert a measurement to plain data, for JSON."""
    return {
        "stream": found.stream.name,
        "consumerArn": found.stream.consumer_arn,
        "shardId": found.shard,
        "endpoint": found.endpoint,
        "transports": [_transport(each) for each in found.subscriptions],
    }


def _transport(found: SubscriptionResult) -> dict[str, Any]:
    http = found.http
    return {
        "transport": found.transport,
        "httpVersion": http and http.version,
        "tls": http and http.tls,
        "streamsPerConnection": http and http.most_streams,
        "initialWindowBytes": http and http.initial_window,
        "largestFrameBytes": http and http.largest_frame,
        "headerListBytes": http and http.header_list,
        "answeredAfterMs": _milliseconds(found.answered_after),
        "firstEventAfterMs": _milliseconds(found.first_event_after),
        "readForMs": _milliseconds(found.read_for),
        "events": found.events,
        "records": found.records,
        "bytes": found.bytes,
        "largestEventBytes": found.largest_event,
        "error": None if found.error is None else describe(found.error),
    }


def view(found: Measurement) -> RenderableType:
    """Format a measurement as a table, with a column for each transport."""
    table = output.table(
        ("", *(f">{TRANSPORTS[each.transport]}" for each in found.subscriptions)),
        [(title, *map(cell, found.subscriptions)) for title, cell in _ROWS],
    )
    # Print the title separately: rich wraps a table's title at the width of the table.
    return Group(output.text(f"{found.shard} of {found.stream.name}, at {found.endpoint}", "bold"), table)


def _offered(take: Callable[[HttpFacts], int | None]) -> Callable[[SubscriptionResult], str | None]:
    """Return a function that formats an HTTP/2 limit for the table, or returns None for HTTP/1.1. `take` extracts the limit."""

    def cell(found: SubscriptionResult) -> str | None:
        if found.http is None or found.http.version != "HTTP/2":
            return None
        value = take(found.http)
        return "not said" if value is None else f"{value:,}"

    return cell


_ROWS: Final[tuple[tuple[str, Callable[[SubscriptionResult], str | None]], ...]] = (
    ("HTTP version", lambda found: None if found.http is None else found.http.version),
    ("TLS version", lambda found: None if found.http is None else found.http.tls or "none"),
    ("streams per connection", _offered(lambda http: http.most_streams)),
    ("initial window for requests, bytes", _offered(lambda http: http.initial_window)),
    ("largest frame of requests, bytes", _offered(lambda http: http.largest_frame)),
    ("most headers of requests, bytes", _offered(lambda http: http.header_list)),
    ("answered after, ms", lambda found: _shown(found.answered_after)),
    ("first event after, ms", lambda found: _shown(found.first_event_after)),
    ("read for, ms", lambda found: None if found.http is None else _shown(found.read_for)),
    ("events", lambda found: f"{found.events:,}"),
    ("records", lambda found: f"{found.records:,}"),
    ("bytes of events", lambda found: f"{found.bytes:,}"),
    ("bytes of the largest event", lambda found: f"{found.largest_event:,}"),
)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _shown(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:,.0f}"
