"""A test that was not run is told of, or is a failure where every test must be run."""

from pathlib import Path

import pytest

from tests.support.missing import EVERYTHING, needed, not_run


def skipped(test: str, reason: str) -> pytest.TestReport:
    where = (test, 1, f"Skipped: {reason}")
    return pytest.TestReport(test, (test, 1, test), {}, outcome="skipped", longrepr=where, when="setup")


@pytest.mark.parametrize(("everything", "ends"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_missing_program_skips_or_fails(
    everything: str, ends: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVERYTHING, everything)
    with pytest.raises(ends, match="program is missing; make program"):
        needed(str(tmp_path / "program"), "make program")


def test_each_reason_has_one_line() -> None:
    terraform, cdktf = "terraform is missing; install it", "cdktf is missing; make cdktf"
    reports = [skipped("a.py", terraform), skipped("b.py", cdktf), skipped("b.py", terraform)]
    assert not_run(reports) == [f"2 tests NOT RUN: {terraform}", f"1 test NOT RUN: {cdktf}"]
    assert not_run([]) == []
