"""Fault injection: clients see the faults that a test injects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import pytest
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import ClientError, EventStreamError
from urllib3.exceptions import ProtocolError

from kinesis_efo_local import AwsError, Close, Finish, NoFaults, Pause, Request, Reset
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


def run_with(run: Run, change: Callable[[bytes], Iterable[Any]]) -> tuple[list[str], BaseException | None]:
    return read(run(faults=Frames(change), max_event_records=2))


def test_frames_split_at_every_byte_and_joined_arrive(run: Run) -> None:
    assert run_with(run, lambda frame: [bytes([byte]) for byte in frame]) == (list("abcd"), None)


def test_a_wrong_checksum_is_seen(run: Run) -> None:
    seen, error = run_with(run, lambda frame: [frame[:-1] + bytes([frame[-1] ^ 1])])
    assert seen == ["a", "b"]
    assert isinstance(error, ChecksumMismatch)


def test_an_exception_in_the_stream_is_raised(run: Run) -> None:
    frame = exception_frame(AwsError("KMSDisabledException", "the key is off"))
    seen, error = run_with(run, lambda _: [frame, Finish()])
    assert seen == ["a", "b"]
    assert isinstance(error, EventStreamError)
    assert error.response["Error"] == {"Code": "KMSDisabledException", "Message": "the key is off"}


def test_a_pause_delays_the_stream(run: Run) -> None:
    start = time.monotonic()
    assert run_with(run, lambda frame: [Pause(0.5), frame]) == (list("abcd"), None)
    assert time.monotonic() - start > 0.5


def test_a_clean_end_has_no_error(run: Run) -> None:
    assert run_with(run, lambda _: [Finish()]) == (["a", "b"], None)


@pytest.mark.parametrize(("step", "half"), [(Reset(), False), (Reset(), True), (Close(), False), (Close(), True)])
def test_a_cut_connection_is_an_error(run: Run, step: Any, half: bool) -> None:
    bench = run(
        faults=Frames(lambda frame: [frame[: len(frame) // 2], Pause(0.05), step] if half else [step]),
        max_event_records=2,
    )
    consumer = bench.consumer(bench.stream())
    bench.put(*"abcd")

    async def go() -> tuple[bytes, BaseException | None]:
        body = {
            "ConsumerARN": consumer,
            "ShardId": "shardId-000000000000",
            "StartingPosition": {"Type": "TRIM_HORIZON"},
        }
        got = b""
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                bench.aws.endpoint_url, json=body, headers={"X-Amz-Target": "Kinesis_20131202.SubscribeToShard"}
            ) as answer,
        ):
            try:
                async for chunk in answer.content.iter_any():
                    got += chunk
            except aiohttp.ClientError as error:
                return got, error
        return got, None

    got, error = asyncio.run(go())
    assert b'"PartitionKey":"b"' in got
    assert b'"PartitionKey":"d"' not in got
    assert isinstance(error, aiohttp.ClientPayloadError)
    assert ("ConnectionResetError" in str(error)) == isinstance(step, Reset)
    assert bench.aws.kinesis.subscriptions == []


def test_any_operation_can_be_refused_or_delayed(run: Run) -> None:
    seen: list[Request] = []

    class Throttled(NoFaults):
        async def before(self, request: Request) -> None:
            seen.append(request)
            await asyncio.sleep(0.05)
            if request.operation in ("UpdateItem", "ListShards"):
                raise AwsError("ProvisionedThroughputExceededException", f"slow down, {request.service}")

    bench = run(faults=Throttled())
    bench.stream()
    from botocore.config import Config

    once = Config(retries={"total_max_attempts": 1})
    with pytest.raises(ClientError, match=r"ProvisionedThroughputExceeded.* slow down, kinesis"):
        bench.aws.client("kinesis", config=once).list_shards(StreamName="orders")
    with pytest.raises(ClientError, match=r"ProvisionedThroughputExceeded.* slow down, dynamodb"):
        bench.aws.client("dynamodb", config=once).update_item(TableName="t", Key={"a": {"S": "b"}})
    assert seen[-1] == Request("dynamodb", "UpdateItem", {"TableName": "t", "Key": {"a": {"S": "b"}}})
    assert bench.aws.kinesis.calls("ListShards", "ProvisionedThroughputExceededException") == 1
