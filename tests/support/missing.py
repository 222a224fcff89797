"""What tests need and `make test` does not bring: without it, its tests are skipped, and the end of the run says so."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.isolated import NODE

EVERYTHING = "KINESIS_EFO_TEST_EVERYTHING"
"""If this variable is set, what is missing is a failure: the workflow on GitHub runs every test."""
_PREFIX = "Skipped: "


def needed(program: str, remedy: str) -> str:
    """Find a program; skips the test if it is missing.

    Args:
        program: Its name, to find on the PATH, or its path.
        remedy: How to install it.
    """
    found = shutil.which(program)
    if found is None:
        not_here(f"{Path(program).name} is missing; {remedy}")
    return found


def not_here(what: str) -> NoReturn:
    """Skip the test, which cannot run here.

    Args:
        what: What is missing, and what to do about it.
    """
    if os.environ.get(EVERYTHING):
        pytest.fail(what)
    pytest.skip(what)


def terraform() -> str:
    """The path of Terraform."""
    return needed("terraform", "install Terraform 1.10 or newer, and put it on the PATH")


def make() -> str:
    """The path of GNU Make."""
    return needed("make", "apt-get install make")


def package_of_node(name: str) -> None:
    """Skip the test if the packages of Node are missing.

    Args:
        name: What the test needs of them.
    """
    # npm writes this file when everything else is there. It may fail half way, and leaves what looks like packages.
    if not (NODE / "node_modules" / ".package-lock.json").is_file():
        not_here(f"{name} is missing; python -m tests.support.isolated, with npm's registry in reach")


def not_run(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """One line for each reason why tests were skipped."""
    reasons: Counter[str] = Counter()
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix(_PREFIX)] += 1
    return [f"{count} {'test' if count == 1 else 'tests'} NOT RUN: {reason}" for reason, count in reasons.items()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end which tests were skipped, and why."""
    if lines := not_run(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("not run")
        for line in lines:
            terminalreporter.line(line, yellow=True)
