"""checkov over the committed environments, as stacks and as plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import ledger
from infra.app import synthesize
from infra.gate import main, scan_plans, scan_stacks
from infra.load import DIRECTORY, load_environment
from tests.support.terraform.harness import Terraform

pytestmark = pytest.mark.slow
Deploy = Callable[..., Terraform]


def test_no_check_fails_on_any_committed_environment(tmp_path: Path) -> None:
    environments = [load_environment(path) for path in sorted(DIRECTORY.glob("*.yaml"))]
    for environment in environments:
        if environment.protected:
            ledger.accept(tmp_path, environment)
    result = scan_stacks(synthesize(environments, tmp_path, outdir=tmp_path / "out"))
    assert result.failed == []
    assert set(result.passed) == {f"kinesis-efo-{name}" for name in ("dev", "prod", "example")}


def test_an_unencrypted_stream_does_not_pass(tmp_path: Path) -> None:
    out = synthesize([load_environment(DIRECTORY / "dev.yaml")], tmp_path, outdir=tmp_path / "out")
    path = out / "stacks" / "kinesis-efo-dev" / "cdk.tf.json"
    stack = json.loads(path.read_text(encoding="utf-8"))
    stack["resource"]["aws_kinesis_stream"]["flights"]["encryption_type"] = "NONE"
    path.write_text(json.dumps(stack), encoding="utf-8")
    assert main([str(out)]) == 1


def test_no_check_fails_on_what_terraform_plans(deploy: Deploy, tmp_path: Path) -> None:
    plans = []
    for name in ("dev", "prod"):
        plan = deploy(load_environment(DIRECTORY / f"{name}.yaml")).plan()
        plans.append(tmp_path / f"{name}-plan.json")
        plans[-1].write_text(json.dumps(plan), encoding="utf-8")
    result = scan_plans(plans)
    assert result.failed == []
    assert set(result.passed) == {"plan-0", "plan-1"}
