"""A plan is applied if it is the reviewed one and made on the present state; else it is refused."""

import json
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.pipeline.bundle import PLAN_JSON, read_meta
from kinesis_efo_infra.pipeline.foreign import foreign_consumers
from kinesis_efo_infra.pipeline.record import Deployed
from kinesis_efo_infra.pipeline.steps import is_before
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Checkout

MORE = {"orders": {"mode": "provisioned", "shards": 2}, "clicks": {"mode": "provisioned", "shards": 1}}


@pytest.mark.slow
def test_reviewed_plan_is_applied_once(aws: LocalAws, checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    repository = checkout("dev")
    assert repository.step("plan", "--commit", "head", scanned=True) == 0
    assert repository.comment() == 0
    told = capsys.readouterr().out
    created = read_meta(repository.plans / repository.stack).changes.create
    assert created >= 10
    assert f"| `kinesis-efo-dev` | {created} | 0 | 0 | 0 | `sha256:" in told
    assert 'resource "aws_kinesis_stream_consumer" "orders_lake"' in told
    row = "| `aws_kinesis_stream.orders` | 0 → 1 | 0 → 1,460 | 0 → 1 | 0.00 → 21.90 | 0.000 → 0.013 |\n"
    assert row in told, "one consumer on two shards"
    assert "| `aws_kinesis_stream.orders`: consumers | 1 on 2 shards | - | 21.90 |" in told
    assert "Prices of eu-west-1 are not known here; these are those of us-east-1" in told
    assert "dev-orders" not in aws.client("kinesis").list_streams()["StreamNames"], "planning created something"
    assert repository.step("apply", "--commit", "merge") == 1, "a plan of another commit was applied"
    assert repository.step("apply", "--commit", "merge", "--reviewed", "head") == 0
    assert "dev-orders" in aws.client("kinesis").list_streams()["StreamNames"]
    assert repository.record.commit == "merge", "what is on the branch, and not what was reviewed"
    # A run that is repeated changes nothing, and a later pull request has nothing to plan.
    shutil.rmtree(repository.plans)
    assert repository.step("apply", "--commit", "merge") == 0
    assert repository.step("plan", "--commit", "later") == 0
    assert not repository.plans.exists()


@pytest.mark.long
def test_plan_is_applied_if_only_the_state_moved(aws: LocalAws, checkout: Checkout) -> None:
    repository, s3 = checkout("moved"), aws.client("s3")
    repository.deploy("one")
    repository.commit(streams=MORE)
    repository.plan("two")
    # Something else was deployed and taken back: another serial, and nothing else.
    place = {"Bucket": "terraform-state", "Key": "kinesis-efo/moved.tfstate"}
    state = json.loads(s3.get_object(**place)["Body"].read())
    s3.put_object(**place, Body=json.dumps({**state, "serial": state["serial"] + 2}).encode())
    repository.apply("two")
    assert "moved-clicks" in aws.client("kinesis").list_streams()["StreamNames"]


@pytest.mark.long
def test_racing_deployment_is_refused_by_terraform(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("raced")
    repository.plan("one")
    raced = repository.planner(prepare=lambda _: repository.apply("one"))
    with pytest.raises(PipelineError, match=r"another deployment of raced wrote .*raced\.deployed\.json meanwhile"):
        repository.apply("one", planner=raced)
    # Where the record does not tell either.
    aws.client("s3").delete_object(Bucket="terraform-state", Key="kinesis-efo/raced.deployed.json")
    repository.commit(streams=MORE)
    repository.plan("two")

    class Raced(Terraform):
        def apply(self, plan: Path) -> None:
            super().apply(plan)
            super().apply(plan)

    with pytest.raises(StalePlanError, match="Saved plan is stale"):
        repository.apply("two", planner=repository.planner(terraform=Raced))
    assert repository.record.under_way == "two"


@pytest.mark.long
def test_plan_with_other_contents_is_refused(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("other")
    repository.plan("one")
    plan = repository.plans / repository.stack / PLAN_JSON
    reviewed = plan.read_bytes()
    plan.write_bytes(reviewed + b"}")
    with pytest.raises(PipelineError, match=r"plan\.json is no plan of Terraform"):
        repository.apply("one")
    plan.write_bytes(reviewed.replace(b"other-orders", b"other-order"))
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.orders: create with other values of .*name"):
        repository.apply("one")
    plan.write_bytes(reviewed)
    repository.commit(streams=MORE)
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.clicks: create, which was not shown"):
        repository.apply("one")
    repository.commit(streams={"clicks": MORE["clicks"]}, applications={"lake": {"streams": ["clicks"]}})
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.orders: create was shown, and would not be done"):
        repository.apply("one")
    assert "other-orders" not in aws.client("kinesis").list_streams()["StreamNames"]


def test_finding_of_checkov_stops_the_plan(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("unsafe")
    strict = repository.planner(lambda _: ["CKV_AWS_43 Ensure: orders"])
    with pytest.raises(PipelineError, match="CKV_AWS_43 Ensure: orders"):
        strict.plan(repository.deployment, "one", repository.plans)
    # Somebody made a plan without the gate.
    repository.plan("one")
    with pytest.raises(PipelineError, match="CKV_AWS_43 Ensure: orders"):
        repository.apply("one", planner=strict)
    assert repository.record == Deployed()


@pytest.mark.long
def test_change_by_hand_and_foreign_consumer_are_drift(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("hand")
    assert repository.step("drift", "--commit", "one") == 1, "nothing is deployed"
    repository.deploy("one")
    assert repository.drift() is None
    kinesis = aws.client("kinesis")
    stream = kinesis.describe_stream_summary(StreamName="hand-orders")["StreamDescriptionSummary"]["StreamARN"]
    kinesis.register_stream_consumer(StreamARN=stream, ConsumerName="flink")
    foreign = foreign_consumers(kinesis, repository.deployment)
    alone = repository.drift(lambda _: foreign)
    assert alone is not None
    assert "although commit `one` is deployed." in alone
    assert "What would put it right" not in alone
    aws.client("ssm").put_parameter(Name="/kinesis-efo/hand/lake", Value="{}", Type="String", Overwrite=True)
    report = repository.directory / "drift.md"
    asked = ("--commit", "one", "--link", "https://ci", "--deploy", "deploy-lake.yml", "--report", str(report))
    assert repository.step("drift", *asked) == 0
    body = report.read_text(encoding="utf-8")
    for part in (
        "on GitHub `gh workflow run deploy-lake.yml --ref main -f repair=true`", "[The run that found it](https://ci)",
        "although commit `one` is deployed: 0 to create, 1 to update", "aws_ssm_parameter.lake", "| 2 of 20 |",
        "**1 consumer that no environment declares**", f"| `hand-orders` | `{stream}/consumer/flink:",
    ):  # fmt: skip
        assert part in body


@pytest.mark.long
def test_state_of_another_account_is_not_used(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("same")
    repository.deploy("one")
    # That of another repository, with the same name and bucket.
    repository.commit(account_id="444455556666")
    with pytest.raises(
        PipelineError, match="its state is that of an environment in account 111122223333: use another state_bucket"
    ):
        repository.plan("two")


@pytest.mark.long
def test_rerun_of_an_old_run_undoes_nothing(
    aws: LocalAws, checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its plan was reviewed, and would do exactly that again once it was reverted."""
    monkeypatch.chdir(tmp_path)
    one, more, revert = commits("one", "more", "revert")
    repository = checkout("again")
    streams, planner = repository.document["streams"], repository.planner(is_before=is_before)
    repository.deploy(one)
    repository.commit(streams=MORE)
    reviewed = tmp_path / "reviewed"
    repository.plan(more, reviewed)
    # The revert comes first. It has nothing to apply, and counts all the same.
    repository.commit(streams=streams)
    repository.apply(revert, planner=planner)
    assert repository.record.commit == revert
    repository.commit(streams=MORE)
    older = rf"commit {more} is older than {revert}, which was deployed; nothing was applied\. Deploy the head of main;"
    with pytest.raises(PipelineError, match=older):
        repository.apply(more, plans=reviewed, planner=planner)
    # Nor does it if the later one failed half way.
    planner.records.save(repository.deployment, Deployed(commit=one, under_way=revert))
    with pytest.raises(PipelineError, match=older):
        repository.apply(more, "head of the pull request", plans=reviewed, planner=planner)
    assert repository.step("apply", "--commit", more, plans=reviewed, history=True) == 1
    assert f"error: kinesis-efo-again: commit {more} is older than {revert}" in caplog.text
    assert "again-clicks" not in aws.client("kinesis").list_streams()["StreamNames"]


def test_age_of_a_commit_needs_the_whole_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole := tmp_path / "whole").mkdir()
    monkeypatch.chdir(whole)
    first, second, third = commits("first", "second", "third")
    assert [is_before(first, third), is_before(third, first), is_before(second, second)] == [True, False, False]
    with pytest.raises(PipelineError, match=r"gone is older than .*cannot be told: .*; fetch the whole history"):
        is_before("gone", first)
    git("clone", "--quiet", "--depth=1", f"file://{whole}", str(tmp_path / "shallow"))
    monkeypatch.chdir(tmp_path / "shallow")
    with pytest.raises(PipelineError, match=rf"{third} is older than {first}, which was deployed, cannot be told"):
        is_before(third, first)
    git("fetch", "--quiet", "--depth=1", "origin", first)
    with pytest.raises(PipelineError, match="this clone is shallow; fetch the whole history"):
        is_before(first, third)


def git(*arguments: str) -> str:
    told = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments]
    return subprocess.run(told, check=True, capture_output=True, text=True).stdout.strip()


def commits(*messages: str) -> list[str]:
    """Make a repository with these commits in the working directory, the first one first."""
    git("init", "--quiet", "--initial-branch=main")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    for each in messages:
        git("commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message", each)
    return git("log", "--reverse", "--format=%H").split()


@pytest.mark.long
def test_handed_on_plan_has_no_secret(aws: LocalAws, checkout: Checkout, caplog: pytest.LogCaptureFixture) -> None:
    """Who reads the repository reads the artifact, and the log."""
    repository = checkout("secret")

    class Watched(Terraform):
        def show(self, plan: Path) -> dict[str, Any]:
            assert self._directory.stat().st_mode & 0o077 == 0, "other users of the host read it"
            return super().show(plan)

    planner = repository.planner(terraform=Watched)

    def plan(value: str) -> tuple[str, str]:
        name = "/kinesis-efo/secret"
        secret = {"name": f"{name}/password", "type": "SecureString", "value": value}
        copy = {"name": f"{name}/copy", "type": "String", "value": "x", "description": value}
        repository.forge(lambda stack: stack["resource"]["aws_ssm_parameter"].update(password=secret, copy=copy))
        meta = planner.plan(repository.deployment, "one", repository.plans)
        files = [each.read_text(encoding="utf-8") for each in (repository.plans / repository.stack).iterdir()]
        return "\n".join(files), meta.plan

    texts, first = plan("hunter1-of-the-lake")
    assert "hunter" not in texts
    assert planner.records.key(repository.deployment) not in texts
    with caplog.at_level(logging.INFO):
        repository.apply("one")
    assert "aws_ssm_parameter.copy" in caplog.text
    assert "hunter" not in caplog.text
    assert b"hunter1" in (planner.records.state(repository.deployment) or b"")
    texts, second = plan("hunter2-of-the-lake")
    assert "hunter" not in texts
    assert "aws_ssm_parameter.password" in texts
    assert plan("hunter3-of-the-lake")[1] != second != first, "another secret is another plan"
    assert plan("hunter2-of-the-lake")[1] == second
