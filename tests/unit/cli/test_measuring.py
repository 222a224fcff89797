"""What `doctor --subscribe` prints of a measurement: the same as JSON and as a table."""

from __future__ import annotations

import io

from rich.console import Console

from kinesis_efo.errors import UsageError
from kinesis_efo.http2.response import HttpFacts
from kinesis_efo.manifest import StreamRef
from kinesis_efo_tools.cli.measuring import data, view
from kinesis_efo_tools.cli.measuring_options import Measuring, measuring
from kinesis_efo_tools.operate.measurement import Measurement, SubscriptionResult
from tests.support.messages import raises

CONSUMER = "arn:aws:kinesis:eu-west-1:111122223333:stream/prod-orders/consumer/lake:1700000000"
FOUND = Measurement(
    StreamRef("orders", "prod-orders", CONSUMER.partition("/consumer/")[0], CONSUMER),
    "shardId-000000000000",
    "https://kinesis.eu-west-1.amazonaws.com",
    (
        SubscriptionResult(
            "http2",
            HttpFacts("HTTP/2", most_streams=128, initial_window=65_535, largest_frame=16_384, tls="TLSv1.3"),
            answered_after=0.0412,
            first_event_after=0.3104,
            read_for=10.0,
            events=12,
            records=3_400,
            bytes=5_000_000,
            largest_event=1_048_576,
        ),
        SubscriptionResult(
            "http1", HttpFacts("HTTP/1.1"), answered_after=0.05, error=TimeoutError("no event for 12 s")
        ),
    ),
)


def test_data_has_both_transports() -> None:
    shown = data(FOUND)
    http2, http1 = shown.pop("transports")
    assert shown == {
        "stream": "orders",
        "consumerArn": CONSUMER,
        "shardId": "shardId-000000000000",
        "endpoint": "https://kinesis.eu-west-1.amazonaws.com",
    }
    assert http2 == {
        "transport": "http2",
        "httpVersion": "HTTP/2",
        "tls": "TLSv1.3",
        "streamsPerConnection": 128,
        "initialWindowBytes": 65_535,
        "largestFrameBytes": 16_384,
        "headerListBytes": None,
        "answeredAfterMs": 41.2,
        "firstEventAfterMs": 310.4,
        "readForMs": 10_000.0,
        "events": 12,
        "records": 3_400,
        "bytes": 5_000_000,
        "largestEventBytes": 1_048_576,
        "error": None,
    }
    assert (http1["httpVersion"], http1["tls"], http1["firstEventAfterMs"]) == ("HTTP/1.1", None, None)
    assert http1["error"] == "TimeoutError: no event for 12 s"


def test_the_table_has_a_column_for_each_transport() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(view(FOUND))
    title, _, *rows = (line.strip() for line in out.getvalue().splitlines() if not line.startswith("─"))
    assert title == "shardId-000000000000 of orders, at https://kinesis.eu-west-1.amazonaws.com"
    assert {" ".join(row.split()) for row in rows} >= {
        "HTTP version HTTP/2 HTTP/1.1",
        "TLS version TLSv1.3 none",
        "streams per connection 128 -",
        "most headers of requests, bytes not said -",
        "answered after, ms 41 50",
        "first event after, ms 310 -",
        "bytes of the largest event 1,048,576 0",
    }


def test_measuring_needs_its_option() -> None:
    said = {"duration": "2s", "take_over": False, "lease_timeout": "1m"}
    assert measuring(subscribe=False, **said) is None  # type: ignore[arg-type]
    assert measuring(subscribe=True, **said) == Measuring(2.0, False, 60.0)  # type: ignore[arg-type]
    with raises(UsageError, "--take-over goes with --subscribe: give both"):
        measuring(subscribe=False, take_over=True)
    with raises(UsageError, "--for must be a duration such as 10s; got 'soon'"):
        measuring(subscribe=True, duration="soon")
