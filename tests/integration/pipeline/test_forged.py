"""What is applied is planned by who applies it: of a bundle, nothing is run, whatever is in it and whatever it says of itself."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError, StalePlanError
from infra.pipeline.deployments import deployment_of
from kinesis_efo_infra.pipeline.bundle import read_meta
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Repository

Checkout = Callable[[str], Repository]
Json = dict[str, Any]


def configuration(repository: Repository) -> Path:
    return repository.synthesized / "stacks" / repository.stack / "cdk.tf.json"


def forge(repository: Repository, scratch: Path, change: Callable[[Json], None]) -> None:
    """Plan another configuration, and put that plan into the bundle, as if it were the plan of the reviewed one."""
    document = json.loads(configuration(repository).read_text(encoding="utf-8"))
    change(document)
    scratch.mkdir()
    (scratch / "cdk.tf.json").write_text(json.dumps(document), encoding="utf-8")
    terraform = Terraform(scratch)
    terraform.init()
    terraform.plan(scratch / "plan.tfplan")
    bundle = repository.plans / repository.stack
    shutil.copy(scratch / "plan.tfplan", bundle / "plan.tfplan")
    (bundle / "plan.json").write_text(json.dumps(terraform.show(scratch / "plan.tfplan")), encoding="utf-8")
    (bundle / "plan.txt").write_text("No changes.\n", encoding="utf-8")
    meta = json.loads((bundle / "meta.json").read_text(encoding="utf-8"))
    meta["plan"] = hashlib.sha256((bundle / "plan.tfplan").read_bytes()).hexdigest()
    (bundle / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def test_plan_beyond_the_reviewed_stack_is_not_applied(aws: LocalAws, checkout: Checkout, tmp_path: Path) -> None:
    repository = checkout("forged")
    repository.commit()
    planner, environment = repository.planner(aws), repository.environment
    planner.plan(deployment_of(environment), "one", repository.plans)

    def add(document: Json) -> None:
        streams = document["resource"]["aws_kinesis_stream"]
        streams["more"] = {**streams["orders"], "name": "forged-more"}

    forge(repository, tmp_path / "forge", add)
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.more: create was shown, and would not be done"):
        planner.apply(deployment_of(environment), ["one"], repository.plans)
    assert aws.client("kinesis").list_streams()["StreamNames"] == []
    assert not planner.is_deployed(deployment_of(environment))


@pytest.mark.long
def test_no_command_of_a_forged_plan_is_run(aws: LocalAws, checkout: Checkout, tmp_path: Path) -> None:
    repository = checkout("command")
    repository.commit()
    planner, environment = repository.planner(aws), repository.environment
    planner.plan(deployment_of(environment), "one", repository.plans)
    ran = tmp_path / "ran"

    def run(document: Json) -> None:
        shell = {"local-exec": {"command": f"env > {ran}"}}
        document["resource"]["terraform_data"] = {"x": {"provisioner": [shell]}}

    forge(repository, tmp_path / "forge", run)
    with pytest.raises(PipelineError, match=r"terraform_data\.x"):
        planner.apply(deployment_of(environment), ["one"], repository.plans)
    assert not ran.exists()


@pytest.mark.long
def test_command_in_a_handed_over_stack_is_not_run(aws: LocalAws, checkout: Checkout, tmp_path: Path) -> None:
    repository = checkout("handed")
    repository.commit()
    planner, environment = repository.planner(aws), repository.environment
    planner.plan(deployment_of(environment), "one", repository.plans)
    path, ran = configuration(repository), tmp_path / "ran"
    honest = json.loads(path.read_text(encoding="utf-8"))
    shell = [{"local-exec": {"command": f"env > {ran}"}}]
    stream = honest["resource"]["aws_kinesis_stream"]["orders"]
    for changed in (
        {"resource": {**honest["resource"], "terraform_data": {"x": {"provisioner": shell}}}},
        {"resource": {**honest["resource"], "aws_kinesis_stream": {"orders": {**stream, "provisioner": shell}}}},
        {"data": {**honest["data"], "external": {"x": {"program": ["sh", "-c", f"env > {ran}"]}}}},
    ):
        path.write_text(json.dumps({**honest, **changed}), encoding="utf-8")
        with pytest.raises(PipelineError, match=r"holds what the positive list .* does not have; nothing was run"):
            planner.apply(deployment_of(environment), ["one"], repository.plans)
        with pytest.raises(PipelineError, match="nothing was run"):
            planner.plan(deployment_of(environment), "one", tmp_path / "again")
    # Terraform would read a name that is written twice twice.
    twice = json.dumps({"resource": {"terraform_data": {"x": {"provisioner": shell}}}})[:-1]
    path.write_text(twice + ", " + json.dumps(honest)[1:], encoding="utf-8")
    planner.apply(deployment_of(environment), ["one"], repository.plans)
    assert not ran.exists()
    assert planner.is_deployed(deployment_of(environment))


@pytest.mark.long
def test_stack_keeps_the_state_of_its_environment(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("elsewhere")
    repository.commit()
    path = configuration(repository)
    document = json.loads(path.read_text(encoding="utf-8"))
    backend = document["terraform"]["backend"]["s3"]
    forged = {**document, "terraform": {**document["terraform"], "backend": {"s3": {**backend, "key": "prod.tfstate"}}}}
    taken = {**document, "import": [{"to": "aws_kms_key.orders", "id": "somebody-elses"}]}
    region = {**document, "provider": {"aws": [{**document["provider"]["aws"][0], "region": "us-east-1"}]}}
    anybody = {**document, "provider": {"aws": {"region": "eu-west-1"}}}
    for each, said in (
        (region, r"provider\.aws: it would work in \('us-east-1', \['1"),
        (anybody, r"provider\.aws: it would work in \('eu-west-1', None"),
        (forged, r"its state would be .*prod\.tfstate"),
        (taken, r"import aws_kms_key\.orders: the env"),
    ):
        path.write_text(json.dumps(each), encoding="utf-8")
        with pytest.raises(PipelineError, match=said):
            repository.planner(aws).plan(deployment_of(repository.environment), "one", repository.plans)


@pytest.mark.long
def test_approval_is_of_one_scanned_digest(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("approved")
    repository.commit()
    scanned: list[object] = []
    planner = repository.planner(aws, lambda plans: [*map(scanned.append, plans)][:0])
    environment = repository.environment
    meta = planner.plan(deployment_of(environment), "one", repository.plans)
    with pytest.raises(StalePlanError, match="and sha256:0000 was approved"):
        planner.apply(deployment_of(environment), ["one"], repository.plans, "0000")
    assert len(scanned) == 1
    planner.apply(deployment_of(environment), ["one"], repository.plans, meta.plan)
    assert planner.is_deployed(deployment_of(environment))
    assert len(scanned) == 1, "checkov does not run beside the credentials that apply"


@pytest.mark.long
def test_scan_without_keys_is_of_the_approved_plan(
    aws: LocalAws, checkout: Checkout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository, scanned = checkout("scanned"), list[Json]()
    repository.commit()

    def finds(plans: Sequence[Path]) -> Sequence[str]:
        scanned.extend(json.loads(each.read_text(encoding="utf-8")) for each in plans)
        return ["CKV_X: found"]

    monkeypatch.setattr("kinesis_efo_infra.pipeline.steps.checkov_beside", lambda *_: finds)
    caplog.set_level(logging.INFO)
    assert repository.step("scan", scanned=True) == 0
    assert "there is no plan to scan" in caplog.text
    assert repository.step("plan", "--commit", "one", "--unscanned", scanned=True) == 0
    digest = read_meta(repository.plans / repository.stack).plan
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert repository.step("scan", "--approved", "0000", scanned=True) == 1
    assert f"is sha256:{digest}, and sha256:0000 was to be scanned" in caplog.text
    assert scanned == []
    assert repository.step("scan", "--approved", digest, scanned=True) == 1
    assert "CKV_X: found" in caplog.text
    (plan,) = scanned
    streams = [
        each for each in plan["planned_values"]["root_module"]["resources"] if each["type"] == "aws_kinesis_stream"
    ]
    assert [each["values"]["name"] for each in streams] == ["scanned-orders"]
    assert {"references": ["aws_kms_key.orders.arn", "aws_kms_key.orders"]} in [
        each["expressions"].get("kms_key_id") for each in plan["configuration"]["root_module"]["resources"]
    ]


@pytest.mark.long
def test_another_program_has_another_digest(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("forms")
    repository.commit()
    planner, deployment = repository.planner(aws), deployment_of(repository.environment)
    arn = "${aws_kinesis_stream.orders.arn}"
    forms: list[Json] = [
        {"for_each": {"a": arn}, "description": "${each.value}"},
        {"for_each": {"a": f"{arn}/*"}, "description": "${each.value}"},
        {"for_each": {"a": "b"}, "description": arn},
        {"for_each": {"a": "b"}, "description": f"{arn}/*"},
    ]
    for form in forms:
        document = json.loads(configuration(repository).read_text(encoding="utf-8"))
        parameter = {"name": "/kinesis-efo/forms/${each.key}", "type": "String", "insecure_value": "x", **form}
        document["resource"]["aws_ssm_parameter"]["form"] = parameter
        configuration(repository).write_text(json.dumps(document), encoding="utf-8")
        form["digest"] = planner.plan(deployment, "one", repository.plans).plan
    assert len({form["digest"] for form in forms}) == len(forms)
