"""A team's first environment file: `infra new` writes it, and it works alone, as the first one of the documentation does."""

import json
from pathlib import Path

import pytest

from infra.__main__ import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of its own, in which nothing is deployed and nothing was synthesized."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path / "cdktf.out"))


def infra(*arguments: str) -> int:
    return main(["--directory", "environments", *arguments])


def synthesized(out: str) -> set[str]:
    return set(json.loads(Path(out, "manifest.json").read_text(encoding="utf-8"))["stacks"])


def test_an_empty_directory_with_one_new_file_is_synthesized() -> None:
    assert infra("new", "dev") == 0
    assert infra() == 0
    assert infra("synth", "--bootstrap") == 0
    assert (synthesized("cdktf.out"), synthesized("cdktf.bootstrap")) == ({"kinesis-efo-dev"}, set())


@pytest.mark.parametrize(("command", "name"), [((), "dev"), (("synth", "test"), "test"), (("up", "test"), "test")])
def test_empty_directory_names_the_remedy(
    command: tuple[str, ...], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert infra(*command) == 1
    assert f"environments: holds no environment file; write a first one with `make new ENV={name}`" in caplog.text


def test_a_new_file_overwrites_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert infra("new", "dev") == 0
    path = Path("environments", "dev.yaml")
    path.write_text("mine", encoding="utf-8")
    assert infra("new", "dev") == 1
    assert path.read_text(encoding="utf-8") == "mine"
    assert "environments/dev.yaml: is there already" in caplog.text


def test_a_name_that_no_environment_can_have_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert infra("new", "dev", "--project", "a-b") == 1
    assert "no project can have this name: it must " in caplog.text
    assert infra("new", "../prod") == 1
    assert "environment: no environment can have this name: it must match" in caplog.text
    assert not Path("environments").exists()


def test_new_protected_environment_needs_a_ledger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert infra("new", "prod") == 0
    assert "`make accept ENV=prod`" in caplog.text
    assert infra("accept", "prod") == 0
    assert infra() == 0
