"""The table of readers beside this library, as the page has it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.peers.table import CPU, MEMORY, P50, P99, table


def figures(name: str, shards: int, p50: tuple[float, ...], jvm: float, python: float = 0.0) -> Iterator[Figure]:
    case = f"{name}, {shards} shards"
    yield Figure(case, P50, "ms", p50)
    yield Figure(case, P99, "ms", (1234.0,))
    yield Figure(case, f"{CPU}, JVM", "s/GB", (jvm,))
    yield Figure(case, f"{CPU}, Python", "s/GB", (python,))
    yield Figure(case, f"{MEMORY}, JVM", "MB", (1700.4,))
    yield Figure(case, f"{MEMORY}, Python", "MB", (python * 10,))


def test_a_row_has_one_readers_medians_by_shards() -> None:
    found = [
        *figures("ours, Spark 4", 4, (500.0, 70.0, 60.0), 5.25, 4.0),
        *figures("theirs", 4, (2.0,), 9.0),
        *figures("ours, Spark 4", 64, (80.0,), 6.0, 5.0),
    ]
    head, rule, *rows = table(found).splitlines()
    assert head == (
        "|  | 4 shards: p50 / p99, ms | 4 shards: CPU s for a GB (Python) | 4 shards: MB (Python) "
        "| 64 shards: p50 / p99, ms | 64 shards: CPU s for a GB (Python) | 64 shards: MB (Python) |"
    )
    assert rule == "| --- | --- | --- | --- | --- | --- | --- |"
    ours = "| ours, Spark 4 | 70 / 1,234 | 9.2 (4.0) | 1,740 (40) | 80 / 1,234 | 11.0 (5.0) | 1,750 (50) |"
    assert rows == [ours, "| theirs | 2 / 1,234 | 9.0 | 1,700 | - | - | - |"]
