"""The status table says what the workflows run, and no more."""

from __future__ import annotations

import pytest

from scripts import status
from scripts.status import NOT_YET, ONCE, ROOT, ROWS, table, targets


def test_cells_come_from_the_workflows() -> None:
    often = targets()
    assert (often["test"], often["cluster"]) == ("every change", "every change")
    assert (often["sparks"], often["glue"], often["newest"]) == ("every night",) * 3
    assert "bench" in often
    text = table()
    assert text in (ROOT / "README.md").read_text(), "make docs writes it"
    assert "| every change | Spark 4.0, 4.3; " in text
    assert "| every night | Spark 4.1; Spark 4.2 |" in text
    assert "; Databricks |" in text.partition("| *never* | ")[2]
    assert ROWS.keys() >= NOT_YET | ONCE.keys()


def test_row_without_its_workflow_is_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "targets", dict)
    assert {line.split("|")[1].strip() for line in table().splitlines()[2:]} == {"*never*", "once (2026-11-29)"}


def test_every_target_exists() -> None:
    made = "".join((ROOT / name).read_text() for name in ("Makefile", "scripts/ci.mk"))
    for wanted in ROWS.values():
        for target in wanted:
            assert f"\n{target}:" in made
