"""What a benchmark says of its own runs."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figure, Goal


@pytest.mark.parametrize(
    ("runs", "spread", "steady"),
    [
        ((100.0, 90.0, 114.0), 0.14, True),
        ((100.0, 84.0, 104.0), 0.16, False),
        ((3.0,), 0.0, True),
        ((0.0, 0.0, 0.4), 0.0, True),
    ],
)
def test_runs_that_differ_much_are_named(runs: tuple[float, ...], spread: float, steady: bool) -> None:
    figure = Figure("case", "what", "ms", runs)
    assert figure.spread == pytest.approx(spread)
    assert figure.steady is steady
    assert figure.as_dict()["steady"] is steady


def test_a_goal_is_for_the_median_or_for_the_median_of_ratios() -> None:
    base = Figure("case", "stock", "MB/s", (10.0, 20.0, 30.0))
    ours = Figure.against(base, "case", "ours", [80.0, 40.0, 90.0], Goal(3, of_ratio=True))
    assert ours.ratios == (8.0, 2.0, 3.0)
    assert ours.met is True
    assert Figure("case", "p50", "ms", (61.0, 59.0, 62.0), goal=Goal(60, least=False)).met is False
    assert base.met is None
