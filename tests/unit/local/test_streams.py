"""Shards over time: routing, resharding, retention."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo_local import AwsError
from kinesis_efo_local.shards import MAX_HASH
from kinesis_efo_local.writing import PutRecord, put_record

from .conftest import Bench, refused

FIRST, THIRD, NINTH = (f"shardId-00000000000{number}" for number in (0, 2, 9))


def tiles(stream: Any) -> list[tuple[int, int]]:
    return [shard.hash_range for shard in stream.open_shards]


def assert_complete(ranges: list[tuple[int, int]]) -> None:
    assert ranges[0][0] == 0
    assert ranges[-1][1] == MAX_HASH
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(ranges))


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["split", "merge", "put"]), st.integers(0, 10**6)), max_size=25),
)
def test_reshards_lose_no_hash_key_and_no_record(shards: int, steps: list[tuple[str, int]]) -> None:
    bench = Bench()
    stream = bench.create(shards)
    put = 0
    for what, number in steps:
        bench.clock.pass_by(0.001)
        open_shards = stream.open_shards
        chosen = open_shards[number % len(open_shards)]
        if what == "put":
            put += bench.put(*(f"{number}-{i}" for i in range(5)))["FailedRecordCount"] == 0 and 5
        elif what == "split" and chosen.hash_range[1] - chosen.hash_range[0] > 2:
            at = chosen.hash_range[0] + 2 + number % (chosen.hash_range[1] - chosen.hash_range[0] - 2)
            bench.call("SplitShard", StreamName="orders", ShardToSplit=chosen.id, NewStartingHashKey=str(at))
        elif what == "merge" and len(open_shards) > 1:
            index = number % (len(open_shards) - 1)
            first, second = open_shards[index].id, open_shards[index + 1].id
            bench.call("MergeShards", StreamName="orders", ShardToMerge=first, AdjacentShardToMerge=second)
        assert_complete(tiles(stream))
    listed = {shard["ShardId"]: shard for shard in bench.call("ListShards", StreamName="orders")["Shards"]}
    numbers: list[int] = []
    for shard in stream.shards.values():
        page = shard.page(0, 10_000, 10**9)
        found = [int(record.rpartition(b'":"')[2][:56]) for record in page.records] if page else []
        assert found == sorted(found)
        low = int(listed[shard.id]["SequenceNumberRange"]["StartingSequenceNumber"])
        high = int(listed[shard.id]["SequenceNumberRange"].get("EndingSequenceNumber", 10**57))
        assert all(low < number < high for number in found)
        numbers += found
        for parent in shard.parents:
            assert int(listed[parent]["SequenceNumberRange"]["EndingSequenceNumber"]) < low
    assert len(numbers) == len(set(numbers)) == put


@pytest.mark.parametrize("path", [(2, 4, 3, 6, 5), (4, 8, 16, 8, 4, 2), (1, 2, 1)])
def test_update_shard_count_ends_with_even_shards(bench: Bench, path: tuple[int, ...]) -> None:
    stream = bench.create(path[0])
    for current, target in itertools.pairwise(path):
        answer = bench.call(
            "UpdateShardCount", StreamName="orders", TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
        assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (current, target)
        ranges = tiles(stream)
        assert len(ranges) == target
        assert_complete(ranges)
        widths = [end - start for start, end in ranges]
        assert max(widths) - min(widths) <= target


@pytest.mark.parametrize("target", [9, 1])
def test_update_shard_count_goes_from_half_to_double_only(bench: Bench, target: int) -> None:
    bench.create(4)
    with refused("LimitExceeded", f"from 4 to {target}.*between 2 .* and 8"):
        bench.call("UpdateShardCount", StreamName="orders", TargetShardCount=target)


def test_impossible_reshards_are_refused(bench: Bench) -> None:
    stream = bench.create(3)
    with refused("InvalidArgument", "got 'x'"):
        bench.call("SplitShard", StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey="x")
    with refused("ResourceNotFound", NINTH):
        bench.call("SplitShard", StreamName="orders", ShardToSplit=NINTH, NewStartingHashKey="5")
    for other in (THIRD, FIRST):
        with refused("InvalidArgument", "not an adjacent pair"):
            bench.call("MergeShards", StreamName="orders", ShardToMerge=FIRST, AdjacentShardToMerge=other)
    assert (stream.status, len(stream.shards)) == ("ACTIVE", 3)


def test_closed_shards_and_on_demand_streams_refuse_splits(bench: Bench) -> None:
    stream = bench.create(1)
    split = {"ShardToSplit": FIRST, "NewStartingHashKey": "5"}
    bench.call("SplitShard", StreamName="orders", **split)
    with pytest.raises(AwsError, match="already been merged or split"):
        bench.call("SplitShard", StreamName="orders", **split)
    bench.call("CreateStream", StreamName="auto", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    assert len(bench.kinesis.streams["auto"].open_shards) == 4
    with refused("Validation", "ON_DEMAND"):
        bench.call("SplitShard", StreamName="auto", **split)
    assert stream.status == "ACTIVE"


def test_closed_shard_expires_with_its_records() -> None:
    bench = Bench(retention_seconds=60)
    stream = bench.create(1)
    bench.put("a", "b")
    bench.clock.pass_by(40)
    bench.put("c")
    bench.call("SplitShard", StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey="5")
    bench.clock.pass_by(30)
    assert len(bench.call("ListShards", StreamName="orders")["Shards"]) == 3
    parent = stream.shards[FIRST]
    assert (parent.oldest, parent.tip) == (2, 3)
    bench.clock.pass_by(31)
    assert [shard["ShardId"][-1] for shard in bench.call("ListShards", StreamName="orders")["Shards"]] == ["1", "2"]
    with pytest.raises(AwsError, match=r"shardId-000000000000 .* does not exist"):
        stream.shard(FIRST)


def test_clock_that_jumps_back_loses_no_records(bench: Bench) -> None:
    stream = bench.create(1)
    bench.put("a")
    bench.clock.now -= 3600
    bench.put("b")
    bench.clock.now += 3600
    shard = stream.open_shards[0]
    assert len(shard.page(0, 10, 10**6).records) == 2
    assert shard.cursor_at_time(bench.clock.now - 1) == 0


@pytest.mark.parametrize("at", [0, 1, 2**128 - 1])
def test_split_at_the_edge_is_refused(bench: Bench, at: int) -> None:
    bench.create()
    split = {"StreamName": "orders", "ShardToSplit": FIRST}
    with pytest.raises(AwsError, match="is not both greater than one plus"):
        bench.call("SplitShard", **split, NewStartingHashKey=str(at))
    bench.call("SplitShard", **split, NewStartingHashKey="2")


def test_backdated_records_are_found_by_their_time(bench: Bench) -> None:
    stream = bench.create()
    now = bench.clock.now
    bench.put("of now")
    stream.traits.backdated_seconds = 3600
    bench.put("of an hour ago")
    stream.traits.backdated_seconds = 0
    bench.clock.pass_by(10)
    bench.put("later")
    shard = stream.open_shards[0]
    page = shard.page(0, 10, 10**6)
    assert f'"ApproximateArrivalTimestamp":{now - 3600:.3f}'.encode() in page.records[1]
    # A read by time begins with the first record that is new enough; what comes behind it may be older.
    assert [shard.cursor_at_time(now + by) for by in (-4000, 0, 1)] == [0, 0, 2]


def test_nonsense_sequence_number_for_ordering_is_refused(bench: Bench) -> None:
    bench.create()
    number = bench.put("a")["Records"][0]["SequenceNumber"]

    def put(after: str) -> None:
        put_record(bench.kinesis, PutRecord("eA==", "k", stream_name="orders", after=after))

    put(number)
    with pytest.raises(AwsError, match=r"sequenceNumberForOrdering.*regular expression"):
        put("nonsense")
    for other in ("5", str(int(number) + (10**18 << 80))):
        with pytest.raises(AwsError, match=f"ExclusiveMinimumSequenceNumber {other} used in PutRecord"):
            put(other)
