"""The page on why the guarantees hold names code and checks that exist, some of both for each invariant, and stays short."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

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
INVARIANTS = re.split(r"^### \d+\. ", PAGE.partition("\n## What the argument does not cover")[0], flags=re.MULTILINE)[
    1:
]


def named(invariant: str, label: str) -> list[str]:
    """What the paragraph with a label names."""
    (paragraph,) = re.findall(rf"^{label}:\s(.*?)\n(?:\n|\Z)", invariant + "\n", re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", paragraph)


FUNCTIONS = sorted({name for each in INVARIANTS for name in named(each, "Code")})
CHECKS = sorted({name for each in INVARIANTS for name in named(each, "Property") if "::" in name})


def test_each_invariant_names_code_and_checks_of_searches() -> None:
    assert 8 <= len(INVARIANTS) <= 14
    for each in INVARIANTS:
        assert 1 <= len(named(each, "Code")) <= MOST_FUNCTIONS, each
        assert any(name.startswith(SEARCHES) for name in named(each, "Property")), each


@pytest.mark.parametrize("name", FUNCTIONS)
def test_code_of_each_invariant_exists(name: str) -> None:
    module, _, path = name.partition(":")
    found = reduce(getattr, path.split("."), import_module(f"kinesis_efo.{module}"))
    made = found.fget if isinstance(found, property) else found
    assert callable(made)
    assert made.__module__ == f"kinesis_efo.{module}"


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_each_invariant_exist(name: str) -> None:
    path, _, check = name.partition("::")
    for part in check.split("."):
        assert re.search(rf"^ *(?:class|(?:async )?def) {part}\b", (ROOT / path).read_text(), re.MULTILINE)


def test_files_on_the_page_exist() -> None:
    files = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_deciding_code_is_small_and_pure() -> None:
    (paragraph,) = re.findall(r"^The pure decision logic.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    places = [ROOT / "lib" / "kinesis_efo" / name for name in re.findall(r"`([^`]+)`", paragraph)]
    files = [path for each in places for path in (each.glob("*.py") if each.is_dir() else [each])]
    assert len(files) >= 15
    assert sum(len(path.read_text().splitlines()) for path in files) < MOST_LINES
    for path in files:
        imported = re.findall(r"^ *(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
        assert not {name.partition(".")[0] for name in imported} & IMPURE, path
        assert "kinesis_efo.clock" not in imported, path


def test_the_page_stays_within_its_bound() -> None:
    assert len(PAGE.split()) <= MOST_WORDS
