"""A data directory: what one local AWS leaves to the next."""

from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_local import DataError, LocalAws, Settings
from kinesis_efo_local.data_directory import DataDirectory
from tests.support.world import wait_until

from .conftest import summary
from .test_protecting import KEY, policy

QUICK = Settings(consumer_creating_seconds=0, resubscribe_seconds=0, subscribe_interval_seconds=0)


def read(kinesis: Any, shard: str, **position: str) -> list[tuple[str, bytes]]:
    """Sequence numbers and data from a position to the tip."""
    iterator = kinesis.get_shard_iterator(StreamName="orders", ShardId=shard, **position)["ShardIterator"]
    records = kinesis.get_records(ShardIterator=iterator)["Records"]
    return [(record["SequenceNumber"], record["Data"]) for record in records]


def put(kinesis: Any, *data: bytes) -> list[str]:
    return [kinesis.put_record(StreamName="orders", PartitionKey="k", Data=each)["SequenceNumber"] for each in data]


def test_streams_consumers_and_tables_are_there_again(tmp_path: Path) -> None:
    item = {"leaseKey": {"S": "a"}, "other": {"S": "b"}, "raw": {"B": b"\x00\xff"}, "deep": {"M": {"n": {"N": "1.5"}}}}
    with LocalAws(settings=QUICK, data_dir=tmp_path) as aws:
        kinesis, dynamodb = aws.client("kinesis"), aws.client("dynamodb")
        kinesis.create_stream(StreamName="orders", ShardCount=1, Tags={"team": "lake"})
        arn = summary(kinesis)["StreamARN"]
        consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="lake")["Consumer"]["ConsumerARN"]
        before = put(kinesis, b"one", b"two")
        parent = kinesis.list_shards(StreamName="orders")["Shards"][0]["ShardId"]
        kinesis.split_shard(StreamName="orders", ShardToSplit=parent, NewStartingHashKey=str(2**127))
        third = kinesis.put_record(StreamName="orders", PartitionKey="k", Data=b"three")
        shards = kinesis.list_shards(StreamName="orders")["Shards"]
        kinesis.start_stream_encryption(StreamName="orders", EncryptionType="KMS", KeyId=KEY)
        kinesis.enable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["IncomingBytes"])
        for each in (arn, consumer):
            kinesis.put_resource_policy(ResourceARN=each, Policy=policy(each))
        dynamodb.create_table(
            TableName="leases",
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("leaseKey", "other")],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "by-other",
                    "KeySchema": [{"AttributeName": "other", "KeyType": "HASH"}],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        dynamodb.put_item(TableName="leases", Item=item)
    with LocalAws(settings=QUICK, data_dir=tmp_path) as aws:
        kinesis = aws.client("kinesis")
        assert kinesis.list_shards(StreamName="orders")["Shards"] == shards
        assert read(kinesis, parent, ShardIteratorType="TRIM_HORIZON") == list(
            zip(before, (b"one", b"two"), strict=True)
        )
        newer = put(kinesis, b"four")
        assert int(newer[0]) > int(third["SequenceNumber"]) > int(before[-1])
        position = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": third["SequenceNumber"]}
        assert read(kinesis, third["ShardId"], **position) == [(newer[0], b"four")]
        # The parent still names its children, so that a reader finds its way.
        answer = kinesis.subscribe_to_shard(
            ConsumerARN=consumer, ShardId=parent, StartingPosition={"Type": "TRIM_HORIZON"}
        )
        events = [event["SubscribeToShardEvent"] for event in answer["EventStream"] if "SubscribeToShardEvent" in event]
        assert len(events[-1]["ChildShards"]) == 2
        assert kinesis.list_tags_for_stream(StreamName="orders")["Tags"] == [{"Key": "team", "Value": "lake"}]
        found = summary(kinesis)
        assert (found["KeyId"], found["EnhancedMonitoring"]) == (KEY, [{"ShardLevelMetrics": ["IncomingBytes"]}])
        for each in (arn, consumer):
            assert kinesis.get_resource_policy(ResourceARN=each)["Policy"] == policy(each)
    # Where nobody asked moto for anything, its tables are kept all the same.
    with LocalAws(settings=QUICK, data_dir=tmp_path) as aws:
        dynamodb = aws.client("dynamodb")
        assert dynamodb.get_item(TableName="leases", Key={"leaseKey": {"S": "a"}})["Item"] == item
        found = dynamodb.query(
            TableName="leases",
            IndexName="by-other",
            KeyConditionExpression="other = :b",
            ExpressionAttributeValues={":b": {"S": "b"}},
        )
        assert found["Count"] == 1


def test_pending_changes_are_stored_as_done(tmp_path: Path) -> None:
    slow = Settings(stream_creating_seconds=30)
    with LocalAws(settings=slow, data_dir=tmp_path) as aws:
        aws.client("kinesis").create_stream(StreamName="orders", ShardCount=2)
    with LocalAws(settings=slow, data_dir=tmp_path) as aws:
        found = summary(aws.client("kinesis"))
        assert (found["StreamStatus"], found["OpenShardCount"]) == ("ACTIVE", 2)


def test_a_directory_belongs_to_one_at_a_time(tmp_path: Path) -> None:
    with LocalAws(data_dir=tmp_path), pytest.raises(DataError, match=f"{tmp_path}: another local AWS uses it"):
        LocalAws(data_dir=tmp_path).start()
    with LocalAws(data_dir=tmp_path):
        pass


def test_unusable_directory_is_named_at_the_start(tmp_path: Path) -> None:
    with LocalAws(data_dir=tmp_path):
        pass
    with pytest.raises(DataError, match="has streams of account 123456789012, not of 111122223333"):
        LocalAws(settings=Settings(account_id="111122223333"), data_dir=tmp_path).start()
    (tmp_path / "tables.msgpack").write_bytes(b"garbage")
    with pytest.raises(DataError, match=r"tables\.msgpack cannot be read: .*; take another directory"):
        LocalAws(data_dir=tmp_path).start()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be used: "):
        LocalAws(data_dir=tmp_path / "file").start()


def test_unwritable_directory_is_named_at_the_end(tmp_path: Path) -> None:
    aws = LocalAws(data_dir=tmp_path).start()
    (tmp_path / ".kinesis.msgpack").mkdir()
    with pytest.raises(DataError, match="could not be written, so it is as it was before: "):
        aws.stop()
    (tmp_path / ".kinesis.msgpack").rmdir()
    aws.start()
    wait_until(lambda: aws.client("kinesis").list_streams()["StreamNames"] == [])
    aws.stop()


@pytest.mark.parametrize(
    "name", ["", "lock", "kinesis.msgpack", ".kinesis.msgpack", "tables.msgpack", ".tables.msgpack"]
)
def test_links_are_not_followed(name: str, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    link = tmp_path / "data"
    if name:
        link.mkdir()
        target.write_text("precious")
        link /= name
    else:
        target.mkdir()
    link.symlink_to(target)
    with pytest.raises(DataError, match="is a link, which is not followed"):
        DataDirectory(tmp_path / "data").open()
    assert target.read_text() == "precious" if name else not list(target.iterdir())


def test_something_else_than_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tables.msgpack").mkdir()
    with pytest.raises(DataError, match=r"tables.msgpack cannot be read"):
        DataDirectory(tmp_path).tables()
