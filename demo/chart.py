"""Draws backlog and throughput over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SMOOTH_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The progress of the run at one time.

    Attributes:
        seconds: Time since the start.
        put: Number of events that Kinesis has acknowledged.
        archived: Number of events in completed micro-batches.
    """

    seconds: float
    put: int
    archived: int


def draw(samples: Sequence[Sample], marks: Sequence[tuple[float, str]], path: Path) -> None:
    """Draw the samples, and write the picture.

    Args:
        samples: The samples, in order of time.
        marks: Events to mark: seconds since the start, and a label.
        path: The PNG file to write.
    """
    # Each process of the tests imports this module, most of them without drawing: 0.4 s of CPU for each.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(10, 6), layout="constrained")
        backlog, flow = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        seconds = [sample.seconds for sample in samples]
        waiting = [sample.put - sample.archived for sample in samples]
        backlog.fill_between(seconds, waiting, step="post", color="#9ecae1")
        backlog.set_ylabel("events put, not archived yet")
        backlog.set_title("Backlog", loc="left", fontweight="bold")
        for name, color, values in (
            ("put", "#636363", [sample.put for sample in samples]),
            ("archived", "#3182bd", [sample.archived for sample in samples]),
        ):
            flow.plot(seconds, rates(seconds, values), label=name, color=color)
        flow.set_ylabel("events per second")
        flow.set_xlabel("seconds")
        flow.set_title("Throughput", loc="left", fontweight="bold")
        flow.legend(frameon=False)
        for axes in (backlog, flow):
            axes.set_ylim(bottom=0)
            axes.set_xlim(left=0)
            for at, what in marks:
                color = "#de2d26" if what == "killed" else "#31a354"
                axes.axvline(at, color=color, linestyle="--", linewidth=1)
        for at, what in marks:
            color = "#de2d26" if what == "killed" else "#31a354"
            backlog.annotate(f" {what}", (at, backlog.get_ylim()[1]), color=color, va="top")
        figure.savefig(path, dpi=120)


def rates(seconds: Sequence[float], totals: Sequence[int]) -> list[float]:
    """Growth per second, over the last seconds before each sample.

    >>> rates([0.0, 1.0, 2.0], [0, 10, 30])
    [0.0, 10.0, 15.0]
    """
    found, first = [], 0
    for number, (now, total) in enumerate(zip(seconds, totals, strict=True)):
        while first < number - 1 and now - seconds[first] > _SMOOTH_SECONDS:
            first += 1
        passed = now - seconds[first]
        found.append((total - totals[first]) / passed if passed else 0.0)
    return found
