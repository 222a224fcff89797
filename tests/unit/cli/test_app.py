"""The command group: loading on demand, and how errors reach the terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinesis_efo import __version__
from kinesis_efo_tools.cli import app as cli
from kinesis_efo_tools.cli.arguments import aws_settings, whole_seconds
from tests.unit.test_manifest import polled


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in cli.COMMANDS)
    assert _run(capsys, "--version")[:2] == (0, f"kinesis-efo {__version__}\n")


WRONG = {
    "lokal": "lokal",
    "shard": "'shards'",
    "lag --wacth": "--watch",
    "leases relase": "'release'",
    "top -m none.json --interval 2": "2 of what? Say 2s, 2m or 2ms",
    "tail --stream orders --from 10": "10 of what? Say 10s, 10m or 10ms",
    "lag -m none.json --fail-above 60": "60 of what? Say 60s, 60m or 60ms",
    "leases reset -m none.json --to TRIM_HORIZON --lease-timeout 10 --yes": "10 of what? Say 10s, 10m or 10ms",
    "tail --stream orders --from 1795699946": "did you mean the time 1795699946000?",
    "tail --stream orders --until 1795699946": "did you mean the time 1795699946000?",
    "tail --stream orders --from AT_TIMESTAMP:1795699946": "did you mean 1795699946000, which is 2026-",
    "tail --stream orders --until 1795699946.480": "did you mean 1795699946480, which is 2026-",
    "leases reset -m none.json --to AT_TIMESTAMP:1795699946": "did you mean 1795699946000, which is 2026-",
    "leases reset -m none.json --to 1795699946": "did you mean 1795699946000, which is 2026-",
}


@pytest.mark.parametrize(("words", "said"), WRONG.items())
def test_wrong_word_is_answered_with_the_right_one(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    code, _, err = _run(capsys, *words.split())
    assert (code, said in " ".join(err.split())) == (2, True)


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        (("lagg", "--json"), "UsageError", 2),
        (("lag", "--json"), "UsageError", 2),  # without a manifest
        (("lag", "-m", "none.json", "--interval", "often", "--json"), "UsageError", 2),
        (("lag", "-m", "none.json", "--json"), "ManifestError", 1),
        (("leases", "release", "-m", "none.json", "--json"), "ManifestError", 1),
    ],
)
def test_with_json_an_error_is_json_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kind: str, code: int
) -> None:
    monkeypatch.delenv("KINESIS_EFO_MANIFEST", raising=False)
    ended, out, err = _run(capsys, *words)
    error = json.loads(err)["error"]
    assert (ended, out, error["exitCode"], error["kind"]) == (code, "", code, kind)
    assert error["message"]


def test_former_names_work_with_a_warning(command: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.write_text(PROBE.format("print(self.label)").replace("--label", "--application"))
    code, out, err = _run(capsys, "probe", "--app=ab")
    assert (code, out, err) == (0, "abab\n", "kinesis-efo: --app is --application now\n")
    assert whole_seconds("--grace", "", "").parser("60") == 60
    assert capsys.readouterr().err == "kinesis-efo: --grace 60 is --grace 60s now\n"


def test_error_is_one_message_without_debug(command: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.write_text(PROBE.format("raise ManifestError('no manifest')"))
    assert _run(capsys, "probe")[::2] == (1, "kinesis-efo: no manifest\n")
    code, _, err = _run(capsys, "probe", "--debug")
    assert code == 1
    assert err.startswith("Traceback")
    assert err.endswith("kinesis-efo: no manifest\n")


def test_profile_is_preferred_to_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "AKIA")
    monkeypatch.setenv("AWS_PROFILE", "default")
    aws_settings(profile="lake")
    assert (os.environ["AWS_PROFILE"], os.environ.get("AWS_ACCESS_KEY_ID")) == ("lake", None)


@pytest.mark.slow
def test_help_imports_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys\n"
        "from kinesis_efo_tools.cli.app import COMMANDS, load, main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "assert not [each.module for each in COMMANDS.values() if each.module in sys.modules]\n"
        "for name in sorted(COMMANDS):\n"
        "    below = getattr(load(name, COMMANDS[name]), 'commands', {})\n"
        "    for words in [[name], *([name, each] for each in below)]:\n"
        "        try:\n            main([*words, '--help'])\n"
        "        except SystemExit as ended:\n            assert not ended.code, words\n"
        "heavy = 'pandas pyarrow numpy pyspark aiobotocore botocore aiohttp asyncio moto'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert asked.stdout.splitlines()[-1] == "[]"
    assert "export-kcl [OPTIONS]" in asked.stdout


@pytest.mark.slow
def test_shell_completes_commands_and_streams(tmp_path: Path) -> None:
    manifest = tmp_path / "lake.json"
    manifest.write_text(json.dumps(polled()))
    assert "shards" in _complete("kinesis-efo sha")
    assert str(manifest) in _complete(f"kinesis-efo shards --manifest {tmp_path}/")
    assert _complete(f"kinesis-efo shards --manifest {manifest} --stream o") == ["orders"]
    # What cannot be read offers nothing, and says nothing into the prompt.
    assert _complete(f"kinesis-efo shards --manifest {tmp_path}/none.json --stream o") == []


def _complete(words: str) -> list[str]:
    """What bash would offer for the last word."""
    environment = {
        **os.environ,
        "_KINESIS_EFO_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    script = "import sys; sys.argv[0] = 'kinesis-efo'; from kinesis_efo_tools.cli import main; main()"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    return found.stdout.split()


PROBE = """
import typer
from typing import Annotated
from kinesis_efo_tools.cli.declaring import Group, command
from kinesis_efo.errors import ManifestError

app = typer.Typer(add_completion=False)

def doubled(*, times: int = 2, name: Annotated[str, typer.Option("--label")] = "x") -> str:
    return times * name

@command(app.command())
class Probe:
    '''Probes.'''

    label: Annotated[str, Group(doubled)]
    depth: int = 1

    def __call__(self) -> None:
        {}
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a command called `probe`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "probe", cli.Entry("probe_command", "Probes."))
    monkeypatch.delitem(sys.modules, "probe_command", raising=False)
    return tmp_path / "probe_command.py"


def test_group_of_options_is_one_field(command: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.write_text(PROBE.format("print(self.depth, self.label)"))
    assert _run(capsys, "probe", "--times", "3", "--label", "ab", "--depth", "4")[:2] == (0, "4 ababab\n")
    assert _run(capsys, "probe")[:2] == (0, "1 xx\n")
    _, out, _ = _run(capsys, "probe", "--help")
    assert out.index("Probes.") < out.index("--depth") < out.index("--times"), "what is its own comes first"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_dependencies_are_named_with_a_remedy(missing: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from kinesis_efo_tools.cli import main; main(['--help'])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "kinesis-efo: the command line needs its dependencies: pip install 'kinesis-efo[cli]'\n"
