"""The table of scenarios is whole, and what it and the table of facts name is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
ROW = re.compile(r"\| (\d+) \| (.+?) \| (.*?) \| (.*?) \|")
FACTS = (TESTS / "KINESIS.md").read_text()
ROWS = [match.groups() for line in (TESTS / "SCENARIOS.md").read_text().splitlines() if (match := ROW.fullmatch(line))]


def test_all_91_scenarios_have_a_test() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 92))
    assert not [number for number, _, tests, _ in ROWS if "`" not in tests]


NAMED = {name for _, _, tests, _ in ROWS for name in re.findall(r"`(.+?)`", tests)} | set(
    re.findall(r"`([^\s`]+::[^\s`]+)`", FACTS)
)


def test_every_test_of_the_contract_has_a_fact() -> None:
    contract = ast.parse((TESTS / "support" / "kinesis_contract.py").read_text())
    tests = {
        node.name for node in ast.walk(contract) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert tests == {name.split("::")[-1] for name in NAMED if name.startswith("support/kinesis_contract.py")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMED))
def test_named_tests_exist(name: str) -> None:
    path, *inside = name.split("::")
    assert inside[-1] in functions(TESTS / path, *inside[:-1])


@cache
def functions(path: Path, class_name: str | None = None) -> frozenset[str]:
    """The names of a module's functions, or of a class' with those that it inherits from the tests' support."""
    body = ast.parse(path.read_text()).body
    if class_name is None:
        return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    (found,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name)
    own = frozenset(node.name for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    bases = {base.id for base in found.bases if isinstance(base, ast.Name)}
    return own.union(
        *(functions(support, base) for base in bases for support in _support() if base in _classes(support))
    )


@cache
def _support() -> tuple[Path, ...]:
    return tuple((TESTS / "support").glob("*.py"))


@cache
def _classes(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
