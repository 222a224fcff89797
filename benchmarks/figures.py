"""What a benchmark hands on: one figure per thing measured, from several runs, with its goal. Relies on nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """What a median is to be.

    Attributes:
        bound: The value.
        least: Whether it is a lower bound; else an upper one.
        of_ratio: Whether it is about the ratio to the baseline rather than the figure itself.
    """

    bound: float
    least: bool = True
    of_ratio: bool = False

    def met(self, value: float) -> bool:
        """Whether a median is what it is to be."""
        return value >= self.bound if self.least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:g}{'x' if self.of_ratio else ''}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured.

    Attributes:
        case: What it was measured with.
        what: What was measured.
        unit: Of `runs`.
        runs: One value per run.
        baseline: What each run is compared with, measured beside it.
        ratios: Each run's value divided by its baseline's.
        goal: What the median is to be.
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
        """A figure compared, run by run, with another one of the same unit."""
        ratios = tuple(run / base for run, base in zip(runs, baseline.runs, strict=True))
        return cls(case, what, baseline.unit, tuple(runs), baseline.what, ratios, goal)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.goal is None:
            return None
        return self.goal.met(median(self.ratios if self.goal.of_ratio else self.runs))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with the medians."""
        return {
            **asdict(self),
            "min": min(self.runs),
            "median": median(self.runs),
            "max": max(self.runs),
            "ratio": median(self.ratios) if self.ratios else None,
            "met": self.met,
        }
