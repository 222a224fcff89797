"""What rows of a lease table tell of checkpoints: how far they have come, whether they are of another stream, whether one was further."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.notes import KEPT, add_mark, furthest, new_query_warning, restored, strays
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardKey

steps = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 50)), max_size=80)


@given(steps)
def test_furthest_marks_of_the_newest_checkpoints_stay(commits: list[tuple[int, int]]) -> None:
    known: tuple[CheckpointMark, ...] = ()
    furthest_of: dict[str, int] = {}
    for at, (number, moved) in enumerate(commits):
        checkpoint = f"{number:x}"
        if (before := furthest(known, checkpoint)) is None:
            furthest_of.pop(checkpoint, None)  # forgotten, or new
        known = add_mark(known, Mark(checkpoint, moved), at)
        furthest_of[checkpoint] = max(moved, furthest_of.get(checkpoint, 0))
        if before is None or before.mark.moved < moved:
            assert known[0] == CheckpointMark(Mark(checkpoint, moved), at), "the newest first"
        for each in known:
            assert each.mark.moved == furthest_of[each.mark.checkpoint], "never back"
        assert len(known) <= KEPT
        assert len({each.mark.checkpoint for each in known}) == len(known)
        assert [each.at for each in known] == sorted((each.at for each in known), reverse=True)


def test_oldest_checkpoint_is_dropped() -> None:
    known: tuple[CheckpointMark, ...] = ()
    for number in range(KEPT + 1):
        known = add_mark(known, Mark(f"{number:x}", 1), number)
    assert furthest(known, "0") is None
    assert add_mark(known, Mark(f"{KEPT:x}", 1), 99) == known, "the time stays at which it was new"
    assert furthest(known, f"{KEPT:x}") == CheckpointMark(Mark(f"{KEPT:x}", 1), KEPT)


ARN, OTHER = (
    "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
    "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks",
)
NOW = StreamIdentity(ARN, 1_800_000_000)
EARLIER = StreamIdentity(ARN, 1_700_000_000)


def rows(*streams: StreamIdentity | None) -> list[Lease]:
    return [
        Lease(f"orders:{number}", checkpoint=Position.after(7), stream=stream) for number, stream in enumerate(streams)
    ]


def test_stray_of_an_earlier_stream_has_both_times() -> None:
    assert strays(rows(NOW, EARLIER, None, EARLIER), NOW) == (
        f"checkpoint orders:1 (and 1 more) is from another stream: {ARN}, created 2023-11-14T22:13:20+00:00. "
        f"The stream is now {ARN}, created 2027-01-15T08:00:00+00:00: it was deleted and created again since"
    )


def test_row_with_another_arn_is_a_stray() -> None:
    for stream in (StreamIdentity(OTHER), StreamIdentity(OTHER, NOW.created)):
        for present in (NOW, StreamIdentity(ARN)):
            assert (
                f"is from another stream: {stream}. The stream is now {present}: the application read another"
                in str(strays(rows(stream), present))
            )


@pytest.mark.parametrize(
    ("stream", "present"),
    [(NOW, NOW), (None, NOW), (StreamIdentity(ARN), NOW), (NOW, StreamIdentity(ARN)), (EARLIER, StreamIdentity(ARN))],
)
def test_row_of_unknown_time_is_no_stray(stream: StreamIdentity | None, present: StreamIdentity) -> None:
    assert strays(rows(stream), present) is None


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
