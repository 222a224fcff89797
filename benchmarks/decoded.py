"""The benchmark of `decoding`, as figures."""

from __future__ import annotations

from benchmarks.decoding import GOALS, answers, by, fetcher, ours, poller, rate, readers, stock, wire
from benchmarks.figures import Figure, Goal

RUNS = 3
PATHS = {"fetcher's part": fetcher, "fetcher's part, polled": poller, "to Arrow batches": ours}


def run() -> list[Figure]:
    """Measure each path in turn, `RUNS` times: by Python, and by the native core if it is installed. MB count the records' data."""
    figures = []
    for size, goal in GOALS.items():
        chunks = wire(size)
        polled = answers(chunks)
        work = {"botocore's event parser": (stock(), chunks)} | {
            f"{name}, {reader}": (by(choice, path), polled if path is poller else chunks)
            for name, path in PATHS.items()
            for reader, choice in readers().items()
        }
        rates: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(RUNS):
            for name, (decode, given) in work.items():
                rates[name].append(rate(decode, given) * size / 1e6)
        (base, base_runs), *others = rates.items()
        case = f"{size} B records"
        baseline = Figure(case, base, "MB/s per core", tuple(base_runs))
        figures.append(baseline)
        for name, runs in others:
            wanted = Goal(goal, of_ratio=True) if name.startswith("to Arrow") else None
            figures.append(Figure.against(baseline, case, name, runs, wanted))
    return figures
