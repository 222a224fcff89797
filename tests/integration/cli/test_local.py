"""`kinesis-efo local` as a process: what it declares, its ready file, the background, and its end."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kinesis_efo_local import LocalAws
from tests.integration.cli.conftest import Result
from tests.support.commands import outcome

PROGRAM = str(Path(sysconfig.get_path("scripts")) / "kinesis-efo")


class Shell:
    """Runs commands in a directory, with a place of its own for what runs in the background."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._environment["XDG_STATE_HOME"] = str(directory / "state")

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return outcome([PROGRAM, *line.split()], seconds=60, cwd=self.directory, env=self._environment)

    @property
    def in_background(self) -> list[Path]:
        return sorted((self.directory / "state" / "kinesis-efo").glob("*"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    for path in shell.in_background:
        if path.suffix == ".json":
            psutil.Process(json.loads(path.read_text())["pid"]).kill()


def exports(text: str) -> dict[str, str]:
    """The variables, of which every line must be one."""
    return dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines() if line.startswith("export "))


@pytest.mark.slow
def test_a_first_hour_in_the_background(
    shell: Shell, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = shell.directory / "ready.json"
    streams = f"--stream flights:4 --application lake --ready-file {ready}"
    started = shell.run(f"local --detach --env --port 0 --data-dir data {streams}")
    assert (started.returncode, started.stderr) == (0, "")
    variables = exports(started.stdout)
    assert len(variables) == len(started.stdout.splitlines())
    manifest = shell.directory / "lake-local.json"
    assert variables["KINESIS_EFO_MANIFEST"] == str(manifest)
    process = psutil.Process(json.loads(ready.read_text())["pid"])
    # A second shell that starts it once more learns how to use the one that runs.
    port = variables["AWS_ENDPOINT_URL"].rpartition(":")[2]
    refused = shell.run(f"local --detach --env --port {port}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"`kinesis-efo local stop --port {port}`" in refused.stderr
    assert refused.stderr.endswith(
        "\n  export " + " ".join(f"{name}={value}" for name, value in variables.items()) + "\n"
    )
    # What it says to do next.
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run("put", "-s", "flights", stdin='{"hello": "world"}\n').code == 0
    checked = run("manifest", "check")
    assert checked.code == 0, checked.out
    first = manifest.read_text()
    stopped = shell.run("local stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"the local AWS at {variables['AWS_ENDPOINT_URL']} has ended\n")
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert (shell.in_background, ready.exists()) == ([], False)
    # Again, with what was kept and the ARNs that the manifest has; here a person reads what it says.
    again = shell.run(f"local --detach --port 0 --manifest {manifest} --data-dir data")
    assert again.returncode == 0, again.stderr
    assert "next, in another shell:" in again.stderr
    assert 'echo \'{"hello": "world"}\' | kinesis-efo put -s flights\n  kinesis-efo doctor\n' in again.stderr
    assert manifest.read_text() == first
    monkeypatch.setenv("AWS_ENDPOINT_URL", exports(again.stdout)["AWS_ENDPOINT_URL"])
    assert run("manifest", "check").code == 0
    assert run("tail", "-s", "flights", "--from", "TRIM_HORIZON", "--limit", 1).out == '{"hello": "world"}\n'
    assert shell.run("local stop --all").returncode == 0


def test_stop_without_a_server_is_an_error(shell: Shell) -> None:
    # Left by one that was killed: its process number may be another's by now.
    left = shell.directory / "state" / "kinesis-efo" / "local-left.json"
    left.parent.mkdir(parents=True)
    document = {"pid": os.getpid(), "started": 1.0, "endpointUrl": "http://127.0.0.1:1", "environment": {}}
    left.write_text(json.dumps({**document, "manifest": None, "streams": []}))
    done = shell.run("local stop")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"kinesis-efo: no local AWS runs in the background (looked into {left.parent}, which XDG_STATE_HOME and HOME decide on); "
    )
    assert shell.in_background == []


@pytest.mark.long
def test_failed_start_in_the_background_has_its_reason(shell: Shell) -> None:
    with LocalAws() as other:
        failed = shell.run(f"local --detach --port {other.port}")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith(f"kinesis-efo: local cannot listen on 127.0.0.1:{other.port}: ")
    assert shell.in_background == []
