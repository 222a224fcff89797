"""Whether the lease table tells that a checkpoint had been further."""

from dataclasses import replace

import pytest

from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.notes import new_query_warning, restored
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardKey

SHARD = ShardKey("orders", "shardId-000000000000")
after = Position.after


def row(position: Position) -> Lease:
    return Lease("orders:shardId-000000000000", checkpoint=position)


@pytest.mark.parametrize(
    ("reached", "planned", "ahead"),
    [
        (after(11), after(10), True),
        (after(10**30), after(9), True),
        (SHARD_END, after(10), True),
        (after(10), after(10), False),
        (after(9), after(10), False),
        (after(9), after(10**30), False),
        (TRIM_HORIZON, after(10), False),
        (after(10), TRIM_HORIZON, False),
        (after(10), Position.at_timestamp(1), False),
        (after(10), SHARD_END, False),
        (SHARD_END, SHARD_END, False),
    ],
)
def test_row_ahead_of_the_checkpoint_is_reported(reached: Position, planned: Position, ahead: bool) -> None:
    found = restored(Offset({SHARD: planned}), "orders", {SHARD: row(reached)}, ())
    assert (found is not None) is ahead
    if found is not None:
        assert "further than the query's checkpoint in 1 of 1 shards (shardId-000000000000" in found
        assert "give it a new output directory" in found


def test_rows_of_other_streams_shards_and_marks_are_ignored() -> None:
    other = ShardKey("clicks", "shardId-000000000000")
    assert restored(Offset({other: after(10)}), "orders", {other: row(after(11))}, ()) is None
    assert restored(Offset({other: after(10)}), "orders", {SHARD: row(after(11))}, ()) is None
    unknown = Offset({SHARD: after(10)}, mark=Mark("0000", 1))
    assert restored(unknown, "orders", {SHARD: row(after(11))}, REACHED) is None


REACHED = (CheckpointMark(Mark("beef", 900), 1_790_000_009_000), CheckpointMark(Mark("7c1f", 12), 1_790_000_000_000))


@pytest.mark.parametrize(
    ("moved", "said"), [(9, "by 3 micro-batches"), (11, "by 1 micro-batch"), (12, None), (13, None)]
)
def test_checkpoint_is_compared_with_its_mark_alone(moved: int, said: str | None) -> None:
    # The rows are far ahead, as where another query has read on, and far behind, as where the table is older.
    for at in (after(10**30), after(1)):
        found = restored(Offset({SHARD: after(10)}, mark=Mark("7c1f", moved)), "orders", {SHARD: row(at)}, REACHED)
        assert (found is None) == (said is None)
        if found is not None:
            assert f"had been further {said}, at 2026-09-21 14:13:20 UTC" in found
            assert "or Spark has left offsets out of it (option asyncProgressTrackingEnabled)" in found
            assert "give it a new output directory" in found


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(after(11), 1_790_000_060.7), (after(12), 1_790_000_000.9)], "startingPosition=AT_TIMESTAMP:2026-09-21T14:13:20Z."),
        ([(SHARD_END, None), (after(12), 1_790_000_000.9)], "startingPosition=AT_TIMESTAMP:2026-09-21T14:13:20Z."),
        ([(after(11), None), (after(12), 1_790_000_000.9)], "startingPosition=TRIM_HORIZON."),
        ([(SHARD_END, 1_790_000_000.9)], "startingPosition=TRIM_HORIZON."),
        ([(TRIM_HORIZON, None), (Position.at_timestamp(7), None)], None),
        ([], None),
    ],
)  # fmt: skip
def test_new_query_is_warned_how_far_the_application_read(
    rows: list[tuple[Position, float | None]], said: str | None
) -> None:
    found = new_query_warning(
        "orders",
        {
            ShardKey("orders", f"shardId-{number}"): replace(row(position), read_until=until)
            for number, (position, until) in enumerate(rows)
        },
    )
    assert (found is None) == (said is None)
    if found is not None and said is not None:
        assert f"has read {len(rows)} of the stream's shards before (shardId-0 up to {rows[0][0]})" in found
        assert said in found
        assert "_spark_metadata" in found
        assert "new output directory" in found
