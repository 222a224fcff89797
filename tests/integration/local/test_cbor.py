"""A client that speaks CBOR to Kinesis, as the Java SDK does: `x-amz-cbor-1.1`, with times in milliseconds."""

import time
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import cbor2
import pytest
from botocore.eventstream import EventStreamBuffer

from tests.integration.local.conftest import Bench, ask

CBOR = "application/x-amz-cbor-1.1"
BYTES = bytes(range(256))
Run = Callable[..., Bench]


def post(bench: Bench, operation: str, body: bytes) -> tuple[int, Any, bytes]:
    return ask(bench.aws, {"Content-Type": CBOR, "X-Amz-Target": f"Kinesis_20131202.{operation}"}, body)


def call(bench: Bench, operation: str, **params: Any) -> Any:
    # Jackson, which the Java SDK uses, writes maps and lists without their lengths.
    status, headers, body = post(bench, operation, cbor2.dumps(params, indefinite_containers=True))
    assert (status, headers["Content-Type"]) == (200, CBOR)
    return decode(body) if body else None


def decode(body: bytes) -> Any:
    return cbor2.loads(body, semantic_decoders={1: lambda millis, _: ("millis", millis)})


def test_every_kind_of_value_goes_both_ways(bench: Bench) -> None:
    began = int(time.time() * 1000)
    assert call(bench, "CreateStream", StreamName="orders", ShardCount=1, Tags={"owner": "data"}) is None
    summary = call(bench, "DescribeStreamSummary", StreamName="orders")["StreamDescriptionSummary"]
    unit, created = summary["StreamCreationTimestamp"]
    assert unit == "millis"
    assert began <= created <= began + 60_000
    call(bench, "PutRecords", StreamName="orders", Records=[{"Data": BYTES, "PartitionKey": "schlüssel"}])
    call(bench, "PutRecord", StreamName="orders", Data=b"", PartitionKey="k")
    at = cbor2.CBORTag(1, began)
    (shard,) = call(bench, "ListShards", StreamName="orders", ShardFilter={"Type": "FROM_TIMESTAMP", "Timestamp": at})[
        "Shards"
    ]
    where = {"StreamName": "orders", "ShardId": shard["ShardId"]}
    iterator = call(bench, "GetShardIterator", **where, ShardIteratorType="AT_TIMESTAMP", Timestamp=at)["ShardIterator"]
    found = call(bench, "GetRecords", ShardIterator=iterator)
    assert [(each["Data"], each["PartitionKey"]) for each in found["Records"]] == [(BYTES, "schlüssel"), (b"", "k")]
    assert all(each["ApproximateArrivalTimestamp"] >= ("millis", created) for each in found["Records"])
    assert found["MillisBehindLatest"] == 0
    later = cbor2.CBORTag(1, began + 3_600_000)
    status, headers, body = post(
        bench, "GetShardIterator", cbor2.dumps({**where, "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": later})
    )
    assert (status, headers["x-amzn-ErrorType"], headers["Content-Type"]) == (400, "InvalidArgumentException", CBOR)
    error = cbor2.loads(body)
    assert error["__type"] == "InvalidArgumentException"
    assert error["message"].startswith(f"The timestamp {began / 1000 + 3600} is in the future")


@pytest.mark.parametrize("body", [b"{}", b"\xff", b"\x81"], ids=["JSON", "a lone break", "cut off"])
def test_what_is_no_cbor_is_refused_in_cbor(run: Run, body: bytes) -> None:
    status, headers, answer = post(run(), "ListStreams", body)
    assert (status, headers["Content-Type"]) == (400, CBOR)
    assert cbor2.loads(answer)["__type"] == "SerializationException"


def test_a_subscription_pushes_events_and_its_error_in_cbor(bench: Bench) -> None:
    arn = bench.consumer(bench.stream())
    bench.put("k", data=BYTES)
    position = {"Type": "AT_TIMESTAMP", "Timestamp": cbor2.CBORTag(1, int(time.time() * 1000) - 60_000)}
    wanted = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": position}
    headers = {"Content-Type": CBOR, "X-Amz-Target": "Kinesis_20131202.SubscribeToShard"}
    frames = EventStreamBuffer()
    with urlopen(Request(bench.aws.endpoint_url, cbor2.dumps(wanted), headers), timeout=30) as answer:
        while not (data := answer.read1()) or b"SubscribeToShardEvent" not in data:
            frames.add_data(data)
        frames.add_data(data)
        bench.client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
        frames.add_data(answer.read())
    began, first, *_, last = ((each.headers, decode(each.payload)) for each in frames)
    assert (began[0][":event-type"], began[1]) == ("initial-response", {})
    assert {began[0][":content-type"], first[0][":content-type"], last[0][":content-type"]} == {CBOR}
    assert first[0][":event-type"] == "SubscribeToShardEvent"
    (record,) = first[1]["Records"]
    assert (record["Data"], record["PartitionKey"]) == (BYTES, "k")
    assert last[0][":exception-type"] == "ResourceNotFoundException"
    assert last[1]["message"].startswith("Stream orders under account")
