"""What can be told of two versions by pairs of runs, and what is compared."""

from pathlib import Path

import pytest

from benchmarks import cluster
from benchmarks.against import Comparison, Version, compared, turns
from benchmarks.figures import Ratio
from tests.support.virtual_time import run as in_virtual_time


@pytest.mark.parametrize(("pairs", "left_out"), [(5, 0), (6, 0), (7, 2), (8, 3), (10, 8), (20, 52)])
def test_the_interval_is_that_of_wilcoxons_test(pairs: int, left_out: int) -> None:
    # Every pair has a ratio of its own, so that each mean of two is another one.
    logs = [2.0**number for number in range(pairs)]
    means = sorted((one + other) / 2 for place, one in enumerate(logs) for other in logs[place:])
    ratio = Ratio.of([1.0] * pairs, [1.0001**each for each in logs])
    assert ratio.low == pytest.approx(1.0001 ** means[left_out], rel=1e-9)
    assert ratio.high == pytest.approx(1.0001 ** means[-1 - left_out], rel=1e-9)


def test_a_ratio_is_of_pairs_whatever_drifts() -> None:
    ratio = Ratio.of([100.0, 200.0, 400.0, 50.0, 10.0, 70.0], [110.0, 220.0, 440.0, 55.0, 11.0, 77.0])
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((1.1, 1.1, 1.1))


def test_one_outlier_pair_does_not_decide() -> None:
    ratio = Ratio.of([100.0] * 8, [101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 500.0])
    assert ratio.estimate == pytest.approx(1.01, abs=0.02)
    assert not ratio.slipped


@pytest.mark.parametrize(
    ("new", "verdict", "slipped"),
    [
        ((106.0, 107.0, 108.0, 106.5, 107.5, 108.5), "slower", True),
        ((103.0, 106.0, 108.0, 107.0, 109.0, 110.0), "slower", False),
        ((90.0, 91.0, 92.0, 90.5, 91.5, 92.5), "faster", False),
        ((98.0, 99.0, 100.0, 101.0, 102.0, 103.0), "the same", False),
        # From 0.8 to 1.25, half an interval is 4.57 times the logarithm of 1.05: 21 times the pairs.
        ((80.0, 125.0, 100.0, 90.0, 110.0, 100.0), "cannot be told; 126 pairs could", False),
    ],
)
def test_a_verdict_goes_by_the_whole_interval(new: tuple[float, ...], verdict: str, slipped: bool) -> None:
    ratio = Ratio.of([100.0] * len(new), new)
    assert ratio.verdict == verdict
    assert ratio.slipped is slipped


def test_worst_values_and_zeros_are_never_judged() -> None:
    slow = ([100.0] * 6, [200.0] * 6)
    assert Comparison("latency", ("low_latency", "p50", "ms"), *slow).slipped
    assert not Comparison("latency", ("low_latency", "p99", "ms"), *slow).slipped
    assert not Comparison("cluster", ("1,000 shards", "  the longest, fetchers=driver", "CPU ms"), *slow).slipped
    zero = Comparison("micro_batch", ("no records", "CPU: workers", "ms"), [0.0] * 6, [200.0] * 6)
    assert zero.ratio is None
    assert not zero.slipped


def test_less_throughput_is_slower() -> None:
    less = Comparison("producer", ("1 KB", "producer: throughput", "1,000 records/s"), [100.0] * 6, [90.0] * 6)
    assert less.slipped
    assert not Comparison(less.benchmark, less.what, less.new, less.old).slipped


def test_each_version_is_first_in_every_second_pair() -> None:
    old, new = Version(Path("old"), "a"), Version(Path("new"), "b")
    assert list(turns(old, new, 3)) == [old, new, new, old, old, new]


def test_figures_are_compared_that_both_versions_have() -> None:
    p50, p99, other = ("case", "p50", "ms"), ("case", "p99", "ms"), ("case", "other", "ms")
    (found,) = compared("latency", [{p50: 1.0, p99: 2.0}, {p50: 3.0}], [{p50: 4.0, other: 5.0}, {p50: 6.0, other: 7.0}])
    assert found == Comparison("latency", p50, [1.0, 3.0], [4.0, 6.0])
    with pytest.raises(RuntimeError, match="no figure in common"):
        compared("latency", [{p99: 2.0}], [{p50: 4.0}])


@pytest.mark.parametrize("fetchers", [0, 2])
def test_simulated_run_of_the_benchmarks_plans_micro_batches(fetchers: int) -> None:
    found = in_virtual_time(cluster.measured(2, fetchers))
    assert all(found.loads[load].latest for load in cluster.TRIGGER_SECONDS)
    assert found.loads["busy"].partitions
