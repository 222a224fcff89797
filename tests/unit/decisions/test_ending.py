"""Where a query ends that has an end, without anything that reads."""

import pytest

from kinesis_efo.decisions.ending import Ending
from kinesis_efo.options import Bounds
from kinesis_efo.positions import Offset, Position, ShardKey

SHARD = ShardKey("orders", "shardId-000000000000")


def test_end_before_a_partly_read_aggregate_moves_nothing_back() -> None:
    at, earlier = Position.inside(12, 3), Position.after(5)
    ending = Ending(catch_up=True, ends=Bounds())
    ending.set_targets({SHARD: earlier}, 0.0)
    assert ending.limit_to_target(SHARD, at, Position.after(20)) == at
    assert ending.reached({SHARD: at})
    assert ending.single_batch_end(Offset({SHARD: at})) == {SHARD: at}


def test_shards_that_are_read_no_further() -> None:
    other, third = ShardKey("orders", "b"), ShardKey("orders", "c")
    ending = Ending(catch_up=False, ends=Bounds())
    position = {SHARD: Position.after(5), other: Position.after(5), third: Position.after(5)}
    assert ending.finished_shards(position) == frozenset()
    ending.set_targets({SHARD: Position.after(5), other: Position.after(6)}, 0.0)
    assert ending.finished_shards(position) == {SHARD, third}


@pytest.mark.parametrize("found", [False, True])
def test_next_run_ends_where_the_first_one_would(found: bool) -> None:
    first, second = (Ending(catch_up=False, ends=Bounds()) for _ in range(2))
    first.available_now()
    if found:
        first.set_targets({SHARD: Position.after(5)}, 0.0)
    second.restore(first.state(), 0.0)
    second.available_now()
    assert (second.wanted, second.targets, second.changed) == (not found, first.targets, False)


@pytest.mark.parametrize("caught_up", [False, True])
def test_run_after_catching_up_finds_ends_for_available_now(caught_up: bool) -> None:
    first, second = (Ending(catch_up=True, ends=Bounds()) for _ in range(2))
    if caught_up:
        first.set_targets({SHARD: Position.after(5)}, 0.0)
        first.single_batch_end(Offset({SHARD: Position.after(1)}))
    second.restore(first.state(), 0.0)
    second.available_now()
    assert second.wanted and not second.in_one_batch
