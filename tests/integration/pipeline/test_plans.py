"""A plan is applied if it is the reviewed one and made on the present state; else it is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import PipelineError, StalePlanError
from infra.pipeline.deployments import deployment_of
from kinesis_efo_infra.pipeline.bundle import PLAN_JSON, Meta, read_meta
from kinesis_efo_infra.pipeline.drift import look_for_drift
from kinesis_efo_infra.pipeline.foreign import foreign_consumers
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.record import Deployed, Records
from kinesis_efo_infra.pipeline.steps import is_before
from kinesis_efo_infra.pipeline.terraform import LOCK_FILE, Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Repository
from tests.support.isolated import ROOT

Checkout = Callable[[str], Repository]
MORE = {"orders": {"mode": "provisioned", "shards": 2}, "clicks": {"mode": "provisioned", "shards": 1}}


@pytest.mark.slow
def test_reviewed_plan_is_applied_once(aws: LocalAws, checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    repository = checkout("dev")
    repository.commit()
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
    record = Records(aws.client("s3")).load(deployment_of(repository.environment))
    assert record.commit == "merge", "what is on the branch, and not what was reviewed"
    # A run that is repeated changes nothing, and a later pull request has nothing to plan.
    shutil.rmtree(repository.plans)
    assert repository.step("apply", "--commit", "merge") == 0
    assert repository.step("plan", "--commit", "later") == 0
    assert not repository.plans.exists()


@pytest.mark.long
def test_plan_of_all_settings_has_its_bill(aws: LocalAws, checkout: Checkout) -> None:
    written = yaml.safe_load((ROOT / "infra" / "example.yaml").read_text(encoding="utf-8"))
    assert written["region"] == "eu-west-1"
    # What exists elsewhere is not here to be taken over, and its pipeline has no environment before it.
    del written["pipeline"]["after"]
    for each in (*written["streams"].values(), *written["applications"].values()):
        for setting in ("import_existing", "import_consumers", "import_lease_table"):
            each.pop(setting, None)
    repository = checkout("example")
    repository.commit(**{**written, "state_bucket": "terraform-state"})
    told = repository.planner(aws).plan(deployment_of(repository.environment), "head", repository.plans).cost
    assert "| `aws_kinesis_stream.clicks`: on-demand | 730 hours | - | 29.20 |" in told
    (total,) = [line for line in told if "together" in line]
    (dollars,) = re.findall(r"([\d,]+\.\d\d)[^|]*\|$", total)
    assert float(dollars.replace(",", "")) > 100
    whose = "**Prices of eu-west-1 are not known here; these are those of us-east-1, and eu-west-1 may be dearer.** Prices of us-east-1 as known on 2026-"
    assert whose in told[-1]


@pytest.mark.long
def test_plan_is_refused_after_another_deployment(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("stale")
    repository.commit()
    environment = repository.environment
    first, second = repository.directory / "first", repository.directory / "second"
    repository.planner(aws).plan(deployment_of(environment), "one", first)
    repository.planner(aws).plan(deployment_of(environment), "two", second)
    repository.planner(aws).apply(deployment_of(environment), ["one"], first)
    # As if nothing had been recorded: only the plan can tell.
    aws.client("s3").delete_object(Bucket="terraform-state", Key="kinesis-efo/stale.deployed.json")
    gone = r"(?s)nothing was applied.*aws_kinesis_stream\.orders: create was shown, and would not be done"
    with pytest.raises(StalePlanError, match=gone):
        repository.planner(aws).apply(deployment_of(environment), ["two"], second)


@pytest.mark.long
def test_plan_is_applied_if_only_the_state_moved(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("moved")
    repository.commit()
    planner = repository.planner(aws)
    repository.deploy(aws, "one")
    repository.commit(streams=MORE)
    planner.plan(deployment_of(repository.environment), "two", repository.plans)
    before = read_meta(repository.plans / repository.stack).state
    # Something else was deployed and taken back: another serial, and nothing else.
    key = "kinesis-efo/moved.tfstate"
    state = json.loads(aws.client("s3").get_object(Bucket="terraform-state", Key=key)["Body"].read())
    body = json.dumps({**state, "serial": state["serial"] + 2}).encode()
    aws.client("s3").put_object(Bucket="terraform-state", Key=key, Body=body)
    planner.apply(deployment_of(repository.environment), ["two"], repository.plans)
    assert "moved-clicks" in aws.client("kinesis").list_streams()["StreamNames"]
    assert before.serial == state["serial"]


@pytest.mark.long
def test_racing_deployment_is_refused_by_terraform(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("raced")
    repository.commit()
    environment = repository.environment
    repository.planner(aws).plan(deployment_of(environment), "one", repository.plans)

    def meanwhile(_plan: Plan) -> None:
        repository.planner(aws).apply(deployment_of(environment), ["one"], repository.plans)

    raced = replace(repository.planner(aws), prepare=meanwhile)
    with pytest.raises(PipelineError, match=r"another deployment of raced wrote .*raced\.deployed\.json meanwhile"):
        raced.apply(deployment_of(environment), ["one"], repository.plans)
    # Where the record does not tell either.
    aws.client("s3").delete_object(Bucket="terraform-state", Key="kinesis-efo/raced.deployed.json")
    repository.commit(streams=MORE)
    repository.planner(aws).plan(deployment_of(environment), "two", repository.plans)

    class Raced(Terraform):
        def apply(self, plan: Path) -> None:
            super().apply(plan)
            super().apply(plan)

    with pytest.raises(StalePlanError, match="Saved plan is stale"):
        replace(repository.planner(aws), terraform=Raced).apply(deployment_of(environment), ["two"], repository.plans)
    assert repository.planner(aws).records.load(deployment_of(environment)).under_way == "two"


@pytest.mark.long
def test_plan_with_other_contents_is_refused(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("other")
    repository.commit()
    environment = repository.environment
    repository.planner(aws).plan(deployment_of(environment), "one", repository.plans)
    plan = repository.plans / repository.stack / PLAN_JSON
    reviewed = plan.read_bytes()
    plan.write_bytes(reviewed + b"}")
    with pytest.raises(PipelineError, match=r"plan\.json is no plan of Terraform"):
        repository.planner(aws).apply(deployment_of(environment), ["one"], repository.plans)
    plan.write_bytes(reviewed.replace(b"other-orders", b"other-order"))
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.orders: create with other values of .*name"):
        repository.planner(aws).apply(deployment_of(environment), ["one"], repository.plans)
    plan.write_bytes(reviewed)
    repository.commit(streams=MORE)
    with pytest.raises(StalePlanError, match=r"aws_kinesis_stream\.clicks: create, which was not shown"):
        repository.planner(aws).apply(deployment_of(environment), ["one"], repository.plans)
    assert "other-orders" not in aws.client("kinesis").list_streams()["StreamNames"]


def test_finding_of_checkov_stops_the_plan(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("unsafe")
    repository.commit()
    environment = repository.environment
    strict = repository.planner(aws, lambda _: ["CKV_AWS_43 Ensure: orders"])
    with pytest.raises(PipelineError, match="CKV_AWS_43 Ensure: orders"):
        strict.plan(deployment_of(environment), "one", repository.plans)
    # Somebody made a plan without the gate.
    repository.planner(aws).plan(deployment_of(environment), "one", repository.plans)
    with pytest.raises(PipelineError, match="CKV_AWS_43 Ensure: orders"):
        strict.apply(deployment_of(environment), ["one"], repository.plans)
    assert strict.records.load(deployment_of(environment)) == Deployed()


@pytest.mark.long
def test_change_that_aws_would_refuse_is_not_planned(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("shards")
    repository.commit()
    planner = repository.planner(aws)
    repository.deploy(aws, "one")
    repository.commit(streams={"orders": {"mode": "provisioned", "shards": 9}})
    message = r"kinesis-efo-shards cannot be applied as planned:\n  aws_kinesis_stream.orders: from 2 to 9 shards: .* 4, then 8, then 9"
    with pytest.raises(PipelineError, match=message):
        planner.plan(deployment_of(repository.environment), "two", repository.plans)
    with pytest.raises(StalePlanError, match="there is no plan"):
        planner.apply(deployment_of(repository.environment), ["two"], repository.plans)
    # Drift is found, however large; and a plan that was made otherwise is not applied either.
    planner.plan(deployment_of(repository.environment), "two", repository.plans, to_apply=False)
    with pytest.raises(PipelineError, match=message):
        planner.apply(deployment_of(repository.environment), ["two"], repository.plans)


@pytest.mark.long
def test_change_by_hand_and_foreign_consumer_are_drift(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("hand")
    repository.commit()
    assert repository.step("drift", "--commit", "one") == 1, "nothing is deployed"
    environment = repository.environment
    quick = repository.planner(aws)
    repository.deploy(aws, "one")
    assert look_for_drift(quick, deployment_of(environment), "one", repository.directory / "drift", {}) is None
    kinesis = aws.client("kinesis")
    stream = kinesis.describe_stream_summary(StreamName="hand-orders")["StreamDescriptionSummary"]["StreamARN"]
    kinesis.register_stream_consumer(StreamARN=stream, ConsumerName="flink")
    foreign = foreign_consumers(kinesis, deployment_of(environment))
    alone = look_for_drift(
        quick, deployment_of(environment), "one", repository.directory / "drift", {}, lambda _: foreign
    )
    assert alone is not None
    assert "although commit `one` is deployed." in alone
    assert "What would put it right" not in alone
    aws.client("ssm").put_parameter(Name="/kinesis-efo/hand/lake", Value="{}", Type="String", Overwrite=True)
    report = repository.directory / "drift.md"
    asked = ("--commit", "one", "--link", "https://ci", "--deploy", "deploy-lake.yml", "--report", str(report))
    assert repository.step("drift", *asked) == 0
    body = report.read_text(encoding="utf-8")
    assert "on GitHub `gh workflow run deploy-lake.yml --ref main -f repair=true`" in body
    assert "although commit `one` is deployed: 0 to create, 1 to update" in body
    assert "[The run that found it](https://ci)" in body
    assert "aws_ssm_parameter.lake" in body
    assert "**1 consumer that no environment declares**" in body
    assert f"| `hand-orders` | `{stream}/consumer/flink:" in body
    assert "| 2 of 20 |" in body


@pytest.mark.long
def test_lock_file_of_the_provider_is_the_committed_one(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("locked")
    repository.commit()
    planner = repository.planner(aws)
    planner.plan(deployment_of(repository.environment), "one", repository.plans)
    used: list[bytes] = []

    class Watched(Terraform):
        def init(self, *, reconfigure: bool = False, migrate: bool = False) -> None:
            used.append((self._directory / LOCK_FILE).read_bytes())
            super().init(reconfigure=reconfigure, migrate=migrate)

    # Whatever the bundle brings.
    (repository.plans / repository.stack / LOCK_FILE).write_text("provider {", encoding="utf-8")
    replace(planner, terraform=Watched).apply(deployment_of(repository.environment), ["one"], repository.plans)
    assert used == [repository.providers.read_bytes()]
    repository.providers.unlink()
    with pytest.raises(
        PipelineError, match=r"providers\.lock\.hcl is missing, .*: `make providers ENV=locked` writes it"
    ):
        planner.plan(deployment_of(repository.environment), "two", repository.plans)


@pytest.mark.long
def test_state_of_another_account_is_not_used(aws: LocalAws, checkout: Checkout) -> None:
    repository = checkout("same")
    repository.commit()
    planner = repository.planner(aws)
    repository.deploy(aws, "one")
    # That of another repository, with the same name and bucket.
    repository.commit(account_id="444455556666")
    with pytest.raises(
        PipelineError, match="its state is that of an environment in account 111122223333: use another state_bucket"
    ):
        planner.plan(deployment_of(repository.environment), "two", repository.plans)


@pytest.mark.long
def test_rerun_of_an_old_run_undoes_nothing(
    aws: LocalAws, checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its plan was reviewed, and would do exactly that again once it was reverted."""
    monkeypatch.chdir(tmp_path)
    one, more, revert = commits("one", "more", "revert")
    repository = checkout("again")
    repository.commit()
    deployment, streams = deployment_of(repository.environment), repository.document["streams"]
    planner = replace(repository.planner(aws), is_before=is_before)
    planner.plan(deployment, one, repository.plans)
    planner.apply(deployment, [one], repository.plans)
    repository.commit(streams=MORE)
    reviewed = tmp_path / "reviewed"
    planner.plan(deployment, more, reviewed)
    # The revert comes first. It has nothing to apply, and counts all the same.
    repository.commit(streams=streams)
    planner.apply(deployment, [revert], repository.plans)
    assert planner.records.load(deployment).commit == revert
    repository.commit(streams=MORE)
    older = rf"commit {more} is older than {revert}, which was deployed; nothing was applied\. Deploy the head of main;"
    with pytest.raises(PipelineError, match=older):
        planner.apply(deployment, [more], reviewed)
    # Nor does it if the later one failed half way.
    planner.records.save(deployment, Deployed(commit=one, under_way=revert))
    with pytest.raises(PipelineError, match=older):
        planner.apply(deployment, [more, "head of the pull request"], reviewed)
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
def test_handed_on_plan_has_no_secret(aws: LocalAws, checkout: Checkout) -> None:
    """Who reads the repository reads the artifact."""
    repository = checkout("secret")
    repository.commit()

    class Watched(Terraform):
        def show(self, plan: Path) -> dict[str, Any]:
            assert self._directory.stat().st_mode & 0o077 == 0, "other users of the host read it"
            return super().show(plan)

    deployment = deployment_of(repository.environment)
    planner = replace(repository.planner(aws), terraform=Watched)

    def plan(value: str) -> tuple[str, Meta]:
        path = repository.synthesized / "stacks" / repository.stack / "cdk.tf.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        parameter = {"name": "/kinesis-efo/secret/password", "type": "SecureString", "value": value}
        document["resource"]["aws_ssm_parameter"]["password"] = parameter
        path.write_text(json.dumps(document), encoding="utf-8")
        meta = planner.plan(deployment, "one", repository.plans)
        files = [each.read_text(encoding="utf-8") for each in (repository.plans / repository.stack).iterdir()]
        return "\n".join(files), meta

    texts, first = plan("hunter1")
    assert "hunter" not in texts
    assert planner.records.key(deployment) not in texts
    planner.apply(deployment, ["one"], repository.plans)
    state = planner.records.state(deployment)
    assert state is not None
    assert b"hunter1" in state
    texts, second = plan("hunter2")
    assert "hunter" not in texts
    assert "aws_ssm_parameter.password" in texts
    assert plan("hunter3")[1].plan != second.plan != first.plan, "another secret is another plan"
    assert plan("hunter2")[1].plan == second.plan
