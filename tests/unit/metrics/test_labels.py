"""Labels: never too many, none moves into `other`, and a thing that is gone makes room for another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.metrics.labels import OTHER, Labels

STEPS = st.lists(st.sets(st.integers(0, 9)), max_size=30)


@given(st.integers(0, 4), STEPS)
def test_labels_are_bounded_and_never_move_into_other(most: int, steps: list[set[int]]) -> None:
    labels = Labels(most)
    before: dict[int, str | None] = {}
    for alive in steps:
        labels.keep(alive)
        seen = sorted({*before, *alive})
        now = {thing: labels.label(thing) for thing in seen}
        assert sum(label not in (None, OTHER) for label in now.values()) <= most
        for thing, label in now.items():
            if thing in before:
                assert (before[thing] == OTHER) == (label == OTHER)
            assert label in (None, OTHER, str(thing))
        before = now


def test_new_label_replaces_one_that_left() -> None:
    labels = Labels(1)
    assert labels.label("parent") == "parent"
    labels.keep({"child"})
    assert (labels.label("child"), labels.label("parent")) == ("child", None)
    labels.keep({"parent"})
    assert (labels.label("parent"), labels.label("child")) == ("parent", None)
