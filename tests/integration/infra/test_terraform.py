"""Real Terraform validates, plans, applies and evaluates what is synthesized."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.settings import literals
from infra.settings.access import EmrEc2, EmrServerless, OtherAccount
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names, application_name
from kinesis_efo.manifest import parse_manifest
from kinesis_efo_infra.pipeline.limits import notes, refusals
from kinesis_efo_tools.emr.deployment import load_deployment
from kinesis_efo_tools.emr.target import Target
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.terraform.harness import Terraform

Deploy = Callable[..., Terraform]


def apps(**changes: Any) -> dict[str, Any]:
    return {"lake": {"streams": ["orders"], **changes}}


@pytest.mark.parametrize(
    "path",
    [
        DIRECTORY / "dev.yaml",
        pytest.param(DIRECTORY / "prod.yaml", marks=pytest.mark.long),
        pytest.param(EXAMPLE, marks=pytest.mark.long),
    ],
    ids=lambda path: path.stem,
)
def test_complete_environment_is_applied_as_foreseen(path: Path, deploy: Deploy) -> None:
    environment = load_environment(path)
    terraform = deploy(environment)
    terraform.run("validate")
    terraform.apply()
    assert terraform.changes() == {}, "a second plan changes nothing"
    state = terraform.state()
    for key, application in environment.applications.items():
        if isinstance(application.access, OtherAccount):
            assert not {f"aws_ssm_parameter.{key}", f"aws_s3_object.{key}"} & set(state)
            continue
        manifest = parse_manifest(manifest_text(key, state), "state")
        assert manifest.application == application_name(key, application)
        assert manifest.environment == path.stem
        assert manifest.lease_table == state[f"aws_dynamodb_table.{key}"]["name"]
        assert set(manifest.streams) == set(application.streams)
        for stream_key, stream in manifest.streams.items():
            declared = state.get(f"aws_kinesis_stream_consumer.{stream_key}_{key}")
            given = literals.literal_consumer_arn(environment, stream_key, key)
            assert stream.consumer_arn == (declared["arn"] if declared else given)
        assert_sizes_were_foreseen(environment, key, state)
        assert_jobs_can_be_submitted(environment, key, state)


def manifest_text(key: str, state: dict[str, dict[str, Any]]) -> str:
    """The manifest of an application, in Parameter Store or in S3."""
    in_s3 = state.get(f"aws_s3_object.{key}")
    return str(in_s3["content"] if in_s3 else state[f"aws_ssm_parameter.{key}"]["value"])


def assert_sizes_were_foreseen(environment: Environment, key: str, state: dict[str, dict[str, Any]]) -> None:
    """The sizes that the settings' rules measure before synthesis are those that Terraform writes."""
    manifest = manifest_text(key, state)
    policy = json.dumps(json.loads(state[f"aws_iam_policy.{key}"]["policy"]), separators=(",", ":"))
    assert len(manifest) == len(literals.literal_manifest(environment, key))
    # A single resource or action is written without brackets.
    assert 0 <= len(literals.literal_policy(environment, key).json()) - len(policy) <= 60


def assert_jobs_can_be_submitted(environment: Environment, key: str, state: dict[str, dict[str, Any]]) -> None:
    """The library reads the description of a job, and finds its target, its role and its bucket in it."""
    names = Names(environment)
    text = state[f"aws_ssm_parameter.{key}_job"]["value"]
    assert len(text) <= len(literals.literal_deployment(environment, key))
    application, job = application_name(key, environment.applications[key]), environment.job(key)
    parameters = {each["name"]: each for address, each in state.items() if address.startswith("aws_ssm_parameter.")}
    ssm = SimpleNamespace(get_parameter=lambda Name, **_: {"Parameter": {"Value": parameters[Name]["value"]}})
    found = load_deployment(environment.environment, application, ssm)
    assert (found.application, found.manifest) == (application, names.manifest_location(key))
    assert found.artifacts == f"s3://{state['aws_s3_bucket.artifacts']['bucket']}"
    assert found.logs_key_arn == state["aws_kms_key.environment_key"]["arn"]
    assert (found.program, list(found.arguments)) == ((job.program, names.job_arguments(job)) if job else (None, []))
    match environment.applications[key].access:
        case EmrServerless(application_id=None):
            application_id = state["aws_emrserverless_application.jobs"]["id"]
            assert str(Target.parse(found.target or "")) == f"serverless:{application_id}"
            assert found.role_arn == state[f"aws_iam_role.{key}"]["arn"]
            trust = json.loads(state[f"aws_iam_role.{key}"]["assume_role_policy"])
            (condition,) = [each["Condition"]["ArnLike"] for each in trust["Statement"]]
            assert condition == {"aws:SourceArn": [state["aws_emrserverless_application.jobs"]["arn"]]}
        case EmrEc2():
            assert found.role_arn is None
        case _:
            assert found.target == (job.target if job else None)


@pytest.mark.long
def test_adding_a_consumer_replaces_nothing(deploy: Deploy) -> None:
    deploy(applications=apps()).apply()
    shared = {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]}
    changes = deploy(applications={"aaa": {"streams": ["orders"], "access": shared}, **apps()}).changes()
    consumers = {address: actions for address, actions in changes.items() if "stream_consumer" in address}
    assert consumers == {"aws_kinesis_stream_consumer.orders_aaa": ["create"]}
    assert all(actions in (["create"], ["update"]) for actions in changes.values()), changes
    assert {address for address, actions in changes.items() if actions == ["update"]} == {
        "aws_cloudwatch_dashboard.applications",
        "aws_kms_key.orders",
        "aws_iam_policy.lake",
    }, "a chart more, a key that the other account may use, and what Terraform reads again because of it"


@pytest.mark.long
def test_documented_move_replaces_nothing(deploy: Deploy) -> None:
    access = {"kind": "emr-ec2"}
    deploy(
        streams={"shop": {"name": "orders"}},
        applications={"pond": {"streams": ["shop"], "name": "lake", "access": access}},
    ).apply()
    changes = deploy(
        streams={"orders": {"name": "orders", "moved_from": "shop"}},
        applications={"lake": {"streams": ["orders"], "name": "lake", "moved_from": "pond", "access": access}},
    ).changes()
    # The new keys are in the manifest and on the dashboard, which is what was asked for; AWS sees no other change.
    assert changes == {"aws_ssm_parameter.lake": ["update"], "aws_cloudwatch_dashboard.applications": ["update"]}


@pytest.mark.long
def test_changing_a_key_keeps_the_former_one_for_readers(deploy: Deploy) -> None:
    deploy(applications=apps()).apply()
    stream = {"key": "arn:aws:kms:eu-west-1:111122223333:key/new"}
    (refused,) = refusals(deploy(streams={"orders": stream}, applications=apps()).plan())
    assert "aws_kms_key.orders, with which its records of 24 hours are encrypted, would be scheduled" in refused
    kept = {**stream, "former_keys": {"own": date(2099, 1, 31)}}
    terraform = deploy(streams={"orders": kept}, applications=apps())
    plan = terraform.plan()
    former = terraform.state()["aws_kms_key.orders"]["arn"]
    assert refusals(plan) == []
    (note,) = notes(plan)
    assert f"its key changes. Readers need kms:Decrypt with the former key, {former}, for 24 hours" in note
    terraform.apply()
    policy = json.loads(terraform.state()["aws_iam_policy.lake"]["policy"])
    (decrypt,) = (each for each in policy["Statement"] if each["Sid"] == "DecryptStreams")
    assert set(decrypt["Resource"]) == {former, stream["key"]}
    plan = deploy(streams={"orders": stream}, applications=apps()).plan()
    assert refusals(plan) == []
    (note,) = notes(plan)
    assert note.startswith(f"aws_kms_key.orders: key {former} is scheduled for deletion")
