"""How far checkpoints have come, as the rows of runs keep it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.notes import KEPT, furthest, noted
from kinesis_efo.leases.row import Lease
from kinesis_efo.marks import Mark

steps = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 50)), max_size=80)


@given(steps)
def test_the_furthest_mark_of_each_checkpoint_stays_and_only_the_newest_checkpoints_do(
    commits: list[tuple[int, int]],
) -> None:
    known: tuple[CheckpointMark, ...] = ()
    furthest_of: dict[str, int] = {}
    for at, (number, moved) in enumerate(commits):
        checkpoint = f"{number:x}"
        if (before := furthest(known, checkpoint)) is None:
            furthest_of.pop(checkpoint, None)  # forgotten, or new
        known = noted(known, Mark(checkpoint, moved), at)
        furthest_of[checkpoint] = max(moved, furthest_of.get(checkpoint, 0))
        if before is None or before.mark.moved < moved:
            assert known[0] == CheckpointMark(Mark(checkpoint, moved), at), "the newest first"
        for each in known:
            assert each.mark.moved == furthest_of[each.mark.checkpoint], "never back"
        assert len(known) <= KEPT
        assert len({each.mark.checkpoint for each in known}) == len(known)
        assert [each.at for each in known] == sorted((each.at for each in known), reverse=True)


def test_the_oldest_checkpoint_is_forgotten() -> None:
    known: tuple[CheckpointMark, ...] = ()
    for number in range(KEPT + 1):
        known = noted(known, Mark(f"{number:x}", 1), number)
    assert furthest(known, "0") is None
    assert furthest(known, f"{KEPT:x}") == CheckpointMark(Mark(f"{KEPT:x}", 1), KEPT)


def test_a_full_set_of_marks_is_small_beside_the_kilobyte_that_a_write_is_billed_by() -> None:
    marks = tuple(CheckpointMark(Mark(f"{number:08x}", 10**9), 1_790_000_000_000) for number in range(KEPT))
    row = Lease(run_key("orders"), checkpoint=None, marks=marks)
    again = Lease.from_item(row.to_item())
    assert again is not None
    assert again.marks == marks
    # DynamoDB counts names, values (a number: a byte for two digits, and one) and a byte for each entry.
    size = sum(8 + 3 + (len("moved") + 6 + 1) + (len("at") + 8 + 1) for _ in marks)
    assert size < 600


def test_a_mark_that_is_noted_again_keeps_the_time_at_which_it_was_new() -> None:
    known = noted((), Mark("7c1f", 3), 10)
    assert noted(known, Mark("7c1f", 3), 20) == known
