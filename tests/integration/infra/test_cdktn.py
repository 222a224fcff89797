"""CDKTF's fork CDK Terrain synthesizes the same, so that moving to it changes no infrastructure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.isolated import FORK
from tests.support.missing import needed
from tests.support.terraform import schemas

ROOT = Path(__file__).resolve().parents[3]

SYNTHESIZE = """
import sys
from pathlib import Path
from infra import ledger
from infra.app import synthesize, synthesize_bootstrap
from infra.load import load_environment, load_environments
out, directory, example = map(Path, sys.argv[1:])
environments = load_environments(directory)
synthesize(environments, directory, outdir=out / "streaming")
ledger.accept(out, whole := load_environment(example))
synthesize([whole], out, outdir=out / "example")
synthesize_bootstrap(environments, out / "bootstrap")
"""


def fork() -> str:
    """The Python of the environment with the fork."""
    return needed(str(FORK / "bin" / "python"), "make .venv-cdktn/.full")


def synthesized(python: str, out: Path) -> Mapping[str, Any]:
    """Every stack that an environment with one engine synthesizes, by its path."""
    environment = {**os.environ, "KINESIS_EFO_CDK": ""}
    out.mkdir()
    command = [python, "-c", SYNTHESIZE, str(out), str(DIRECTORY), str(EXAMPLE)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = out.glob("*/stacks/*/cdk.tf.json")
    return {str(path.relative_to(out).parent): json.loads(path.read_text(encoding="utf-8")) for path in found}


def engines(stacks: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    """Take out of stacks what names the engine: its version, and the provider's source and version."""
    return {
        (
            stack["//"]["metadata"].pop("version"),
            (provider := stack["terraform"].pop("required_providers")["aws"])["source"],
            provider["version"],
        )
        for stack in stacks.values()
    }


def test_both_engines_synthesize_the_same(tmp_path: Path) -> None:
    ours, forks = synthesized(sys.executable, tmp_path / "cdktf"), synthesized(fork(), tmp_path / "cdktn")
    assert len(ours) == 5, "two environments, each with its bootstrap, and the example"
    # What docs/declare-your-streams.md says of them.
    assert engines(ours) == {("0.21.0", "aws", "6.25.0")}
    assert engines(forks) == {("0.24.0", "hashicorp/aws", "6.69.1")}
    assert ours == forks


def test_schemas_are_those_of_the_wheel() -> None:
    fork()
    (wheel,) = FORK.glob("lib/python*/site-packages/cdktn_provider_aws/_jsii/*.jsii.tgz")
    rebuilt = schemas.as_text(schemas.schemas_of(wheel))
    assert rebuilt == schemas.SCHEMAS.read_text(encoding="utf-8"), "run tests/support/terraform/schemas.py"


@pytest.mark.parametrize("missing", ["cdktf", "cdktf_cdktf_provider_aws"])
def test_neither_environment_has_the_other_engine(missing: str) -> None:
    script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({missing!r}) is not None)"
    assert subprocess.run([fork(), "-c", script], check=False).returncode == 0
