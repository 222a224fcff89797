"""Environments are deployed after those that their `after` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.pipeline.deployments import deployment_of
from infra.settings.load import load_environments
from kinesis_efo_infra.pipeline.deployment import deployment_order, job_parameters
from tests.unit.infra.conftest import Load, Write


def order(write: Write, directory: Path, branch: str | None = None, **settings: str) -> list[str]:
    for number, (name, pipeline) in enumerate(settings.items()):
        write(f"environment: {name}, state_bucket: state-{name}, account_id: '{number:012}', pipeline: {pipeline}")
    loaded = load_environments(directory)
    return [each.environment for each in deployment_order(map(deployment_of, loaded), branch)]


def after(name: str = "null", branch: str = "main") -> str:
    return f"{{repository: acme/lake, after: {name}, branch: {branch}}}"


def test_environment_comes_after_the_one_it_names(write: Write, tmp_path: Path) -> None:
    assert order(write, tmp_path, a=after("c"), b=after(), c=after("d"), d=after()) == ["d", "c", "a", "b"]


def test_environments_without_a_pipeline_are_left_out(write: Write, tmp_path: Path) -> None:
    assert order(write, tmp_path, byhand="null", dev=after()) == ["dev"]


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
    role = f"arn:aws:iam::111122223333:role/{name}-pipeline/{name}-pipeline-dev"
    assert job_parameters(deployment_of(load(f"environment: dev, project: {project}, PIPELINE"))) == {
        "environment": "dev",
        "github_environment": place,
        "stack": f"{name}-dev",
        "region": "eu-west-1",
        "plan_role": f"{role}-plan",
        "apply_role": f"{role}-apply",
    }
