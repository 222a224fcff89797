"""How ranges become tasks."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, ShardKey, ShardRange
from kinesis_efo.spark.partitions import TASK_BYTES, KinesisPartition, coalesce, streams_with_generations
from tests.support.fetched import after, key

pytestmark = pytest.mark.spark


def ranges(count: int) -> list[ShardRange]:
    return [ShardRange(key(number), TRIM_HORIZON, after(10)) for number in range(count)]


def test_small_ranges_share_one_task() -> None:
    wanted = ranges(64)
    assert [len(group) for group in coalesce(wanted, dict.fromkeys((r.key for r in wanted), 1000))] == [64]


def test_large_ranges_get_separate_tasks() -> None:
    wanted = ranges(4)
    sizes = {r.key: TASK_BYTES for r in wanted}
    assert coalesce(wanted, sizes) == [[r] for r in wanted]


def test_ranges_of_unknown_size_count_as_half_a_task() -> None:
    assert len(coalesce(ranges(4), {})) == 2


def test_nothing_to_read_is_no_task() -> None:
    assert coalesce([], {}) == []


def test_generations_of_one_stream_are_one_task_in_order() -> None:
    begin = Offset({key(0): after(1), key(1): after(1), ShardKey("clicks", "s0"): after(1)})
    end = Offset({key(0): SHARD_END, key(1): after(9), key(2): after(9), ShardKey("clicks", "s0"): after(9)})
    wanted = begin.ranges_to(end)
    together = streams_with_generations(begin, wanted)
    assert together == {"orders"}
    groups = coalesce(list(reversed(wanted)), dict.fromkeys(end, TASK_BYTES), together=together)
    assert [[r.key for r in group] for group in groups] == [[key(0), key(1), key(2)], [ShardKey("clicks", "s0")]]


@given(st.lists(st.integers(0, 3 * TASK_BYTES), max_size=40))
def test_ranges_are_spread_evenly(sizes: list[int]) -> None:
    wanted = ranges(len(sizes))
    weights = dict(zip((r.key for r in wanted), sizes, strict=True))
    groups = coalesce(wanted, weights)
    assert sorted(r for group in groups for r in group) == sorted(wanted)
    loads = [sum(weights[r.key] for r in group) for group in groups]
    assert all(groups)
    assert max(loads, default=0) - min(loads, default=0) <= max(sizes, default=0)
    assert len(groups) <= sum(sizes) / TASK_BYTES + 1


def test_a_pickled_partition_does_not_show_the_secret() -> None:
    address = FetcherAddress("here", 1, ("10.0.0.7",), "a certificate")
    partition = KinesisPartition(address, "s3cret", ranges(1), planner=address, deaggregate=True)
    again = pickle.loads(pickle.dumps(partition))
    assert (again.address, again.secret, again.ranges, again.deaggregate) == (address, "s3cret", partition.ranges, True)
    assert "s3cret" not in repr(partition) + repr(partition.address)
    assert repr(partition) == "KinesisPartition(orders:shardId-000000000000 (TRIM_HORIZON, AFTER:10])"
