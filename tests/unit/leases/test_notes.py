"""How far checkpoints have come, as the rows of runs keep it."""

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.notes import KEPT, add_mark, furthest
from kinesis_efo.positions import Mark

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
