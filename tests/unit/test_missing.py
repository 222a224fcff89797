"""A test that was not run is told of, or is a failure where every test must be run."""

from pathlib import Path

import pytest

from tests.support.missing import EVERYTHING, needed, not_run


def skipped(test: str, reason: str) -> pytest.TestReport:
    where = (test, 1, f"Skipped: {reason}")
    return pytest.TestReport(test, (test, 1, test), {}, outcome="skipped", longrepr=where, when="setup")


def test_a_program_that_is_there_is_found(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert needed(str(program), "make program") == str(program)


def test_a_test_without_its_program_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERYTHING, raising=False)
    with pytest.raises(pytest.skip.Exception, match="program is missing; make program"):
        needed(str(tmp_path / "program"), "make program")


def test_where_every_test_must_be_run_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVERYTHING, "1")
    with pytest.raises(pytest.fail.Exception, match="program is missing; make program"):
        needed(str(tmp_path / "program"), "make program")


def test_each_reason_has_one_line() -> None:
    terraform, cdktf = "terraform is missing; install it", "cdktf is missing; make cdktf"
    reports = [skipped("a.py", terraform), skipped("b.py", cdktf), skipped("b.py", terraform)]
    assert not_run(reports) == [f"2 tests NOT RUN: {terraform}", f"1 test NOT RUN: {cdktf}"]
    assert not_run([]) == []
