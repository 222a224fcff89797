"""CDKTF's fork CDK Terrain synthesizes the same, so that moving to it changes no infrastructure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import DIRECTORY
from tests.support.isolated import CONSTRUCTS, FORK, isolated
from tests.support.terraform import schemas

ROOT = Path(__file__).resolve().parents[3]

MAIN = f"from infra.__main__ import main; code = main(['--directory', {str(DIRECTORY)!r}])"


@pytest.fixture(scope="module")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the fork synthesizes of this repository's `infra`, and beside it the archive in its provider's wheel."""
    outdir = tmp_path_factory.mktemp("cdktn")
    # The environment goes away with the command: the archive is copied while it is there.
    script = f"""
import importlib.util, pathlib, shutil, sys
import infra.cdk
assert infra.cdk.ENGINE == "cdktn"
{MAIN}
here = pathlib.Path(importlib.util.find_spec("cdktn_provider_aws").origin).parent
from infra.cdk import App, AwsProvider, TerraformStack
from kinesis_efo_infra import Stream
app = App(outdir={str(outdir / "warm")!r})
stack = TerraformStack(app, "warm")
AwsProvider(stack, "aws", region="eu-west-1")
Stream(stack, "orders", name="orders", warm_throughput_mib=100, encryption_key="aws-managed")
app.synth()
shutil.copy(next(here.glob("_jsii/*.tgz")), {str(outdir / "wheel.tgz")!r})
sys.exit(code)
"""
    command = [*isolated(*FORK), "-c", script]
    environment = {**os.environ, "KINESIS_EFO_CDK": "cdktn", "CDKTF_OUTDIR": str(outdir), "PYTHONPATH": str(CONSTRUCTS)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return outdir


def stacks(outdir: Path) -> dict[str, Any]:
    """Synthesized stacks without what names the engine: its version, and the provider's source and version."""
    found = {}
    for path in outdir.glob("stacks/*/cdk.tf.json"):
        stack = json.loads(path.read_text(encoding="utf-8"))
        version = stack["//"]["metadata"].pop("version")
        provider = stack["terraform"].pop("required_providers")
        assert version
        assert provider["aws"]["source"] in ("aws", "hashicorp/aws")
        found[path.parent.name] = stack
    return found


def test_both_engines_synthesize_the_same(fork: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "KINESIS_EFO_CDK": "cdktf",
        "CDKTF_OUTDIR": str(tmp_path),
        "PYTHONPATH": str(CONSTRUCTS),
    }
    command = [sys.executable, "-c", f"import sys; {MAIN}; sys.exit(code)"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    ours, forks = stacks(tmp_path), stacks(fork)
    assert set(ours) == {"kinesis-efo-dev", "kinesis-efo-prod"}
    assert ours == forks


def test_its_provider_knows_warm_throughput(fork: Path) -> None:
    stack = json.loads((fork / "warm" / "stacks" / "warm" / "cdk.tf.json").read_text(encoding="utf-8"))
    (stream,) = stack["resource"]["aws_kinesis_stream"].values()
    assert stream["warm_throughput_mib_ps"] == 100
    assert stream["stream_mode_details"] == {"stream_mode": "ON_DEMAND"}


def test_schemas_are_those_of_the_wheel(fork: Path) -> None:
    rebuilt = schemas.as_text(schemas.schemas_of(fork / "wheel.tgz"))
    assert rebuilt == schemas.SCHEMAS.read_text(encoding="utf-8"), "run tests/support/terraform/schemas.py"
