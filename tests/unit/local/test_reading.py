"""Starting positions, shard iterators, and the filters of ListShards."""

from typing import Any

import msgspec
import pytest

from kinesis_efo_local import AwsError
from kinesis_efo_local.reading import cursor_for

from .conftest import Bench, refused

SHARD = "shardId-000000000000"


def cursor(bench: Bench, kind: str, number: str | None = None, at: float | None = None, shard: str = SHARD) -> int:
    stream = bench.kinesis.streams["orders"]
    position = {"Type": kind, "SequenceNumber": number, "Timestamp": at}
    return cursor_for(stream, stream.shard(shard), position, bench.clock.now)


def iterator(bench: Bench, kind: str = "TRIM_HORIZON", shard: str = SHARD, **more: Any) -> str:
    found = bench.call("GetShardIterator", StreamName="orders", ShardId=shard, ShardIteratorType=kind, **more)
    return str(found["ShardIterator"])


def get(bench: Bench, token: str, **more: Any) -> Any:
    return msgspec.json.decode(bench.call("GetRecords", ShardIterator=token, **more))


def test_starting_positions_are_as_documented(bench: Bench) -> None:
    stream = bench.create()
    numbers = []
    start = bench.clock.now
    for key in "abcd":
        numbers += [record["SequenceNumber"] for record in bench.put(key)["Records"]]
        bench.clock.pass_by(10)
    shard = stream.open_shards[0]
    assert cursor(bench, "TRIM_HORIZON") == 0
    assert cursor(bench, "LATEST") == 4
    assert [cursor(bench, "AT_SEQUENCE_NUMBER", number) for number in numbers] == [0, 1, 2, 3]
    assert [cursor(bench, "AFTER_SEQUENCE_NUMBER", number) for number in numbers] == [1, 2, 3, 4]
    times = [cursor(bench, "AT_TIMESTAMP", at=start + after) for after in (-99, 0, 0.001, 10, 30, 39)]
    assert times == [0, 0, 1, 1, 3, 4]
    for between in (shard.page(0, 2, 10**6).continuation, str(int(numbers[1]) + (5 << 80))):
        assert cursor(bench, "AT_SEQUENCE_NUMBER", between) == cursor(bench, "AFTER_SEQUENCE_NUMBER", between) == 2


def test_trimmed_number_starts_at_the_trim_horizon() -> None:
    bench = Bench(retention_seconds=60)
    bench.create()
    first = bench.put("a")["Records"][0]["SequenceNumber"]
    bench.clock.pass_by(61)
    bench.put("b")
    bench.kinesis.stream({"StreamName": "orders"})
    assert cursor(bench, "AFTER_SEQUENCE_NUMBER", first) == cursor(bench, "TRIM_HORIZON") == 1


def test_wrong_positions_are_refused(bench: Bench) -> None:
    bench.create(2)
    old = bench.put("a")["Records"][0]["SequenceNumber"]
    foreign = "did not come from this stream"
    cases: list[tuple[str, str | None, float | None, str]] = [
        ("AT_SEQUENCE_NUMBER", None, None, "sequence number"),
        ("AT_TIMESTAMP", None, None, "timestamp"),
        ("AT_TIMESTAMP", None, bench.clock.now + 100, "in the future"),
        *(("AT_SEQUENCE_NUMBER", wrong, None, foreign) for wrong in ("0", "x", "", "4" * 56, "9" * 129)),
        ("AFTER_SEQUENCE_NUMBER", str(int(old) + (10**16 << 80)), None, foreign),
    ]
    for kind, number, at, said in cases:
        with refused("InvalidArgument", said):
            cursor(bench, kind, number, at)
    with refused("InvalidArgument", "encodes shardId-000000000000.* shardId-000000000001"):
        cursor(bench, "AFTER_SEQUENCE_NUMBER", old, shard="shardId-000000000001")
    bench.call("DeleteStream", StreamName="orders")
    bench.create(2)
    with refused("InvalidArgument", foreign):
        cursor(bench, "AFTER_SEQUENCE_NUMBER", old)


def test_get_records_has_its_limit_of_bytes(bench: Bench) -> None:
    bench.create()
    token = iterator(bench)
    for _ in range(3):
        bench.put(*"abcde", data=b"x" * 1_000_000)
    assert len(get(bench, token)["Records"]) == 10
    bench.clock.pass_by(3)
    with refused("ProvisionedThroughputExceeded", SHARD):
        get(bench, token)
    bench.clock.pass_by(3)
    assert get(bench, token)["Records"]


def test_foreign_iterators_are_refused(bench: Bench) -> None:
    bench.create()
    token = iterator(bench)
    for wrong in (token[:-8] + "AAAAAAAA", "x", "é", ""):
        with refused("InvalidArgument", "ShardIterator"):
            get(bench, wrong)
    bench.call("DeleteStream", StreamName="orders")
    bench.clock.pass_by(1)
    bench.create()
    with refused("InvalidArgument", "earlier stream"):
        get(bench, token)


def shards(bench: Bench, **params: Any) -> str:
    """Last digits of the listed shards."""
    return "".join(shard["ShardId"][-1] for shard in bench.call("ListShards", StreamName="orders", **params)["Shards"])


def test_shard_filters_are_as_documented() -> None:
    bench = Bench(retention_seconds=1000)
    bench.create(1)
    start = bench.clock.now
    bench.clock.pass_by(100)
    bench.call("SplitShard", StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    bench.clock.pass_by(100)
    left, right = (f"shardId-00000000000{number}" for number in (1, 2))
    bench.call("MergeShards", StreamName="orders", ShardToMerge=left, AdjacentShardToMerge=right)
    bench.clock.pass_by(100)

    def by(kind: str, **more: Any) -> str:
        return shards(bench, ShardFilter={"Type": kind, **more})

    assert shards(bench) == by("FROM_TRIM_HORIZON") == "0123"
    assert by("AT_LATEST") == "3"
    assert by("AT_TRIM_HORIZON") == "0"
    assert [by("AT_TIMESTAMP", Timestamp=start + at) for at in (-5, 50, 150, 250)] == ["0", "0", "12", "3"]
    assert [by("FROM_TIMESTAMP", Timestamp=start + at) for at in (-5, 50, 150, 250)] == ["0123", "0123", "123", "3"]
    assert by("AFTER_SHARD_ID", ShardId="shardId-000000000001") == "23"
    assert shards(bench, ExclusiveStartShardId="shardId-000000000002") == "3"
    bench.clock.pass_by(850)
    assert by("AT_TRIM_HORIZON") == by("AT_TIMESTAMP", Timestamp=start) == "12"
    for kind in ("AFTER_SHARD_ID", "AT_TIMESTAMP", "FROM_TIMESTAMP"):
        with refused("InvalidArgument", f"{kind} needs"):
            by(kind)
    with refused("InvalidArgument", "future"):
        by("AT_TIMESTAMP", Timestamp=bench.clock.now + 100)


def test_shards_are_listed_in_pages_that_expire(bench: Bench) -> None:
    bench.create(5)
    page, found = bench.call("ListShards", StreamName="orders", MaxResults=2), []
    first = page["NextToken"]
    while True:
        found += [shard["ShardId"][-1] for shard in page["Shards"]]
        if "NextToken" not in page:
            break
        page = bench.call("ListShards", NextToken=page["NextToken"], MaxResults=2)
    assert found == list("01234")
    with refused("InvalidArgument", "StreamName cannot be provided together"):
        bench.call("ListShards", NextToken=first, StreamName="orders")
    with refused("InvalidArgument", "NextToken and ShardFilter cannot be provided together"):
        bench.call("ListShards", NextToken=first, ShardFilter={"Type": "AT_LATEST"})
    with refused("InvalidArgument", "NextToken"):
        bench.call("ListShards", NextToken="x")
    bench.clock.pass_by(301)
    with pytest.raises(AwsError, match="ExpiredNextTokenException"):
        bench.call("ListShards", NextToken=first)
