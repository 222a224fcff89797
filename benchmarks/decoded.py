"""The benchmark of `decoding`, as figures."""

from __future__ import annotations

from benchmarks.decoding import GOALS, fetcher, ours, rate, stock, wire
from benchmarks.figures import Figure, Goal

RUNS = 3


def run() -> list[Figure]:
    """Measure each path in turn, `RUNS` times. MB count the records' data."""
    figures = []
    for size, goal in GOALS.items():
        chunks = wire(size)
        work = {"botocore's event parser": stock(), "fetcher's part": fetcher, "to Arrow batches": ours}
        rates: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(RUNS):
            for name, decode in work.items():
                rates[name].append(rate(decode, chunks) * size / 1e6)
        (base, base_runs), *others = rates.items()
        case = f"{size} B records"
        baseline = Figure(case, base, "MB/s per core", tuple(base_runs))
        figures.append(baseline)
        for name, runs in others:
            figures.append(
                Figure.against(baseline, case, name, runs, Goal(goal, of_ratio=True) if work[name] is ours else None)
            )
    return figures
