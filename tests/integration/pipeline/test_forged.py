"""What is applied is planned by who applies it: of a bundle, nothing is run, whatever is in it and whatever it says of itself."""

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.pipeline.bundle import read_meta
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Checkout, Repository

Json = dict[str, Any]


def put_forged_plan(repository: Repository, scratch: Path, forged: Json) -> None:
    """Plan another configuration, and put that plan into the bundle, as if it were the plan of the reviewed one."""
    scratch.mkdir()
    (scratch / "cdk.tf.json").write_text(json.dumps(forged), encoding="utf-8")
    terraform = Terraform(scratch)
    terraform.init()
    terraform.plan(scratch / "plan.tfplan")
    bundle = repository.plans / repository.stack
    shutil.copy(scratch / "plan.tfplan", bundle / "plan.tfplan")
    (bundle / "plan.json").write_text(json.dumps(terraform.show(scratch / "plan.tfplan")), encoding="utf-8")
    meta = json.loads((bundle / "meta.json").read_text(encoding="utf-8"))
    meta["plan"] = hashlib.sha256((bundle / "plan.tfplan").read_bytes()).hexdigest()
    (bundle / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


@pytest.mark.long
def test_command_of_plan_or_stack_is_never_run(aws: LocalAws, checkout: Checkout, tmp_path: Path) -> None:
    repository = checkout("handed")
    repository.plan("one")
    path, ran = repository.configuration, tmp_path / "ran"
    honest = json.loads(path.read_text(encoding="utf-8"))
    shell = [{"local-exec": {"command": f"env > {ran}"}}]
    stream = honest["resource"]["aws_kinesis_stream"]["orders"]
    command = {"resource": {**honest["resource"], "terraform_data": {"x": {"provisioner": shell}}}}
    for changed in (
        command,
        {"resource": {**honest["resource"], "aws_kinesis_stream": {"orders": {**stream, "provisioner": shell}}}},
        {"data": {**honest["data"], "external": {"x": {"program": ["sh", "-c", f"env > {ran}"]}}}},
    ):
        path.write_text(json.dumps({**honest, **changed}), encoding="utf-8")
        refused = r"holds what the positive list .* does not have; nothing was run"
        with pytest.raises(PipelineError, match=refused):
            repository.apply("one")
        with pytest.raises(PipelineError, match=refused):
            repository.plan("one", tmp_path / "again")
    path.write_text(json.dumps(honest), encoding="utf-8")
    put_forged_plan(repository, tmp_path / "forge", {**honest, **command})
    with pytest.raises(PipelineError, match=r"terraform_data\.x"):
        repository.apply("one")
    # Terraform would read a name that is written twice twice.
    twice = json.dumps({"resource": {"terraform_data": {"x": {"provisioner": shell}}}})[:-1]
    path.write_text(twice + ", " + json.dumps(honest)[1:], encoding="utf-8")
    repository.deploy("one")
    assert not ran.exists()
    assert repository.is_deployed


@pytest.mark.long
def test_stack_works_in_its_environment_only(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("elsewhere")
    document = json.loads(repository.configuration.read_text(encoding="utf-8"))
    terraform, aws_provider = document["terraform"], document["provider"]["aws"][0]
    backend = terraform["backend"]["s3"]
    key = {"Statement": {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*", "Principal": "*"}}
    for forged, said in (
        ({"provider": {"aws": [{**aws_provider, "region": "us-east-1"}]}}, r"it would work in \('us-east-1', \['1"),
        ({"provider": {"aws": {"region": "eu-west-1"}}}, r"provider\.aws: it would work in \('eu-west-1', None"),
        (
            {"terraform": {**terraform, "backend": {"s3": {**backend, "key": "prod.tfstate"}}}},
            r"its state would be .*prod\.tfstate",
        ),
        ({"import": [{"to": "aws_kms_key.orders", "id": "x"}]}, r"import aws_kms_key\.orders: the env"),
        ({"import": {"to": "somebody-elses", "id": "x"}}, r"import somebody-elses: the env"),
        ({"resource": {"aws_kms_key": {"x": {"policy": json.dumps(key)}}}}, r"grants what .*: lets everybody in"),
    ):
        repository.configuration.write_text(json.dumps({**document, **forged}), encoding="utf-8")
        with pytest.raises(PipelineError, match=f"(?s){said}"):
            repository.plan("one")


@pytest.mark.long
def test_approval_is_of_one_scanned_digest(aws: LocalAws, checkout: Checkout) -> None:
    repository, scanned = checkout("approved"), list[Path]()

    def scan(plans: Sequence[Path]) -> Sequence[str]:
        scanned.extend(plans)
        return []

    planner = repository.planner(scan)
    meta = planner.plan(repository.deployment, "one", repository.plans)
    with pytest.raises(StalePlanError, match="and sha256:0000 was approved"):
        planner.apply(repository.deployment, ["one"], repository.plans, "0000")
    assert len(scanned) == 1
    planner.apply(repository.deployment, ["one"], repository.plans, meta.plan)
    assert repository.is_deployed
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
    values, written = plan["planned_values"]["root_module"], plan["configuration"]["root_module"]
    streams = [each["values"]["name"] for each in values["resources"] if each["type"] == "aws_kinesis_stream"]
    assert streams == ["scanned-orders"]
    assert {"references": ["aws_kms_key.orders.arn", "aws_kms_key.orders"]} in [
        each["expressions"].get("kms_key_id") for each in written["resources"]
    ]
