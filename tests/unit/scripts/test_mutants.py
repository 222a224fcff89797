"""The faults that `make mutants` plants, and the list of those that survive."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.mutants.faults import mutants

ROOT = Path(__file__).parents[3]
LISTED = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())

SOURCE = '''
"""A module."""

LIMIT: Final = 2
logger = getLogger()


class Thing:
    """A class."""

    share = 0.5

    def act(self, a: int, b: int) -> int:
        """Documented."""
        logger.info("acting")
        if a <= b and not self.done:
            self.done = True
            raise ValueError
        while self.waits():
            break
        return a if self.more else None

    def more(self) -> bool:
        return False


def nothing() -> None:
    return None
'''


FAULTS = {
    "<module>: 1 instead of LIMIT: Final = 2", "Thing: 0.25 instead of share = 0.5", "Thing.act: a < b instead of a <= b",
    "Thing.act: or in: a <= b and (not self.done)", "Thing.act: without not: not self.done",
    "Thing.act: removed: self.done = True", "Thing.act: removed: raise ValueError", "Thing.act: while not self.waits()",
    "Thing.act: removed: break", "Thing.act: not self.more in: a if self.more else None",
    "Thing.act: return None instead of a if self.more else None", "Thing.more: return True instead of False",
}  # fmt: skip
"""Those of `SOURCE`; what has no effect is not planted."""


def test_each_fault_is_planted_once() -> None:
    original = ast.unparse(ast.parse(SOURCE))
    planted = {each.name: each for each in mutants(SOURCE)}
    assert list(planted) == [each.name for each in mutants(SOURCE)]
    assert planted.keys() == FAULTS
    assert all(ast.unparse(each.tree) != original and len(each.lines) == 1 for each in planted.values())
    assert SOURCE.splitlines()[planted["Thing.act: removed: break"].lines[0] - 1].strip() == "break"
    names = [each.name for each in mutants("def f(a):\n    g(a)\n    g(a)\n")]
    assert names == ["f: removed: g(a)", "f: removed: g(a) (2)"]


RUNNER = """
import json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], "."]
from scripts.mutants.faults import mutants
from scripts.mutants.running import IMPORTING, NotPossible, collected

path = Path("summed.py").resolve()

def judge(each, fault, reached):
    tests = sorted({test for line in fault.lines for test in reached.lines.get((str(path), line), ())} - {IMPORTING})
    try:
        return each.fails(path, fault, tests, reached)
    except NotPossible:
        return "not possible"

def work(each):
    reached = each.watched()
    return {fault.name: judge(each, fault, reached) for fault in mutants(path.read_text()) if fault.inside}

Path("result.json").write_text(json.dumps(collected(["test_summed.py"], "not slow", [path], work)))
"""

SUMMED = """
def total(n):
    found = 0
    while n > 0:
        found += n
        n -= 1
    return found


class Base:
    def first(self):
        return [1]


class Derived(Base):
    def first(self):
        found = super().first()
        found.append(2)
        return found
"""

TEST = """
from summed import Derived, total

def test_total():
    assert total(3) == 6

def test_first():
    assert Derived().first()
"""


@pytest.mark.slow
def test_tests_run_with_each_fault_in_place(tmp_path: Path) -> None:
    (tmp_path / "summed.py").write_text(SUMMED)
    (tmp_path / "test_summed.py").write_text(TEST)
    subprocess.run([sys.executable, "-c", RUNNER, str(ROOT)], cwd=tmp_path, check=True, timeout=300)
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "total: removed: found = 0": "test_summed.py::test_total",
        "total: n >= 0 instead of n > 0": None,
        "total: removed: found += n": "test_summed.py::test_total",
        "total: removed: n -= 1": "test_summed.py::test_total",
        "total: return None instead of found": "test_summed.py::test_total",
        "Base.first: return None instead of [1]": "test_summed.py::test_first",
        "Derived.first: removed: found = super().first()": "not possible",
        "Derived.first: removed: found.append(2)": None,
        "Derived.first: return None instead of found": "test_summed.py::test_first",
    }


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(LISTED))
def test_listed_fault_exists_and_has_a_reason(module: str) -> None:
    planted = {each.name for each in mutants((ROOT / "lib" / "kinesis_efo" / f"{module}.py").read_text())}
    listed = [entry["fault"] for entry in LISTED[module]]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= planted, "the code has changed: run `make mutants` for this module"
    assert all(len(entry["why"]) > 10 for entry in LISTED[module])
