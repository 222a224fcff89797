"""Fault injection: clients see the faults that a test injects."""

import json
import time
from collections.abc import Callable, Iterable
from http.client import IncompleteRead
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import EventStreamError
from urllib3.exceptions import ProtocolError

from kinesis_efo_local import AwsError, Close, Finish, Freeze, GoAway, NoFaults, Pause, Reset, ResetStream
from kinesis_efo_local.wire import exception_frame

from .conftest import Bench

Run = Callable[..., Bench]


class Frames(NoFaults):
    """Replaces the second event."""

    def __init__(self, change: Callable[[bytes], Iterable[Any]]) -> None:
        self.change = change

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Any]:
        return self.change(frame) if subscription.events == 1 else [frame]


def read(bench: Bench) -> tuple[list[str], BaseException | None]:
    """The keys that were read until the subscription ended, and the error that ended it."""
    consumer = bench.consumer(bench.stream())
    bench.put(*"abcd")
    seen: list[str] = []
    try:
        for event in bench.subscribe(consumer):
            seen += [record["PartitionKey"] for record in event["Records"]]
            if len(seen) == 4:
                break
    except (EventStreamError, ChecksumMismatch, ProtocolError, OSError) as error:
        return seen, error
    return seen, None


def test_changed_frames_arrive_as_they_are(run: Run) -> None:
    def result(change: Callable[[bytes], Iterable[Any]]) -> tuple[list[str], BaseException | None]:
        return read(run(faults=Frames(change), max_event_records=2))

    assert result(lambda frame: [bytes([byte]) for byte in frame]) == (list("abcd"), None)
    start = time.monotonic()
    assert result(lambda frame: [Pause(0.5), frame]) == (list("abcd"), None)
    assert time.monotonic() - start > 0.5
    assert result(lambda _: [Finish()]) == (["a", "b"], None)
    seen, error = result(lambda frame: [frame[:-1] + bytes([frame[-1] ^ 1])])
    assert (seen, type(error)) == (["a", "b"], ChecksumMismatch)
    frame = exception_frame(AwsError("KMSDisabledException", "the key is off"))
    seen, error = result(lambda _: [frame, Finish()])
    assert isinstance(error, EventStreamError)
    assert (seen, error.response["Error"]["Message"]) == (["a", "b"], "the key is off")
    assert error.response["Error"]["Code"] == "KMSDisabledException"


RESET, CUT = ConnectionResetError, IncompleteRead


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([Reset()], RESET), (["half", Reset()], RESET), ([Close()], CUT), (["half", Close()], CUT),
        # Those of HTTP/2 are their nearest kin.
        ([ResetStream(), "whole"], RESET), ([GoAway(grace=False), "whole"], CUT), ([GoAway(), "whole"], None),
        ([Freeze(0.1), "whole"], None),
    ],
)  # fmt: skip
def test_cut_connection_is_an_error(run: Run, steps: list[Any], error: type[Exception] | None) -> None:
    def change(frame: bytes) -> Iterable[Any]:
        for step in steps:
            yield from (
                [frame[: len(frame) // 2], Pause(0.05)] if step == "half" else [frame if step == "whole" else step]
            )

    bench = run(faults=Frames(change), max_event_records=2, subscription_seconds=1)
    consumer = bench.consumer(bench.stream())
    bench.put(*"abcd")
    position = {"Type": "TRIM_HORIZON"}
    body = {"ConsumerARN": consumer, "ShardId": "shardId-000000000000", "StartingPosition": position}
    headers = {"X-Amz-Target": "Kinesis_20131202.SubscribeToShard", "Content-Type": "application/x-amz-json-1.1"}
    got, seen = b"", None
    with urlopen(Request(bench.aws.endpoint_url, json.dumps(body).encode(), headers), timeout=30) as answer:
        try:
            while data := answer.read1():
                got += data
        except (RESET, CUT) as cut:
            seen = type(cut)
    assert b'"PartitionKey":"b"' in got
    assert (b'"PartitionKey":"d"' in got, seen) == (error is None, error)
    assert bench.aws.kinesis.subscriptions == []
