"""The types of what users call: mypy accepts right calls, and refuses wrong ones."""

import ast
import re
import subprocess
import sys
from pathlib import Path

CALLS = Path(__file__).resolve().parents[1] / "support" / "typed_calls.py"


def test_mypy_refuses_wrong_calls_only() -> None:
    # The cache is that of `make lint`: without one it takes 7 s of CPU, with one 1 s.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(CALLS)]
    run = subprocess.run(command, cwd=CALLS.parents[2], capture_output=True, text=True, check=False, timeout=300)
    found = set(re.findall(r":(\d+): error: .*\[([\w-]+)\]$", run.stdout, re.MULTILINE))
    lines = enumerate(CALLS.read_text().splitlines(), 1)
    assert found == {(str(number), line.partition("# E: ")[2]) for number, line in lines if "# E: " in line}, run.stdout
    right, wrong = (each.body for each in ast.parse(CALLS.read_text()).body if isinstance(each, ast.FunctionDef))
    assert len(right) >= 30 and len(wrong) == len(found) >= 30
