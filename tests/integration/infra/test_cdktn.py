"""CDKTF's fork CDK Terrain synthesizes the same, so that moving to it changes no infrastructure."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.settings import ledger
from infra.settings.load import load_environment
from scripts.engines import PYTHONS, Engine, Stack, synthesized, verdict
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.missing import needed
from tests.support.terraform import schemas

Stacks = Mapping[str, Stack]

ROOT = Path(__file__).resolve().parents[3]


def fork() -> Path:
    """The Python of the environment with the fork."""
    return Path(needed(str(PYTHONS["cdktn"]), "make .venv-cdktn/.full"))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stacks, Stacks]:
    """What both engines synthesize of the tests' environments and of one with every setting."""
    fork()
    out = tmp_path_factory.mktemp("engines")
    shutil.copytree(DIRECTORY, directory := out / "environments", ignore=shutil.ignore_patterns("*.py"))
    example = directory / EXAMPLE.name
    example.write_text(EXAMPLE.read_text(encoding="utf-8").replace("after: staging", "after: dev"), encoding="utf-8")
    ledger.accept(directory, load_environment(example))
    return synthesized("cdktf", directory, out / "cdktf"), synthesized("cdktn", directory, out / "cdktn")


def test_both_engines_synthesize_the_same(both: tuple[Stacks, Stacks]) -> None:
    ours, forks = both
    assert {name.partition("/")[0] for name in ours} == {"streaming", "bootstrap"}
    assert len(ours) == 6, "three environments, each with a pipeline"
    # The versions are those that docs/how-to/engines.md tells.
    code, told = verdict(ours, forks)
    assert code == 0, told
    assert told.splitlines() == [
        "6 stacks, and no difference but these:",
        "cdktf 0.21.0: AWS provider 6.25.0 from aws",
        "cdktn 0.24.0: AWS provider 6.69.1 from hashicorp/aws",
    ]


def test_difference_is_a_failure_and_shown() -> None:
    first = Stack(Engine("0.21.0", "aws", "6.25.0"), {"output": {"a": 1}, "resource": {}})
    second = Stack(Engine("0.24.0", "hashicorp/aws", "6.69.1"), {"output": {"a": 2}, "resource": {}})
    code, told = verdict({"dev": first}, {"dev": second})
    assert code == 1
    assert told.startswith("--- cdktf/dev\n+++ cdktn/dev\n")
    assert '-    "a": 1\n+    "a": 2\n' in told
    code, told = verdict({"dev": first, "prod": first}, {"dev": first})
    assert code == 1
    assert told.startswith("--- cdktf/prod\n+++ cdktn/prod\n")


COUNTING = """
const loaded = () => Object.keys(require.cache).filter(file => file.includes("provider-aws")).length;
process.on("exit", () => require("node:fs").appendFileSync(process.env.COUNTED, `${loaded()} `));
"""


def test_provider_of_the_fork_has_warm_throughput(tmp_path: Path) -> None:
    (counting := tmp_path / "counting.cjs").write_text(COUNTING, encoding="utf-8")
    counted = tmp_path / "counted"
    script = f"""
from kinesis_efo_infra import Stream
from cdktf import App, TerraformStack
from cdktf_cdktf_provider_aws.provider import AwsProvider
app = App(outdir={str(tmp_path)!r})
stack = TerraformStack(app, "warm")
AwsProvider(stack, "aws", region="eu-west-1")
Stream(stack, "orders", name="orders", warm_throughput_mib=100, encryption_key="aws-managed")
app.synth()
"""
    counts = {"NODE_OPTIONS": f"--require {counting}", "COUNTED": str(counted)}
    subprocess.run([fork(), "-c", script], cwd=ROOT, check=True, env={**os.environ, **counts})
    stack = json.loads((tmp_path / "stacks" / "warm" / "cdk.tf.json").read_text(encoding="utf-8"))
    (stream,) = stack["resource"]["aws_kinesis_stream"].values()
    assert stream["warm_throughput_mib_ps"] == 100
    assert stream["stream_mode_details"] == {"stream_mode": "ON_DEMAND"}
    assert 0 < max(map(int, counted.read_text(encoding="utf-8").split())) < 100, (
        "files of 2,300 resources and data sources"
    )


def test_schemas_are_those_of_the_wheel() -> None:
    site = fork().parents[1] / "lib"
    (wheel,) = site.glob("python*/site-packages/cdktn_provider_aws/_jsii/*.jsii.tgz")
    rebuilt = schemas.as_text(schemas.schemas_of(wheel))
    assert rebuilt == schemas.SCHEMAS.read_text(encoding="utf-8"), "run tests/support/terraform/schemas.py"
