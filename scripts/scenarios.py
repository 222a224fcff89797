"""Writes tests/SCENARIOS.md: the tests of each scenario, of each row of the page on failures and of each invariant.

A test names what it shows in a comment above it, `# Shows 16, keys change, invariant 4.`; tests/scenarios.toml has the names.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ROOT / "tests"
FAILURES: Final = ROOT / "docs" / "failures.md"
SECTIONS: Final = ("Records that retention removed", "Clocks", "Outages, kills and restarts")
"""The sections of that page whose rows have tests."""
WHY: Final = ROOT / "docs" / "why-it-holds.md"
_LINE: Final = re.compile(r"^class (\w+)|^ *# Shows (.+)\.$|^( *)(?:async )?def (test_\w+)", re.MULTILINE)


def marked() -> Iterator[tuple[str, Sequence[str]]]:
    """Each test, as `path::test` or `path::Class::test`, with the names of what it shows."""
    for path in sorted(TESTS.rglob("*.py")):
        owner, names = "", list[str]()
        for line in _LINE.finditer(path.read_text()):
            new_owner, new_names, indent, test = line.groups()
            if new_owner:
                owner = f"{new_owner}::"
            elif new_names:
                names = new_names.split(", ")
            else:
                yield f"{path.relative_to(TESTS)}::{owner if indent else ''}{test}", names
                names = []


def shown() -> Mapping[str, list[str]]:
    """The tests of each name."""
    found = defaultdict[str, list[str]](list)
    for test, names in marked():
        for name in names:
            found[name].append(test)
    return found


def scenarios() -> Mapping[str, Mapping[str, str]]:
    """The scenarios of other clients by their number, in areas."""
    areas: Mapping[str, Mapping[str, str]] = _declared()["scenarios"]
    return areas


def failures() -> Mapping[str, Mapping[str, str]]:
    """The rows of the page on failures, in its sections, by the name that tests use; a row without a name stands for itself."""
    text, names = FAILURES.read_text(), _declared()["failures"]
    sections = {}
    for title in SECTIONS:
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)[1:]
        sections[title] = {next((name for name in names if row.startswith(names[name])), row): row for row in rows}
    return sections


def invariants() -> Mapping[str, str]:
    """The invariants of the page on why it holds."""
    headings = re.findall(r"^### ((\d+)\. .+)$", WHY.read_text(), re.MULTILINE)
    return {f"invariant {number}": text for text, number in headings}


def page() -> str:
    """The page as a whole."""
    found, remarks = shown(), _declared()["remarks"]
    lines = [
        "# Scenarios, promises and their tests",
        "",
        "`make docs` writes this page from the comments `# Shows ...` above tests. Paths are relative to `tests/`. Random",
        "mixtures of all this are in `chaos/test_seeds*.py`.",
        "",
        "The test suites of AWS's Spark connector, Flink's connector (the present and the former one), the KCL and Bento show",
        "what their users ran into. Each scenario in A to H is one of theirs, or several similar ones. A remark says where this",
        "library differs.",
    ]
    for area, rows in scenarios().items():
        lines += ["", f"## {area}", "", "| | scenario | tests | remark |", "|---|---|---|---|"]
        lines += [
            f"| {each} | {text} | {_cell(found[each])} | {remarks.get(each, '')} |" for each, text in rows.items()
        ]
    promises = {f"Failures: {title}": rows for title, rows in failures().items()} | {"Why it holds": invariants()}
    for title, rows in promises.items():
        lines += ["", f"## {title}", "", "| | tests |", "|---|---|"]
        lines += [f"| {text} | {_cell(found[name])} |" for name, text in rows.items()]
    return "\n".join([*lines, ""])


def _cell(tests: Iterable[str]) -> str:
    return "<br>".join(f"`{test}`" for test in tests)


def _declared() -> Mapping[str, Any]:
    return tomllib.loads((TESTS / "scenarios.toml").read_text())
