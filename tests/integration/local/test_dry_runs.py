"""`DryRun` of the five calls that have it, as AWS documents it: everything is checked, nothing happens, one a second."""

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo_local import LocalAws
from tests.support.answers import FixedClock
from tests.support.raw_kinesis import RawKinesis
from tests.support.world import stored_records

SUCCEEDS = "DryRunOperationException"
THROTTLED = "ThrottlingException"


class Stream:
    """A stream with two shards and a consumer, and the five calls as dry runs."""

    def __init__(self, aws: LocalAws, clock: FixedClock, name: str = "orders") -> None:
        self.aws, self.clock, self.name = aws, clock, name
        self.kinesis = kinesis = RawKinesis(aws)
        kinesis.create_stream(StreamName=name, ShardCount=2)
        arn = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
        self.consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="lake")["Consumer"]["ConsumerARN"]
        self.shard = kinesis.list_shards(StreamName=name)["Shards"][0]["ShardId"]
        position = {"ShardId": self.shard, "StartingPosition": {"Type": "LATEST"}}
        self.given: dict[str, dict[str, Any]] = {
            "PutRecord": {"StreamName": name, "Data": b"x", "PartitionKey": "k"},
            "PutRecords": {"StreamName": name, "Records": [{"Data": b"x", "PartitionKey": "k"}] * 3},
            "GetShardIterator": {"StreamName": name, "ShardId": self.shard, "ShardIteratorType": "TRIM_HORIZON"},
            "SubscribeToShard": {"ConsumerARN": self.consumer, **position},
        }
        self.given["GetRecords"] = {"ShardIterator": self.call("GetShardIterator", DryRun=False)["ShardIterator"]}

    def call(self, operation: str, **other: Any) -> Any:
        return self.kinesis.call(operation, {**self.given[operation], "DryRun": True, **other})

    def outcome(self, call: str, **other: Any) -> str:
        with pytest.raises(ClientError) as refused:
            self.call(call, **other)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        return str(refused.value.response["Error"]["Code"])


CALLS = ("PutRecord", "PutRecords", "GetRecords", "GetShardIterator", "SubscribeToShard")


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(time.time())


@pytest.fixture
def stream(run: Any, clock: FixedClock) -> Stream:
    aws = run(clock=clock, consumer_creating_seconds=0.0, subscribe_interval_seconds=0.0, read_limit=False).aws
    return Stream(aws, clock)


@pytest.mark.parametrize("call", CALLS)
def test_dry_run_of_a_good_call_changes_nothing(stream: Stream, call: str) -> None:
    assert stream.outcome(call) == SUCCEEDS
    assert not stream.aws.kinesis.subscriptions
    assert stored_records(stream.kinesis, "orders") == []


@pytest.mark.parametrize(
    ("call", "wrong", "code"),
    [
        ("PutRecord", {"StreamName": "nope"}, "ResourceNotFoundException"),
        ("PutRecord", {"ExplicitHashKey": "x"}, "ValidationException"),
        ("PutRecords", {"StreamName": "nope"}, "ResourceNotFoundException"),
        ("PutRecords", {"Records": [{"Data": b"x", "PartitionKey": "k" * 257}]}, "ValidationException"),
        ("GetRecords", {"ShardIterator": "nope"}, "InvalidArgumentException"),
        ("GetShardIterator", {"ShardId": "shardId-000000000009"}, "ResourceNotFoundException"),
        ("GetShardIterator", {"ShardIteratorType": "AT_SEQUENCE_NUMBER"}, "InvalidArgumentException"),
        ("SubscribeToShard", {"ShardId": "shardId-000000000009"}, "ResourceNotFoundException"),
    ],
)
def test_dry_run_of_a_bad_call_has_its_error(stream: Stream, call: str, wrong: dict[str, Any], code: str) -> None:
    assert stream.outcome(call, **wrong) == code
    assert stream.outcome(call) == SUCCEEDS


def test_each_stream_allows_one_dry_run_a_second(stream: Stream, clock: FixedClock) -> None:
    other = Stream(stream.aws, clock, "clicks")
    assert stream.outcome("PutRecord") == SUCCEEDS
    for call in CALLS:
        assert stream.outcome(call) == THROTTLED
    assert other.outcome("GetRecords") == SUCCEEDS, "a stream of its own"
    stream.call("PutRecord", DryRun=False)
    for call in CALLS:
        clock.pass_by(1.0)
        assert stream.outcome(call) == SUCCEEDS
        assert stream.outcome("PutRecord") == THROTTLED
