"""Every state that a deployment can end in has a way out: a removal, a deployment that ended half way, a change by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.pipeline.bundle import read_meta
from kinesis_efo_infra.pipeline.record import Deployed
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import REGION, Checkout
from tests.support.commands import program

ORDERS: dict[str, Any] = {"orders": {"mode": "provisioned", "shards": 1}}
LAKE: dict[str, Any] = {"streams": ["orders"]}


def streams(aws: LocalAws, name: str) -> set[str]:
    return {each for each in aws.client("kinesis").list_streams()["StreamNames"] if each.startswith(f"{name}-")}


def consumers(aws: LocalAws, stream: str) -> set[str]:
    kinesis = aws.client("kinesis")
    arn = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    return {each["ConsumerName"] for each in kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]}


@pytest.mark.long
def test_protected_application_is_retired_then_removed(aws: LocalAws, checkout: Checkout) -> None:
    both = {"lake": LAKE, "old": LAKE}
    repository = checkout("kept", protected=True, streams=ORDERS, applications=both)
    repository.deploy("one")
    # At once, it is refused before anything is touched, and nothing is in the way of other deployments.
    repository.commit(applications={"lake": LAKE})
    message = r"aws_dynamodb_table\.old: table kinesis-efo-kept-old is protected .* say `retired: true` for it"
    with pytest.raises(PipelineError, match=message):
        repository.plan("two")
    with pytest.raises(StalePlanError, match="its artifact has expired; plan again"):
        repository.apply("two")
    # Nor is a plan applied that was made to look for drift, which is found, however large.
    repository.plan("two", to_apply=False)
    with pytest.raises(PipelineError, match=message):
        repository.apply("two")
    assert consumers(aws, "kept-orders") == {"lake", "old"}
    repository.commit(applications=both)
    assert repository.is_deployed
    # The first step ends the protection, and nothing else.
    repository.commit(applications={"lake": LAKE, "old": {**LAKE, "retired": True}})
    repository.plan("three")
    plan = json.loads((repository.plans / repository.stack / "plan.json").read_text(encoding="utf-8"))
    changed = {each["address"]: each["change"]["actions"] for each in plan["resource_changes"]}
    assert changed["aws_dynamodb_table.old"] == ["update"]
    # Terraform evaluates the policy again, as it names the table.
    assert {action for actions in changed.values() for action in actions} <= {"no-op", "read", "update"}
    repository.apply("three")
    assert consumers(aws, "kept-orders") == {"lake", "old"}
    # The second removes it.
    repository.commit(applications={"lake": LAKE})
    repository.deploy("four")
    assert consumers(aws, "kept-orders") == {"lake"}
    tables = aws.client("dynamodb").list_tables()["TableNames"]
    assert ("kinesis-efo-kept-lake" in tables, "kinesis-efo-kept-old" in tables) == (True, False)
    assert repository.is_deployed
    # The other one is protected as before.
    with pytest.raises(Exception, match="DeletionProtectionEnabled"):
        aws.client("dynamodb").delete_table(TableName="kinesis-efo-kept-lake")


@pytest.mark.long
def test_failed_deployment_is_undone_by_a_revert(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("half", streams=ORDERS)
    repository.deploy("one")
    # Somebody's stream is in the way of the second deployment, which creates others before it fails.
    aws.client("kinesis").create_stream(StreamName="half-clicks", ShardCount=1)
    repository.commit(streams={**ORDERS, "clicks": ORDERS["orders"], "views": ORDERS["orders"]})
    with pytest.raises(PipelineError, match="ResourceInUse"):
        repository.deploy("two")
    assert streams(aws, "half") == {"half-orders", "half-clicks", "half-views"}
    assert repository.record.under_way == "two"
    repository.commit(streams=ORDERS)
    assert not repository.is_deployed, "the configuration is the one before, and AWS is not"
    report = repository.drift() or ""
    assert "because the deployment of commit `two` failed or was stopped half way: " in report
    assert "aws_kinesis_stream.views will be destroyed" in report
    assert "`gh workflow run deploy.yml --ref main`" in report
    repository.deploy("three")
    assert streams(aws, "half") == {"half-orders", "half-clicks"}
    assert repository.is_deployed
    assert repository.drift() is None


@pytest.mark.long
def test_unrecorded_deployment_is_planned_again(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("stopped", streams=ORDERS)
    repository.plan("one")

    def stop(_plan: object) -> None:
        raise KeyboardInterrupt

    # Before anything is touched, there is no mark.
    with pytest.raises(KeyboardInterrupt):
        repository.apply("one", planner=repository.planner(prepare=stop))
    assert repository.record == Deployed()
    repository.apply("one")
    deployed, records = repository.record, repository.planner().records
    records.load(repository.deployment)
    records.save(repository.deployment, replace(deployed, under_way="two"))
    # All of it had been done: there is nothing left but to say so.
    repository.deploy("three")
    assert repository.record == Deployed("three", deployed.stack)


@pytest.mark.long
def test_reviewed_plan_undoes_a_change_by_hand(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("repair", streams=ORDERS)
    repository.deploy("one")
    kinesis = aws.client("kinesis")
    kinesis.increase_stream_retention_period(StreamName="repair-orders", RetentionPeriodHours=48)
    report = repository.drift() or ""
    assert "`make plan ENV=repair REPAIR=1`" in report
    assert "`gh workflow run deploy.yml --ref main -f repair=true`" in report
    assert repository.step("plan", "--commit", "one") == 0
    repository.apply("one", plans=repository.directory / "none")
    assert hours(kinesis) == 48, "without being asked to, a deployment of the same does nothing"
    assert repository.step("plan", "--commit", "one", "--repair") == 0
    assert read_meta(repository.plans / repository.stack).repair
    # Whoever changes more before it is applied is not overrun.
    kinesis.increase_stream_retention_period(StreamName="repair-orders", RetentionPeriodHours=72)
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.orders: update with other values of retention_per"):
        repository.apply("one")
    repository.plan("one", repair=True)
    repository.apply("one")
    assert hours(kinesis) == 24
    # Whoever does it again finds nothing to do.
    repository.apply("one")
    assert repository.drift() is None


def hours(kinesis: Any) -> int:
    summary = kinesis.describe_stream_summary(StreamName="repair-orders")["StreamDescriptionSummary"]
    return int(summary["RetentionPeriodHours"])


@pytest.mark.long
def test_leftover_lock_names_its_removal(
    aws: LocalAws, checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout("locked")
    s3, key = aws.client("s3"), "kinesis-efo/locked.tfstate"
    backend = {"bucket": "terraform-state", "key": key, "region": REGION, "use_lockfile": True}
    stack = {"terraform": {"backend": {"s3": backend}}, "resource": {"terraform_data": {"x": {"input": "y"}}}}
    (tmp_path / "cdk.tf.json").write_text(json.dumps(stack), encoding="utf-8")
    terraform = Terraform(tmp_path)
    terraform.init()
    lock = {"ID": "0a1b", "Operation": "OperationTypeApply", "Who": "runner@ci", "Created": "2026-01-01T00:00:00Z",
            "Path": f"terraform-state/{key}"}  # fmt: skip
    s3.put_object(Bucket="terraform-state", Key=f"{key}.tflock", Body=json.dumps(lock))
    with pytest.raises(PipelineError, match="Error acquiring the state lock") as caught:
        terraform.destroy()
    assert f"delete the lock (`aws s3 rm s3://terraform-state/{key}.tflock`), and deploy again" in str(caught.value)
    s3.delete_object(Bucket="terraform-state", Key=f"{key}.tflock")
    terraform.destroy()
    # A deployment waits five minutes for the lock, and then Terraform says the same.
    said = str(caught.value).partition("The state is locked")[0]
    waited = program(tmp_path / "waited", f"cat >&2 <<EOF\n{said}\nEOF\nexit 1")
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(waited))
    with pytest.raises(PipelineError, match="waited apply failed; part of the plan may have been applied") as applied:
        Terraform(tmp_path).apply(tmp_path / "plan")
    assert f"delete the lock (`aws s3 rm s3://terraform-state/{key}.tflock`)" in str(applied.value)
