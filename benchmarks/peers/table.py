"""The comparison as docs/how-it-compares.md has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from benchmarks.figures import Figure
from benchmarks.peers.running import PYTHON

P50: Final = "p50"
P99: Final = "p99"
CPU: Final = "CPU"
MEMORY: Final = "memory"


def table(figures: Iterable[Figure]) -> str:
    """A table in Markdown: a row for each reader, medians by the number of shards.

    Args:
        figures: Their cases are "NAME, N shards", and what they say of CPU time and memory is "CPU, KIND of process".
    """
    found: dict[str, dict[int, dict[str, float]]] = {}
    for figure in figures:
        name, _, shards = figure.case.removesuffix(" shards").rpartition(", ")
        found.setdefault(name, {}).setdefault(int(shards), {})[figure.what] = median(figure.runs)
    numbers = sorted({number for by_shards in found.values() for number in by_shards})
    lines = [
        _row(["", *(f"{number} shards: {what}" for number in numbers for what in _COLUMNS)]),
        _row(["---"] * (1 + len(numbers) * len(_COLUMNS))),
    ]
    lines += [
        _row([name, *(cell for number in numbers for cell in _cells(by_shards.get(number)))])
        for name, by_shards in found.items()
    ]
    return "\n".join(lines)


_COLUMNS: Final = ("p50 / p99, ms", "CPU s for a GB (Python)", "MB (Python)")


def _cells(values: dict[str, float] | None) -> list[str]:
    if values is None:
        return ["-"] * len(_COLUMNS)
    return [f"{values[P50]:,.0f} / {values[P99]:,.0f}", _by_kind(values, CPU, ",.1f"), _by_kind(values, MEMORY, ",.0f")]


def _by_kind(values: dict[str, float], what: str, form: str) -> str:
    """A sum, and Python's part of it if there is one: the rest is the JVM's."""
    total = sum(value for name, value in values.items() if name.startswith(what))
    python = values[f"{what}, {PYTHON}"]
    return f"{total:{form}}" + (f" ({python:{form}})" if python > total / 100 else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
