"""The table of readers beside this library, as the page has it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from benchmarks import __main__ as program
from benchmarks.figures import Figure
from benchmarks.peers.table import CPU, MEMORY, P50, P99, table
from scripts.docs import ROOT


def figures(name: str, shards: int, p50: tuple[float, ...], jvm: float, python: float = 0.0) -> Iterator[Figure]:
    case = f"{name}, {shards} shards"
    yield Figure(case, P50, "ms", p50)
    yield Figure(case, P99, "ms", (1234.0,))
    yield Figure(case, f"{CPU}, JVM", "s/GB", (jvm,))
    yield Figure(case, f"{CPU}, Python", "s/GB", (python,))
    yield Figure(case, f"{MEMORY}, JVM", "MB", (1700.4,))
    yield Figure(case, f"{MEMORY}, Python", "MB", (python * 10,))


def test_a_row_has_medians_of_one_reader_by_the_number_of_shards() -> None:
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


def test_the_page_has_a_table_of_this_form() -> None:
    page = (ROOT / "docs" / "how-it-compares.md").read_text()
    head, rule, *_ = table([*figures("a", 4, (1.0,), 1.0), *figures("a", 64, (1.0,), 1.0)]).splitlines()
    assert f"{head}\n{rule}\n| kinesis-efo, Spark " in page
    prose = re.sub(r"^\|.*", "", page, flags=re.MULTILINE)
    assert len(prose.split()) <= 500


@pytest.mark.parametrize("names", [[], ["latency"], ["peers", "latency"]])
def test_no_other_benchmark_has_a_page(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main([*names, "--page"])
    assert "no page has the table of others than peers" in capsys.readouterr().err
