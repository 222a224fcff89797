"""Environments are deployed after those that their `after` names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from infra.errors import SettingsError
from infra.pipeline.deployments import deployment_of
from infra.settings.load import load_environments
from kinesis_efo_infra.pipeline.deployment import deployment_order, job_parameters
from tests.unit.infra.conftest import document

Write = Callable[..., object]


def pipeline(**changes: object) -> dict[str, object]:
    return {"pipeline": {"repository": "acme/lake", **changes}}


def environments(write: Write, tmp_path, **afters: str | None):  # type: ignore[no-untyped-def]
    for number, (name, after) in enumerate(afters.items()):
        extra = {"after": after} if after else {}
        account = {"account_id": f"{number:012}", "region": "eu-west-1", "state_bucket": f"state-{name}"}
        write(environment=name, **account, **pipeline(**extra))
    return load_environments(tmp_path)


def test_each_environment_comes_after_the_one_it_names(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    loaded = environments(write, tmp_path, a="c", b=None, c="d", d=None)
    assert [each.environment for each in deployment_order(map(deployment_of, loaded))] == ["d", "c", "a", "b"]


def test_environments_without_a_pipeline_are_left_out(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(environment="byhand")
    write(environment="dev", streams={"other": {}}, applications={"pond": {"streams": ["other"]}}, **pipeline())
    assert [each.environment for each in deployment_order(map(deployment_of, load_environments(tmp_path)))] == ["dev"]


def test_environments_of_another_branch_are_left_out(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(environment="dev", account_id="000000000001", state_bucket="state-dev", **pipeline(branch="develop"))
    write(environment="stable", account_id="000000000002", **pipeline(after="dev"))
    loaded = load_environments(tmp_path)
    by_branch = {
        branch: [each.environment for each in deployment_order(map(deployment_of, loaded), branch)]
        for branch in ("develop", "main", "feature", None)
    }
    assert by_branch == {"develop": ["dev"], "main": ["stable"], "feature": [], None: ["dev", "stable"]}


def test_a_job_knows_its_roles(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(environment="dev", **pipeline())
    (environment,) = load_environments(tmp_path)
    assert job_parameters(deployment_of(environment)) == {
        "environment": "dev",
        "github_environment": "dev",
        "stack": "kinesis-efo-dev",
        "region": "eu-west-1",
        "plan_role": "arn:aws:iam::111122223333:role/kinesis-efo-pipeline/kinesis-efo-pipeline-dev-plan",
        "apply_role": "arn:aws:iam::111122223333:role/kinesis-efo-pipeline/kinesis-efo-pipeline-dev-apply",
    }


def test_a_job_of_another_project_has_another_place_on_github(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(environment="dev", project="lake", **pipeline())
    (environment,) = load_environments(tmp_path)
    at = "arn:aws:iam::111122223333:role/lake-pipeline/lake-pipeline-dev"
    assert job_parameters(deployment_of(environment)) == {
        "environment": "dev",
        "github_environment": "lake.dev",
        "stack": "lake-dev",
        "region": "eu-west-1",
        "plan_role": f"{at}-plan",
        "apply_role": f"{at}-apply",
    }


@pytest.mark.parametrize(
    ("afters", "where", "value"),
    [
        ({"dev": "test"}, "dev.yaml pipeline.after", "test"),
        ({"dev": "dev"}, "dev.yaml pipeline.after", "dev"),
        ({"dev": "qa", "qa": "dev"}, "pipeline.after", "dev"),
    ],
)
def test_an_impossible_order_is_a_fault(  # type: ignore[no-untyped-def]
    afters: dict[str, str], where: str, value: str, write: Write, tmp_path
) -> None:
    with pytest.raises(SettingsError) as told:
        environments(write, tmp_path, **afters)
    rule = "must be another environment with a pipeline, which does not come after this one"
    assert f"{where}: {rule}; got {value!r}" in str(told.value)


def test_two_bootstraps_of_one_account_do_not_declare_the_same(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(environment="dev", **pipeline())
    write(environment="int", streams={"other": {}}, applications={"pond": {"streams": ["other"]}}, **pipeline())
    with pytest.raises(SettingsError) as told:
        load_environments(tmp_path)
    assert (
        "int.yaml pipeline.oidc_provider_arn: is missing: the bootstrap stack of dev declares the OIDC provider"
        in str(told.value)
    )
    assert "int.yaml pipeline.adopt_state_bucket: is missing: the bootstrap stack of dev declares state" in str(
        told.value
    )
    adopted = {
        "oidc_provider_arn": "arn:aws:iam::111122223333:oidc-provider/token.actions.githubusercontent.com",
        "adopt_state_bucket": True,
    }
    write(
        environment="int", streams={"other": {}}, applications={"pond": {"streams": ["other"]}}, **pipeline(**adopted)
    )
    assert len(load_environments(tmp_path)) == 2


def test_a_role_must_not_reach_into_a_neighbour_of_a_longer_name(write: Write, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(environment="dev", **pipeline())
    content = document(environment="dev-eu", streams={"o": {}}, applications={"pond": {"streams": ["o"]}}, **pipeline())
    (tmp_path / "dev-eu.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(
        SettingsError, match="begins like dev, whose role for applying could change what belongs to dev-eu"
    ):
        load_environments(tmp_path)
