"""The result of a benchmark: figures, each with the values of several runs and a goal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from math import ceil, exp, log
from statistics import median
from typing import Any, Final

STEADY: Final = 0.15
"""How far runs may be from their median, as a part of it."""
CONFIDENCE: Final = 0.95
SLIP: Final = 1.05
"""The ratio of new to old beyond which a cost has slipped."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound for a median.

    Attributes:
        bound: The value.
        least: Whether it is a lower bound; False for an upper one.
        of_ratio: Whether it bounds the ratio to the baseline, instead of the value.
    """

    bound: float
    least: bool = True
    of_ratio: bool = False

    def met(self, value: float) -> bool:
        """Whether a median is within the bound."""
        return value >= self.bound if self.least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:g}{'x' if self.of_ratio else ''}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement.

    Attributes:
        case: The conditions.
        what: What was measured.
        unit: Unit of `runs`.
        runs: One value per run.
        baseline: The `what` of the figure that it is compared with, or None.
        ratios: Each run's value divided by the baseline's value of that run.
        goal: The goal for the median, or None.
    """

    case: str
    what: str
    unit: str
    runs: tuple[float, ...]
    baseline: str | None = None
    ratios: tuple[float, ...] = ()
    goal: Goal | None = None

    @classmethod
    def against(cls, baseline: Figure, case: str, what: str, runs: list[float], goal: Goal | None = None) -> Figure:
        """A figure that is compared, run by run, with another one of the same unit."""
        ratios = tuple(run / base for run, base in zip(runs, baseline.runs, strict=True))
        return cls(case, what, baseline.unit, tuple(runs), baseline.what, ratios, goal)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.goal.met(median(self.ratios if self.goal.of_ratio else self.runs))

    @property
    def spread(self) -> float:
        """How far the run that differs most is from the median, as a part of it."""
        middle = median(self.runs)
        return max(abs(run - middle) for run in self.runs) / abs(middle) if middle else 0.0

    @property
    def steady(self) -> bool:
        """Whether one may go by the median: another run of the benchmark may be expected to find it again."""
        return self.spread <= STEADY

    def as_dict(self) -> dict[str, Any]:
        """The figure as plain data, with its medians."""
        return {
            **asdict(self),
            "min": min(self.runs),
            "median": median(self.runs),
            "max": max(self.runs),
            "ratio": median(self.ratios) if self.ratios else None,
            "met": self.met,
            "spread": self.spread,
            "steady": self.steady,
        }


@dataclass(frozen=True, slots=True)
class Ratio:
    """New divided by old, of some pairs of runs, and between which bounds it lies.

    Attributes:
        estimate: The most likely ratio.
        low: Lower bound.
        high: Upper bound.
        pairs: The number of pairs.
    """

    estimate: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, old: Sequence[float], new: Sequence[float]) -> Ratio:
        """The ratio of values above zero that were measured in pairs: the interval is Wilcoxon's, of the logarithms of the pairs' ratios.

        The estimate is the median of the means of every two logarithms (Hodges and Lehmann), the bounds are such means, too. That asks
        of the noise only that it favours neither side, which turns see to. Below six pairs, the interval of all means has less than
        `CONFIDENCE`: 94 % with five.
        """
        logs = [log(after / before) for before, after in zip(old, new, strict=True)]
        means = sorted((one + other) / 2 for one, other in combinations_with_replacement(logs, 2))
        cut = _outside(len(logs))
        estimate, low, high = (exp(each) for each in (median(means), means[cut], means[-1 - cut]))
        return cls(estimate, low, high, len(logs))

    @property
    def slipped(self) -> bool:
        """Whether the whole interval lies beyond `SLIP`."""
        return self.low > SLIP

    @property
    def verdict(self) -> str:
        """What can be told by the interval."""
        if self.low > 1:
            return "slower"
        if self.high < 1:
            return "faster"
        half = log(self.high / self.low) / 2
        if half <= log(SLIP):
            return "the same"
        # The width shrinks with the square root of the pairs.
        return f"cannot be told; {ceil(self.pairs * (half / log(SLIP)) ** 2)} pairs could"


def _outside(pairs: int) -> int:
    """How many means of two may be left out at each end: by how many ways signs give so low a sum of ranks (Wilcoxon)."""
    ways = Counter({0: 1})
    for rank in range(1, pairs + 1):
        ways += Counter({total + rank: number for total, number in ways.items()})
    out, below = 0, ways[0]
    while (below + ways[out + 1]) / 2**pairs <= (1 - CONFIDENCE) / 2:
        out += 1
        below += ways[out]
    return out
