"""Streams and consumers are created, change state with time, and are deleted; requests name them in every allowed way."""

from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo_local import AwsError, Settings

from .conftest import Bench, refused

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


def test_creating_stream_refuses_records() -> None:
    bench = Bench(stream_creating_seconds=10)
    stream = bench.create()
    with refused("ResourceInUse", "CREATING"):
        bench.put("a")
    with refused("ResourceInUse", "not ACTIVE or UPDATING, instead in state CREATING"):
        bench.call("ListShards", StreamName="orders")
    bench.clock.pass_by(10)
    bench.kinesis.settle()
    assert stream.status == "ACTIVE"
    assert len(bench.call("ListShards", StreamName="orders")["Shards"]) == 1
    assert bench.put("a")["FailedRecordCount"] == 0


@pytest.mark.parametrize(
    ("region", "partition"), [("eusc-de-east-1", "aws-eusc"), ("cn-north-1", "aws-cn"), ("us-iso-east-1", "aws-iso")]
)
def test_arns_are_of_the_partition_of_the_region(region: str, partition: str) -> None:
    assert Bench(region=region).create().arn == f"arn:{partition}:kinesis:{region}:123456789012:stream/orders"


def test_limits_of_the_account_are_enforced() -> None:
    creating = Bench(stream_creating_seconds=10)
    for index in range(5):
        creating.create(name=f"s{index}")
    with refused("ResourceInUse", "s0 .* already exists"):
        creating.create(name="s0")
    with refused("LimitExceeded", "CREATING"):
        creating.create(name="s5")
    bench = Bench(max_shards=3)
    bench.create(2)
    with refused("LimitExceeded", "Current shard count for the account: 2. Limit: 3"):
        bench.create(2, name="more")
    with refused("LimitExceeded", "Limit: 3"):
        bench.call("UpdateShardCount", StreamName="orders", TargetShardCount=4)


def test_stream_is_found_by_name_and_arn(bench: Bench) -> None:
    bench.create()
    for given in ({"StreamName": "orders"}, {"StreamARN": ARN}, {"StreamName": "orders", "StreamARN": ARN}):
        assert bench.call("DescribeStreamSummary", **given)["StreamDescriptionSummary"]["StreamARN"] == ARN


@pytest.mark.parametrize(
    ("params", "code", "message"),
    [
        ({}, "InvalidArgument", "Either StreamName or StreamARN"),
        ({"StreamName": "nope"}, "ResourceNotFound", "nope"),
        ({"StreamName": "nope", "StreamARN": ARN}, "InvalidArgument", "does not match"),
        ({"StreamARN": ARN.replace("us-east-1", "eu-west-1")}, "ResourceNotFound", "eu-west-1"),
        ({"StreamARN": ARN.replace("123456789012", "999999999999")}, "ResourceNotFound", "999999999999"),
        ({"StreamARN": "arn:aws:s3:::orders"}, "InvalidArgument", "not the ARN of a stream"),
        ({"StreamARN": "orders"}, "InvalidArgument", "not the ARN of a stream"),
    ],
)
def test_wrong_stream_is_named(bench: Bench, params: dict[str, str], code: str, message: str) -> None:
    bench.create()
    with refused(code, message):
        bench.call("DescribeStreamSummary", **params)


def test_wrong_consumer_is_named(bench: Bench) -> None:
    bench.create()
    consumer = bench.register()
    for given, said in (
        *(({"ConsumerARN": arn}, "not the ARN of a stream consumer") for arn in ("x", ARN, f"{ARN}/consumer")),
        ({"ConsumerARN": consumer.arn, "ConsumerName": "other"}, "does not match"),
        ({"ConsumerName": "lake"}, "Either ConsumerARN"),
    ):
        with refused("InvalidArgument", said):
            bench.call("DescribeStreamConsumer", **given)


def test_stream_with_consumers_is_deleted_by_force(bench: Bench) -> None:
    bench.create()
    bench.register()
    with refused("ResourceInUse", "EnforceConsumerDeletion"):
        bench.call("DeleteStream", StreamName="orders")
    bench.call("DeleteStream", StreamName="orders", EnforceConsumerDeletion=True)
    assert bench.kinesis.streams == {}


def test_streams_are_listed_in_pages(bench: Bench) -> None:
    for name in ("c", "a", "b"):
        bench.create(name=name)
    page = bench.call("ListStreams", Limit=2)
    assert (page["StreamNames"], page["HasMoreStreams"]) == (["a", "b"], True)
    assert bench.call("ListStreams", NextToken=page["NextToken"])["StreamNames"] == ["c"]
    assert bench.call("ListStreams", ExclusiveStartStreamName="b")["StreamNames"] == ["c"]
    with refused("InvalidArgument", "NextToken"):
        bench.call("ListStreams", NextToken="nonsense")


def test_consumer_passes_through_its_states() -> None:
    bench = Bench(consumer_creating_seconds=3, consumer_deleting_seconds=4)
    bench.create()
    consumer = bench.register()
    assert consumer.arn.startswith(f"{ARN}/consumer/lake:")
    seen = []
    for seconds in (0, 3, 0):
        bench.clock.pass_by(seconds)
        described = bench.call("DescribeStreamConsumer", ConsumerARN=consumer.arn)["ConsumerDescription"]
        seen.append(described["ConsumerStatus"])
    assert seen == ["CREATING", "ACTIVE", "ACTIVE"]
    bench.call("DeregisterStreamConsumer", StreamARN=ARN, ConsumerName="lake")
    assert bench.call("ListStreamConsumers", StreamARN=ARN)["Consumers"][0]["ConsumerStatus"] == "DELETING"
    bench.clock.pass_by(4)
    assert bench.call("ListStreamConsumers", StreamARN=ARN)["Consumers"] == []
    # Registered again, it has another ARN.
    assert bench.register().arn != consumer.arn
    with refused("ResourceNotFound", consumer.arn.rpartition(":")[2]):
        bench.call("DescribeStreamConsumer", ConsumerARN=consumer.arn)


def test_stream_has_20_consumers_and_five_creating() -> None:
    bench = Bench(consumer_creating_seconds=1)
    bench.create()
    for index in range(20):
        if index and index % 5 == 0:
            with refused("LimitExceeded", "CREATING"):
                bench.register(f"c{index}")
            bench.clock.pass_by(1)
        bench.register(f"c{index}")
    bench.clock.pass_by(1)
    with refused("LimitExceeded", "20 registered"):
        bench.register("c20")
    with refused("ResourceInUse", "c7 .* already exists"):
        bench.register("c7")
    page = bench.call("ListStreamConsumers", StreamARN=ARN, MaxResults=15)
    rest = bench.call("ListStreamConsumers", StreamARN=ARN, NextToken=page["NextToken"])
    assert len(page["Consumers"] + rest["Consumers"]) == 20


def test_subscribing_has_the_documented_pace() -> None:
    bench = Bench(consumer_creating_seconds=2)
    stream = bench.create(2)
    consumer, (shard, other) = bench.register(), stream.open_shards

    def admit(at: float, which: Any = shard) -> str:
        try:
            consumer.admit(which, at, 5.0, 1.0)
        except AwsError as error:
            return error.code
        consumer.open(SimpleNamespace(shard=which, fail=lambda _: None), at)
        return "ok"

    assert admit(0) == "ResourceInUseException"
    bench.clock.pass_by(2)
    bench.kinesis.settle()
    paced = [admit(at) for at in (10.0, 10.1, 14.9, 15.0)]
    assert paced == ["ok", "ResourceInUseException", "ResourceInUseException", "LimitExceededException"]
    assert admit(15.1, other) == "ok"
    assert admit(16.0) == "ok"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscription_seconds": -1}, "subscription_seconds must be more than 0; got -1"),
        ({"resubscribe_seconds": -0.5}, "resubscribe_seconds must be 0 or more; got -0.5"),
        ({"region": "moon-west-1"}, "setting region must be one of AWS, such as us-east-1; got 'moon-west-1'"),
    ],
)
def test_wrong_setting_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**given)
