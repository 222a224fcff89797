"""The faults that `make mutants` plants, and the list of those that survive."""

import tomllib
from pathlib import Path

import pytest

from scripts.mutants.faults import mutants

ROOT = Path(__file__).parents[3]
LISTED = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(LISTED))
def test_listed_fault_exists_and_has_a_reason(module: str) -> None:
    planted = {each.name for each in mutants((ROOT / "lib" / "kinesis_efo" / f"{module}.py").read_text())}
    listed = [entry["fault"] for entry in LISTED[module]]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= planted, "the code has changed: run `make mutants` for this module"
    assert all(len(entry["why"]) > 10 for entry in LISTED[module])
