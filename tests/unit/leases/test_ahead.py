"""Whether the lease table tells that a checkpoint had been further."""

from __future__ import annotations

import pytest

from kinesis_efo.leases.ahead import restored
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey

SHARD = ShardKey("orders", "shardId-000000000000")
after = Position.after


def row(position: Position) -> Lease:
    return Lease("orders:shardId-000000000000", checkpoint=position)


@pytest.mark.parametrize(
    ("reached", "planned"), [(after(11), after(10)), (after(10**30), after(9)), (SHARD_END, after(10))]
)
def test_a_row_that_is_further_than_the_checkpoint_is_told_with_the_remedy(
    reached: Position, planned: Position
) -> None:
    said = restored("orders", {SHARD: row(reached)}, {SHARD: planned})
    assert said is not None
    assert "further than the query's checkpoint in 1 of 1 shards (shardId-000000000000" in said
    assert "give it a new output directory" in said


@pytest.mark.parametrize(
    ("reached", "planned"),
    [
        (after(10), after(10)),
        (after(9), after(10)),
        (after(9), after(10**30)),
        (TRIM_HORIZON, after(10)),
        (after(10), TRIM_HORIZON),
        (after(10), Position.at_timestamp(1)),
        (after(10), SHARD_END),
        (SHARD_END, SHARD_END),
    ],
)
def test_a_row_that_is_not_is_no_news(reached: Position, planned: Position) -> None:
    assert restored("orders", {SHARD: row(reached)}, {SHARD: planned}) is None


def test_rows_of_other_streams_and_of_shards_that_the_checkpoint_does_not_name_do_not_count() -> None:
    other = ShardKey("clicks", "shardId-000000000000")
    assert restored("orders", {other: row(after(11))}, {other: after(10)}) is None
    assert restored("orders", {SHARD: row(after(11))}, {other: after(10)}) is None
