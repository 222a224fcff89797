"""Environments are deployed after those that their `after` names."""

from pathlib import Path
from typing import Any

import pytest

from infra.pipeline.deployments import deployment_of
from infra.settings.load import load_environments
from kinesis_efo_infra.pipeline.approval import decide
from kinesis_efo_infra.pipeline.comparison import digest
from kinesis_efo_infra.pipeline.deployment import Deployment, deployment_order, job_parameters
from tests.unit.infra.conftest import Load, Write


def order(write: Write, directory: Path, branch: str | None = None, **settings: str) -> list[str]:
    for number, (name, pipeline) in enumerate(settings.items()):
        write(f"environment: {name}, state_bucket: state-{name}, account_id: '{number:012}', pipeline: {pipeline}")
    loaded = load_environments(directory)
    return [each.environment for each in deployment_order(map(deployment_of, loaded), branch)]


def after(name: str = "null", branch: str = "main") -> str:
    return f"{{repository: acme/lake, after: {name}, branch: {branch}}}"


def test_environment_comes_after_the_one_it_names(write: Write, tmp_path: Path) -> None:
    found = order(write, tmp_path, a=after("c"), b=after(), byhand="null", c=after("d"), d=after())
    assert found == ["d", "c", "a", "b"]


@pytest.mark.parametrize(
    ("branch", "expected"), [("develop", ["dev"]), ("main", ["stable"]), ("feature", []), (None, ["dev", "stable"])]
)
def test_environments_of_other_branches_are_left_out(
    branch: str | None, expected: list[str], write: Write, tmp_path: Path
) -> None:
    assert order(write, tmp_path, branch, dev=after(branch="develop"), stable=after("dev")) == expected


@pytest.mark.parametrize(
    ("project", "name", "place"), [("kinesis-efo", "kinesis-efo", "dev"), ("lake", "lake", "lake.dev")]
)
def test_job_has_the_roles_of_its_project(project: str, name: str, place: str, load: Load) -> None:
    assert not deployment_of(load("applications.lake.polling: only")).consumers
    role = f"arn:aws:iam::111122223333:role/{name}-pipeline/{name}-pipeline-dev"
    assert job_parameters(deployment_of(load(f"environment: dev, project: {project}, PIPELINE"))) == {
        "environment": "dev",
        "github_environment": place,
        "stack": f"{name}-dev",
        "region": "eu-west-1",
        "plan_role": f"{role}-plan",
        "apply_role": f"{role}-apply",
    }


Json = dict[str, Any]


def plan(hours: int) -> Json:
    change = {"actions": ["update"], "before": {"retention_period": 24}, "after": {"retention_period": hours}}
    return {"resource_changes": [{"address": "aws_kinesis_stream.orders", "change": change}]}


@pytest.fixture
def deployment(load: Load) -> Deployment:
    return deployment_of(load(pipeline={"repository": "acme/lake", "branch": "trunk"}))


def test_reviewed_plan_continues_with_any_serial(deployment: Deployment) -> None:
    later = {**plan(48), "prior_state": {"serial": 9}}
    decision = decide(deployment, later, plan(48), approved=[], approvers=False)
    assert (decision.may_go_on, decision.digest) == (True, digest(plan(48)))
    assert "does what was reviewed" in decision.told


@pytest.mark.parametrize("reviewed", [None, plan(72)])
def test_other_plans_wait_for_an_approval(reviewed: Json | None, deployment: Deployment) -> None:
    approved = [digest(plan(72))]
    more: dict[str, Any] = {"approvers": False, "repair": True, "workflow": "deploy-lake.yml"}
    refused = decide(deployment, plan(48), reviewed, approved=approved, **more)
    assert not refused.may_go_on
    command = f"gh workflow run deploy-lake.yml --ref trunk -f approved={digest(plan(48))} -f repair=true`"
    assert command in refused.told
    assert ("aws_kinesis_stream.orders: update with other values of retention_period" in refused.told) is bool(reviewed)
    assert decide(deployment, plan(48), reviewed, approved=[digest(plan(48))], approvers=False).may_go_on
    waits = decide(deployment, plan(48), reviewed, approved=[], approvers=True)
    assert waits.may_go_on
    assert "whoever approves this deployment approves this plan" in waits.told
