"""Every state that a deployment can end in has a way out: a removal, a deployment that ended half way, a change by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError, StalePlanError
from infra.pipeline.deployments import deployment_of
from kinesis_efo_infra.pipeline.bundle import read_meta
from kinesis_efo_infra.pipeline.drift import look_for_drift
from kinesis_efo_infra.pipeline.record import Deployed
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import REGION, Repository

Checkout = Callable[[str], Repository]
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
    repository = checkout("kept")
    both = {"lake": LAKE, "old": LAKE}
    repository.commit(protected=True, streams=ORDERS, applications=both)
    repository.deploy(aws, "one")
    planner, environment = repository.planner(aws), repository.environment
    # At once, it is refused before anything is touched, and nothing is in the way of other deployments.
    repository.commit(applications={"lake": LAKE})
    message = r"aws_dynamodb_table\.old: table kinesis-efo-kept-old is protected .* say `retired: true` for it"
    with pytest.raises(PipelineError, match=message):
        planner.plan(deployment_of(repository.environment), "two", repository.plans)
    assert consumers(aws, "kept-orders") == {"lake", "old"}
    repository.commit(applications=both)
    assert planner.is_deployed(deployment_of(environment))
    # The first step ends the protection, and nothing else.
    repository.commit(applications={"lake": LAKE, "old": {**LAKE, "retired": True}})
    assert "aws_dynamodb_table.old.retired kinesis-efo-kept-old\n" in ledger_of(repository)
    planner.plan(deployment_of(repository.environment), "three", repository.plans)
    plan = json.loads((repository.plans / repository.stack / "plan.json").read_text(encoding="utf-8"))
    changed = {each["address"]: each["change"]["actions"] for each in plan["resource_changes"]}
    assert changed["aws_dynamodb_table.old"] == ["update"]
    # Terraform evaluates the policy again, as it names the table.
    assert {action for actions in changed.values() for action in actions} <= {"no-op", "read", "update"}
    planner.apply(deployment_of(repository.environment), ["three"], repository.plans)
    assert consumers(aws, "kept-orders") == {"lake", "old"}
    # The second removes it.
    repository.commit(applications={"lake": LAKE})
    repository.deploy(aws, "four")
    assert consumers(aws, "kept-orders") == {"lake"}
    tables = aws.client("dynamodb").list_tables()["TableNames"]
    assert ("kinesis-efo-kept-lake" in tables, "kinesis-efo-kept-old" in tables) == (True, False)
    assert planner.is_deployed(deployment_of(repository.environment))
    # The other one is protected as before.
    with pytest.raises(Exception, match="DeletionProtectionEnabled"):
        aws.client("dynamodb").delete_table(TableName="kinesis-efo-kept-lake")


def ledger_of(repository: Repository) -> str:
    return (repository.environments / f"{repository.name}.declared").read_text(encoding="utf-8")


@pytest.mark.long
def test_failed_deployment_is_undone_by_a_revert(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("half")
    repository.commit(streams=ORDERS)
    repository.deploy(aws, "one")
    planner = repository.planner(aws)
    # Somebody's stream is in the way of the second deployment, which creates others before it fails.
    aws.client("kinesis").create_stream(StreamName="half-clicks", ShardCount=1)
    repository.commit(streams={**ORDERS, "clicks": ORDERS["orders"], "views": ORDERS["orders"]})
    with pytest.raises(PipelineError, match="ResourceInUse"):
        repository.deploy(aws, "two")
    assert streams(aws, "half") == {"half-orders", "half-clicks", "half-views"}
    assert planner.records.load(deployment_of(repository.environment)).under_way == "two"
    repository.commit(streams=ORDERS)
    environment = repository.environment
    assert not planner.is_deployed(deployment_of(environment)), "the configuration is the one before, and AWS is not"
    report = look_for_drift(planner, deployment_of(environment), "one", repository.directory / "drift", {})
    assert report is not None
    assert "because the deployment of commit `two` failed or was stopped half way: " in report
    assert "aws_kinesis_stream.views will be destroyed" in report
    assert "`gh workflow run deploy.yml --ref main`" in report
    repository.deploy(aws, "three")
    assert streams(aws, "half") == {"half-orders", "half-clicks"}
    assert planner.is_deployed(deployment_of(environment))
    # As it is read by those who know no mark.
    key = f"kinesis-efo/{repository.name}.deployed.json"
    record = json.loads(aws.client("s3").get_object(Bucket="terraform-state", Key=key)["Body"].read())
    assert record == {"commit": "three", "stack": planner.records.load(deployment_of(environment)).stack}
    assert look_for_drift(planner, deployment_of(environment), "one", repository.directory / "drift", {}) is None


@pytest.mark.long
def test_unrecorded_deployment_is_planned_again(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("stopped")
    repository.commit(streams=ORDERS)
    planner, environment = repository.planner(aws), repository.environment
    planner.plan(deployment_of(environment), "one", repository.plans)

    def stop(_plan: object) -> None:
        raise KeyboardInterrupt

    # Before anything is touched, there is no mark.
    with pytest.raises(KeyboardInterrupt):
        replace(planner, prepare=stop).apply(deployment_of(environment), ["one"], repository.plans)
    assert planner.records.load(deployment_of(environment)) == Deployed()
    planner.apply(deployment_of(environment), ["one"], repository.plans)
    deployed = planner.records.load(deployment_of(environment))
    planner.records.save(deployment_of(environment), Deployed(deployed.commit, deployed.stack, under_way="two"))
    # All of it had been done: there is nothing left but to say so.
    repository.deploy(aws, "three")
    assert planner.records.load(deployment_of(environment)) == Deployed("three", deployed.stack)


@pytest.mark.long
def test_reviewed_plan_undoes_a_change_by_hand(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("repair")
    repository.commit(streams=ORDERS)
    repository.deploy(aws, "one")
    kinesis, planner, environment = aws.client("kinesis"), repository.planner(aws), repository.environment
    kinesis.increase_stream_retention_period(StreamName="repair-orders", RetentionPeriodHours=48)
    report = look_for_drift(planner, deployment_of(environment), "one", repository.directory / "drift", {})
    assert report is not None
    assert "`make plan ENV=repair REPAIR=1`" in report
    assert "`gh workflow run deploy.yml --ref main -f repair=true`" in report
    assert repository.step("plan", "--commit", "one") == 0
    planner.apply(deployment_of(environment), ["one"], repository.directory / "none")
    assert hours(kinesis) == 48, "without being asked to, a deployment of the same does nothing"
    assert repository.step("plan", "--commit", "one", "--repair") == 0
    assert read_meta(repository.plans / repository.stack).repair
    # Whoever changes more before it is applied is not overrun.
    kinesis.increase_stream_retention_period(StreamName="repair-orders", RetentionPeriodHours=72)
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.orders: update with other values of retention_per"):
        planner.apply(deployment_of(environment), ["one"], repository.plans)
    planner.plan(deployment_of(environment), "one", repository.plans, repair=True)
    planner.apply(deployment_of(environment), ["one"], repository.plans)
    assert hours(kinesis) == 24
    # Whoever does it again finds nothing to do.
    planner.apply(deployment_of(environment), ["one"], repository.plans)
    assert look_for_drift(planner, deployment_of(environment), "one", repository.directory / "drift", {}) is None


def hours(kinesis: Any) -> int:
    return int(
        kinesis.describe_stream_summary(StreamName="repair-orders")["StreamDescriptionSummary"]["RetentionPeriodHours"]
    )


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
    (program := tmp_path / "waited").write_text(f"#!/bin/sh\ncat >&2 <<EOF\n{said}\nEOF\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(program))
    with pytest.raises(PipelineError, match="waited apply failed; part of the plan may have been applied") as applied:
        Terraform(tmp_path).apply(tmp_path / "plan")
    assert f"delete the lock (`aws s3 rm s3://terraform-state/{key}.tflock`)" in str(applied.value)
