"""checkov over complete environments, as stacks and as plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infra import ledger
from infra.app import synthesize, synthesize_bootstrap
from infra.checkov_gate import EXCUSED, scan_plans, scan_stacks
from infra.load import load_environment, load_environments
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.terraform.harness import Terraform

pytestmark = pytest.mark.slow
Deploy = Callable[..., Terraform]


def test_no_check_fails_on_any_complete_environment_and_some_does_on_a_planted_one(tmp_path: Path) -> None:
    environments = [load_environment(path) for path in (*sorted(DIRECTORY.glob("*.yaml")), EXAMPLE)]
    for environment in environments:
        if environment.protected:
            ledger.accept(tmp_path, environment)
    out = synthesize(environments, tmp_path, outdir=tmp_path / "out")
    names = {f"kinesis-efo-{environment.environment}" for environment in environments}
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    stack = json.loads(
        (out / manifest["stacks"]["kinesis-efo-dev"]["synthesizedStackPath"]).read_text(encoding="utf-8")
    )
    stack["resource"]["aws_kinesis_stream"]["flights"]["encryption_type"] = "NONE"
    (out / "planted.tf.json").write_text(json.dumps(stack), encoding="utf-8")
    manifest["stacks"]["planted"] = {"synthesizedStackPath": "planted.tf.json"}
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    # The bootstrap stacks are made of the same environments.
    bootstrap = synthesize_bootstrap(load_environments(DIRECTORY), tmp_path / "bootstrap")
    bootstraps = set(json.loads((bootstrap / "manifest.json").read_text(encoding="utf-8"))["stacks"])
    result = scan_stacks(out, bootstrap)
    assert set(result.passed) == {*names, "planted", *bootstraps}
    assert [failure.check for failure in result.failed] == ["CKV_AWS_43"]
    assert str(result.failed[0]).endswith("resource.flights in planted")
    assert {(each.check, each.resource.rpartition(".")[2]) for each in result.excused} == set(EXCUSED), (
        "a needless excuse"
    )


def test_no_check_fails_on_what_terraform_plans(deploy: Deploy, tmp_path: Path) -> None:
    plans = []
    for name in ("dev", "prod"):
        plan = deploy(load_environment(DIRECTORY / f"{name}.yaml")).plan()
        plans.append(tmp_path / f"{name}-plan.json")
        plans[-1].write_text(json.dumps(plan), encoding="utf-8")
    result = scan_plans(plans)
    assert result.failed == []
    assert set(result.passed) == {"plan-0", "plan-1"}
