"""A stand-in for the command line of GitHub."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Calls = Callable[[], list[Any]]
ENTRY = {"status": "modified", "body": "theirs"}
"""What is on each of the two pages of every list."""

GH = """\
#!{python}
import json, os, re, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    sent = json.load(sys.stdin) if "--input" in arguments else None
    print(json.dumps([os.environ["GH_HOST"], arguments, sent]), file=log)
if refused := re.search("refuses-([0-9]+)", " ".join(arguments)):
    sys.exit("gh: Code Security must be enabled (HTTP " + refused[1] + ")")
print(json.dumps([[{entry}], [{entry}]] if "--slurp" in arguments else {{"artifacts": []}}))
"""


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Puts a fake `gh` on the PATH, and a repository into the environment; returns its calls: host, arguments, what is sent."""
    log, binary = tmp_path / "gh.log", tmp_path / "bin" / "gh"
    binary.parent.mkdir()
    binary.write_text(GH.format(python=sys.executable, log=str(log), entry=ENTRY), encoding="utf-8")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=os.pathsep)
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/lake")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://acme.ghe.com")
    return lambda: [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
