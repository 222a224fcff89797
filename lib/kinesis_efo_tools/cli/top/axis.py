"""Scales for the charts of the ``top`` web page, with round steps and a suitable unit. No I/O."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

from kinesis_efo.units import SIZE_UNITS

SECONDS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))
BYTES: Final = tuple((float(1 << 10 * power), f" {unit}/s") for power, unit in reversed(list(enumerate(SIZE_UNITS))))
RECORDS: Final = ((1e6, " M/s"), (1e3, " k/s"), (1.0, "/s"))

_STEPS: Final = 4
_USED_FROM: Final = 2
"""A unit is used only if the largest figure is at least this many units, because 90 s is easier to read than 1.5 m."""


class Axis(NamedTuple):
    """The scale of a chart's vertical axis, which begins at 0.

    Attributes:
        unit: Size of the axis' unit in the unit of the figures, such as 60 for minutes if the figures are in seconds.
        name: Label of the unit.
        step: Distance between two grid lines, in axis units.
        steps: Number of grid lines above 0; the last is the top of the chart.
    """

    unit: float
    name: str
    step: float
    steps: int

    def data(self) -> dict[str, Any]:
        """Convert the scale to plain data, for the page."""
        return {"unit": self.unit, "name": self.name, "step": self.step, "steps": self.steps}


def axis(most: float, units: tuple[tuple[float, str], ...]) -> Axis:
    """Choose the scale for figures from 0 to `most`. `units` has each unit's size in the figures' unit and its label, largest first.

    >>> axis(2_900.0, SECONDS)
    Axis(unit=60.0, name='m', step=20.0, steps=3)
    >>> axis(0.0, RECORDS)
    Axis(unit=1.0, name='/s', step=1.0, steps=1)
    """
    unit, name = next((each for each in units if most >= _USED_FROM * each[0]), units[-1])
    highest = max(most / unit, 1.0)
    rough = highest / _STEPS
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(step, 0.5) if highest > 1 else 1.0
    return Axis(unit, name, step, ceil(highest / step - 1e-9))
