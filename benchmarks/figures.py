"""The result of a benchmark: figures, each with the values of several runs and a goal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

STEADY: Final = 0.15
"""How far runs may be from their median, as a part of it."""


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
