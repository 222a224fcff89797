"""What Terraform's provider sets on a stream, beyond its shards: encryption, resource policies and metrics of shards."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.world import stored_records, wait_until

from .conftest import Bench, refused, summary

Run = Callable[..., Bench]

KEY = "arn:aws:kms:us-east-1:123456789012:key/5f3c9f0e-0000-4000-8000-000000000000"


def policy(resource: str, **changes: Any) -> str:
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::777788889999:root"},
        "Action": "kinesis:SubscribeToShard",
        "Resource": resource,
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [{**statement, **changes}]})


def test_encryption_is_started_shown_and_stopped(run: Run) -> None:
    bench = run(reshard_seconds=0.2)
    bench.stream()
    kinesis = bench.client
    assert summary(kinesis)["EncryptionType"] == "NONE"
    assert "KeyId" not in summary(kinesis)
    encryption = {"StreamName": "orders", "EncryptionType": "KMS"}
    kinesis.start_stream_encryption(**encryption, KeyId="alias/aws/kinesis")
    assert summary(kinesis)["StreamStatus"] == "UPDATING"
    with refused("ResourceInUseException"):
        kinesis.start_stream_encryption(**encryption, KeyId=KEY)
    wait_until(lambda: summary(kinesis)["StreamStatus"] == "ACTIVE")
    assert (summary(kinesis)["EncryptionType"], summary(kinesis)["KeyId"]) == ("KMS", "alias/aws/kinesis")
    put = kinesis.put_record(StreamName="orders", PartitionKey="k", Data=b"x")
    (record,) = stored_records(kinesis, "orders")
    assert (put["EncryptionType"], record["EncryptionType"]) == ("KMS", "KMS")
    kinesis.stop_stream_encryption(**encryption, KeyId="alias/aws/kinesis")
    wait_until(lambda: summary(kinesis)["StreamStatus"] == "ACTIVE")
    assert summary(kinesis)["EncryptionType"] == "NONE"


def test_no_other_encryption_than_kms_can_be_started(bench: Bench) -> None:
    bench.stream()
    with refused(
        "InvalidArgumentException", "EncryptionType must be KMS, the only one there is to start or stop; got NONE"
    ):
        bench.client.start_stream_encryption(StreamName="orders", EncryptionType="NONE", KeyId=KEY)
    with refused("ResourceNotFoundException"):
        bench.client.start_stream_encryption(StreamName="nope", EncryptionType="KMS", KeyId=KEY)


def test_metrics_of_shards_are_added_and_removed(bench: Bench) -> None:
    bench.stream()
    kinesis = bench.client
    kinesis.enable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["OutgoingBytes", "IncomingBytes"])
    answer = kinesis.disable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["OutgoingBytes"])
    assert answer["CurrentShardLevelMetrics"] == ["IncomingBytes", "OutgoingBytes"]
    assert answer["DesiredShardLevelMetrics"] == ["IncomingBytes"]
    assert summary(kinesis)["EnhancedMonitoring"] == [{"ShardLevelMetrics": ["IncomingBytes"]}]
    every = kinesis.enable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["ALL"])
    assert len(every["DesiredShardLevelMetrics"]) == 7


def test_policy_is_put_shown_and_deleted(bench: Bench) -> None:
    stream = bench.stream()
    kinesis = bench.client
    for arn in (stream, bench.consumer(stream)):
        assert kinesis.get_resource_policy(ResourceARN=arn)["Policy"] == "{}"
        kinesis.put_resource_policy(ResourceARN=arn, Policy=policy(arn))
        assert json.loads(kinesis.get_resource_policy(ResourceARN=arn)["Policy"]) == json.loads(policy(arn))
        kinesis.delete_resource_policy(ResourceARN=arn)
        with refused("ResourceNotFoundException", arn):
            kinesis.delete_resource_policy(ResourceARN=arn)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "is not a JSON object"),
        ("{}", "has no Statement"),
        (policy("arn:aws:kinesis:us-east-1:123456789012:stream/orders", Principal=None), "without Principal"),
        (policy("*"), "for another Resource: *"),
        (policy("x" * 20_480), "it may have 20480"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(bench: Bench, text: str, says: str) -> None:
    arn = bench.stream()
    with refused("InvalidArgumentException", re.escape(says)):
        bench.client.put_resource_policy(ResourceARN=arn, Policy=text)
