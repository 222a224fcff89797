"""What commands write to a file or a pipe."""

import sys
from io import StringIO

import pytest

from kinesis_efo_tools.cli import output


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("to", "padded"), [(StringIO, False), (Terminal, True)])
def test_lines_in_a_pipe_end_without_blanks(monkeypatch: pytest.MonkeyPatch, to: type[StringIO], padded: bool) -> None:
    monkeypatch.setattr(sys, "stdout", written := to())
    table = output.table(("", "what", "found"), [("passed", "clock", "short"), ("passed", "stream", "much longer")])
    output.answer(as_json=False, data={}, view=lambda: table)
    lines = written.getvalue().splitlines()
    assert [line.split()[-1] for line in lines if "passed" in line] == ["short", "longer"]
    assert any(line.endswith(" ") for line in lines) == padded
