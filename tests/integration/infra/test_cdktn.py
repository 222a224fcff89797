"""CDKTF's fork CDK Terrain synthesizes the same, so that moving to it changes no infrastructure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.emr.packing import find_uv
from tests.support.environments import DIRECTORY
from tests.support.terraform import schemas

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]

# Both engines resolve in one environment only with older constructs: the fork gets one of its own.
FORK = ("cdktn==0.24.0", schemas.WHEEL, "constructs>=10.6,<10.8", "pydantic>=2.12", "pyyaml>=6", "boto3>=1.43,<1.44")


def run(script: str, outdir: Path) -> str:
    """Run Python in the fork's environment, with this repository's `infra`."""
    packages = [argument for package in FORK for argument in ("--with", package)]
    command = [find_uv(), "run", "--quiet", "--isolated", "--no-project", *packages, "python", "-c", script]
    environment = {
        **os.environ,
        "KINESIS_EFO_CDK": "cdktn",
        "CDKTF_OUTDIR": str(outdir),
    }
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


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


def test_both_engines_synthesize_the_same(tmp_path: Path) -> None:
    main = f"import sys; from infra.__main__ import main; sys.exit(main(['--directory', {str(DIRECTORY)!r}]))"
    run(f"import infra.cdk; assert infra.cdk.ENGINE == 'cdktn'; {main}", tmp_path / "cdktn")
    environment = {**os.environ, "KINESIS_EFO_CDK": "cdktf", "CDKTF_OUTDIR": str(tmp_path / "cdktf")}
    subprocess.run([sys.executable, "-c", main], cwd=ROOT, env=environment, check=True, capture_output=True)
    ours, forks = stacks(tmp_path / "cdktf"), stacks(tmp_path / "cdktn")
    assert set(ours) == {"kinesis-efo-dev", "kinesis-efo-prod"}
    assert ours == forks


def test_schemas_are_those_of_the_wheel(tmp_path: Path) -> None:
    # The environment goes away with the command: the archive is copied while it is there.
    copied = tmp_path / "wheel.tgz"
    run(
        "import importlib.util, pathlib, shutil; "
        "here = pathlib.Path(importlib.util.find_spec('cdktn_provider_aws').origin).parent; "
        f"shutil.copy(next(here.glob('_jsii/*.tgz')), {str(copied)!r})",
        tmp_path,
    )
    rebuilt = schemas.as_text(schemas.schemas_of(copied))
    assert rebuilt == schemas.SCHEMAS.read_text(encoding="utf-8"), "run tests/support/terraform/schemas.py"
