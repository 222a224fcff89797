"""checkov is what its lock says, and sees no credentials."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from infra.errors import GateError
from kinesis_efo_infra.gate import locked_checkov
from tests.support.commands import program

CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "GITHUB_TOKEN",
)  # fmt: skip


def test_started_program_sees_no_credentials_and_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CREDENTIALS:
        monkeypatch.setenv(name, "secret")
    python = program(tmp_path / "python", 'env; echo "GIVEN=$*"')
    monkeypatch.setattr(locked_checkov, "install", lambda: python)
    said = locked_checkov.run([], str(tmp_path)).stdout
    seen = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert not set(CREDENTIALS) & set(seen)
    assert "secret" not in seen.values()
    assert seen["HOME"] == str(tmp_path), "there are credentials in files of the home"
    assert seen["CHECKOV_PARALLELIZATION_TYPE"] == "none", "else it forks, and may hang"
    assert "--skip-download" in said, "else it asks its vendor"


def test_endless_scan_is_stopped_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_checkov, "install", lambda: program(tmp_path / "python", "exec sleep 60"))
    with pytest.raises(GateError, match=r"did not end within 0\.2 s and was stopped.* it had said: nothing"):
        locked_checkov.run(["--directory", str(tmp_path)], str(tmp_path), timeout=0.2)


def test_package_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    project = tmp_path / "checkov"
    shutil.copytree(locked_checkov.LOCKED, project)
    lock = (project / "uv.lock").read_text(encoding="utf-8")
    start = lock.index('name = "aiodns"')
    end = lock.index("[[package]]", start)
    changed = re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", lock[start:end])
    (project / "uv.lock").write_text(lock[:start] + changed + lock[end:], encoding="utf-8")
    with pytest.raises(GateError, match=r"as .*uv\.lock says; it was not run: (.|\n)*aiodns"):
        locked_checkov.install(project, tmp_path / "environment")
    assert not list(tmp_path.glob("environment/lib/*/site-packages/checkov"))


def test_modules_are_compiled_once_when_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, made = tmp_path / "said", "$UV_PROJECT_ENVIRONMENT/bin"
    uv = program(tmp_path / "uv", f'echo "$@" >> {said}\nmkdir -p "{made}"\ntouch "{made}/python"')
    monkeypatch.setattr(locked_checkov, "find_uv", lambda: str(uv))
    for _ in range(2):
        assert locked_checkov.install(environment=tmp_path / "it") == tmp_path / "it" / "bin" / "python"
    first, second = said.read_text().splitlines()
    assert first == second.replace("--quiet", "--quiet --compile-bytecode") != second
    assert second.startswith("sync ")
    assert " --locked " in second


def test_missing_uv_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)  # as if it were not installed
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GateError, match=r"pip install uv"):
        locked_checkov.find_uv()
    uv = program(tmp_path / "uv", "exit")
    assert locked_checkov.find_uv() == str(uv)
