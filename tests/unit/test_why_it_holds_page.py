"""The page on why the guarantees hold names code and checks that exist, some of both for each invariant, and stays short."""

import ast
import re
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "why-it-holds.md").read_text()
MOST_WORDS = 1_060
"""A reader checks the argument in an afternoon."""
MOST_FUNCTIONS = 4
SEARCHES = ("tests/emulator/", "tests/unit/records/test_decoder.py::test_ranges_tile")
"""Oracles of the searches, and one search of its own."""
MOST_LINES = 3_400
"""A senior engineer reads what decides in an afternoon."""
IMPURE = {"asyncio", "http", "os", "pathlib", "random", "select", "socket", "ssl", "subprocess", "threading", "time"}


class Invariant(NamedTuple):
    """A numbered section: its number, the functions that it names, and those that check its property."""

    number: int
    functions: list[str]
    checks: list[str]


def invariants() -> list[Invariant]:
    numbers_and_texts = re.split(
        r"^### (\d+)\. ", PAGE.partition("\n## What the argument does not cover")[0], flags=re.MULTILINE
    )[1:]
    return [
        Invariant(int(number), names(text, "Code"), re.findall(r"`([^`]+::[^`]+)`", paragraph(text, "Property")))
        for number, text in zip(numbers_and_texts[::2], numbers_and_texts[1::2], strict=True)
    ]


def names(text: str, label: str) -> list[str]:
    """The names in the paragraph with a label; nothing else may be in it."""
    found = re.findall(r"`([^`]+)`", whole := paragraph(text, label))
    assert ", ".join(f"`{name}`" for name in found) == " ".join(whole.split()), f"{label} has more than names"
    return found


def paragraph(text: str, label: str) -> str:
    """The paragraph with a label, without the label."""
    (found,) = re.findall(rf"^{label}:\s(.*?)\n(?:\n|\Z)", text + "\n", re.MULTILINE | re.DOTALL)
    return str(found)


INVARIANTS = invariants()
FUNCTIONS = sorted({name for each in INVARIANTS for name in each.functions})
CHECKS = sorted({name for each in INVARIANTS for name in each.checks})


def function(name: str) -> Any:
    """The function or property behind `module:Class.method`, which its module defines."""
    module, _, path = name.partition(":")
    found = reduce(getattr, path.split("."), import_module(f"kinesis_efo.{module}"))
    made = found.fget if isinstance(found, property) else found
    assert callable(made), f"{name} is no function"
    assert made.__module__ == f"kinesis_efo.{module}", f"{name} is of {made.__module__}"
    return found


@cache
def defined_in(path: str) -> frozenset[str]:
    """The functions of a file: `name`, or `Class.name`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, FUNCTION)}
        elif isinstance(node, FUNCTION):
            found.add(node.name)
    return frozenset(found)


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def is_there(check: str) -> bool:
    """Whether a function exists, by `path::name`."""
    path, _, name = check.partition("::")
    return (ROOT / path).is_file() and name in defined_in(path)


def test_each_invariant_names_code_and_checks_of_searches() -> None:
    assert [each.number for each in INVARIANTS] == list(range(1, len(INVARIANTS) + 1))
    assert 8 <= len(INVARIANTS) <= 14
    for each in INVARIANTS:
        assert 1 <= len(each.functions) <= MOST_FUNCTIONS, each.number
        assert each.checks, each.number
        assert any(name.startswith(SEARCHES) for name in each.checks), each.number


@pytest.mark.parametrize("name", FUNCTIONS)
def test_code_of_each_invariant_exists(name: str) -> None:
    function(name)


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_each_invariant_exist(name: str) -> None:
    assert is_there(name)


def test_files_on_the_page_exist() -> None:
    files = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def deciding() -> list[Path]:
    """The files that the page names as those that decide."""
    (paragraph,) = re.findall(r"^The pure decision logic.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    named = [ROOT / "lib" / "kinesis_efo" / name for name in re.findall(r"`([^`]+)`", paragraph)]
    return [path for each in named for path in (each.glob("*.py") if each.is_dir() else [each])]


def imported(path: Path) -> set[str]:
    """The modules that a module imports, by their names in full."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{each.name}" for each in names)}
    return found


def test_deciding_code_is_small_and_pure() -> None:
    files = deciding()
    assert len(files) >= 15
    assert sum(len(path.read_text().splitlines()) for path in files) < MOST_LINES
    for path in files:
        names = imported(path)
        assert not {name.partition(".")[0] for name in names} & IMPURE, path
        assert "kinesis_efo.clock" not in names, path


def test_the_page_stays_within_its_bound() -> None:
    assert len(PAGE.split()) <= MOST_WORDS
