"""The state of the bootstrap stack ends in the bucket that the stack declares, also after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.__main__ import main
from infra.errors import PipelineError
from infra.pipeline.apply_bootstrap import apply_bootstrap
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.pipeline.deployers import workflow_of
from kinesis_efo_infra.pipeline.deployment import GITHUB_ISSUER
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import BACKEND, REGION, Repository

Checkout = Callable[[str], Repository]


def environment_of(repository: Repository, **changes: Any) -> Environment:
    repository.commit(state_bucket=f"state-of-{repository.name}", **changes)
    return load_environment(repository.environments / f"{repository.name}.yaml")


def reach(out: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make Terraform's S3 backend use local AWS.

    By an override file, since options of `terraform init` would also go to the local backend that comes first.
    """
    names = Names(environment)
    monkeypatch.delenv("TF_CLI_ARGS_init")
    stack = out / "stacks" / names.bootstrap_stack_name
    stack.mkdir(parents=True)
    place = {"bucket": environment.state_bucket, "key": names.bootstrap_state_key, "region": REGION}
    # Terraform takes override files in the order of their names: this one is overridden in turn.
    backend = {"s3": {**place, "encrypt": True, "use_lockfile": True, **dict.fromkeys(BACKEND, True)}}
    (stack / "a_override.tf.json").write_text(json.dumps({"terraform": {"backend": backend}}), encoding="utf-8")
    return out


def state_of(aws: LocalAws, environment: Environment) -> dict[str, Any]:
    key = Names(environment).bootstrap_state_key
    answer = aws.client("s3").get_object(Bucket=environment.state_bucket, Key=key)
    state: dict[str, Any] = json.loads(answer["Body"].read())
    return state


def addresses(state: dict[str, Any]) -> set[str]:
    return {f"{each['type']}.{each['name']}" for each in state["resources"] if each["mode"] == "managed"}


@pytest.mark.long
def test_first_bootstrap_moves_its_state_into_the_bucket(
    aws: LocalAws, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = checkout("boot")
    environment = environment_of(repository)
    command = ["--directory", str(repository.environments), "bootstrap", "boot", "--yes", "--unasked", "--out"]
    assert main([*command, str(reach(repository.directory / "out", environment, monkeypatch))]) == 0
    state = state_of(aws, environment)
    assert {"aws_s3_bucket.state", "aws_iam_role.plan", "aws_iam_role.apply", "aws_iam_policy.boundary"} <= addresses(
        state
    )
    assert not list(repository.directory.rglob("*.tfstate.backup")) + list(repository.directory.rglob("bootstrap*.tf*"))
    # From another checkout, which has no state of its own.
    monkeypatch.setenv("TF_CLI_ARGS_init", "")
    assert main([*command, str(reach(repository.directory / "elsewhere", environment, monkeypatch))]) == 0
    assert state_of(aws, environment)["resources"] == state["resources"]


class Reached(Exception):
    pass


class Stopped(Terraform):
    """Raises as soon as it is used."""

    def init(self, *, reconfigure: bool = False, migrate: bool = False) -> None:
        raise Reached


class Interrupted(Terraform):
    """Dies when the state should move."""

    def init(self, *, reconfigure: bool = False, migrate: bool = False) -> None:
        if migrate:
            raise PipelineError("the connection is gone")
        super().init(reconfigure=reconfigure)


@pytest.mark.long
def test_interrupted_bootstrap_continues(aws: LocalAws, checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = checkout("cut")
    environment = environment_of(repository)
    out = reach(repository.directory / "out", environment, monkeypatch)
    s3, iam = aws.client("s3"), aws.client("iam")
    with pytest.raises(PipelineError, match="the connection is gone"):
        apply_bootstrap(
            environment, synthesize_bootstrap([environment], out), s3, iam, approve=True, terraform=Interrupted
        )
    before = json.loads(next(out.rglob("bootstrap.tfstate")).read_text())
    apply_bootstrap(environment, synthesize_bootstrap([environment], out), s3, iam, approve=True)
    # Ids and all: nothing was created a second time.
    assert state_of(aws, environment)["resources"] == before["resources"]


@pytest.mark.long
def test_bootstrap_without_a_pipeline_creates_the_bucket(
    aws: LocalAws, checkout: Checkout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository = checkout("alone")
    environment = environment_of(repository, pipeline=None)
    command = ["--directory", str(repository.environments), "bootstrap", "alone", "--yes", "--out"]
    out = reach(repository.directory / "out", environment, monkeypatch)
    with caplog.at_level("INFO"):
        assert main([*command, str(out)]) == 0
    assert "alone.yaml has no `pipeline:`: its state bucket alone is made" in caplog.text
    assert "GitHub was not asked" not in caplog.text
    made = addresses(state_of(aws, environment))
    assert {"aws_s3_bucket.state", "aws_kms_key.state"} <= made
    assert not [each for each in made if "iam" in each]
    # A pipeline that comes later finds it as its own, and again is no change.
    monkeypatch.setenv("TF_CLI_ARGS_init", "")
    assert main([*command, str(reach(repository.directory / "again", environment, monkeypatch))]) == 0
    later = environment_of(repository, pipeline={"repository": "acme/lake"})
    monkeypatch.setenv("TF_CLI_ARGS_init", "")
    elsewhere = reach(repository.directory / "later", later, monkeypatch)
    assert main([*command, str(elsewhere), "--unasked"]) == 0
    assert made < addresses(state_of(aws, later))


@pytest.mark.long
def test_bucket_created_by_hand_is_left_alone(
    aws: LocalAws, checkout: Checkout, caplog: pytest.LogCaptureFixture
) -> None:
    repository = checkout("hand")
    environment = environment_of(repository, pipeline=None)
    elsewhere = {"LocationConstraint": REGION}
    aws.client("s3").create_bucket(Bucket=environment.state_bucket, CreateBucketConfiguration=elsewhere)
    with caplog.at_level("INFO"):
        out = str(repository.directory / "out")
        assert main(["--directory", str(repository.environments), "bootstrap", "hand", "--yes", "--out", out]) == 0
    assert "is there already, made by somebody else: nothing to do" in caplog.text
    assert not aws.client("s3").list_objects_v2(Bucket=environment.state_bucket).get("Contents")


@pytest.mark.long
def test_missing_adopted_bucket_is_an_error(aws: LocalAws, checkout: Checkout, tmp_path: Path) -> None:
    repository = checkout("odd")
    s3, iam = aws.client("s3"), aws.client("iam")
    adopting = environment_of(repository, pipeline={"repository": "acme/lake", "adopt_state_bucket": True})
    with pytest.raises(PipelineError, match="bucket state-of-odd does not exist, although adopt_state_bucket says so"):
        apply_bootstrap(adopting, synthesize_bootstrap([adopting], tmp_path), s3, iam)


@pytest.mark.long
def test_rules_are_those_of_the_files_repository(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository = checkout("theirs")
    environment_of(repository, pipeline={"repository": "acme/lake"})
    looked_at: list[Path] = []

    def look(_github: Any, _deployment: Any, deploy: Path) -> None:
        looked_at.append(deploy)
        raise PipelineError("nobody is asked here")

    monkeypatch.setattr("infra.pipeline.apply_bootstrap.check_rules", look)
    out = str(repository.directory / "out")
    asked = ["--directory", str(repository.environments), "bootstrap", "theirs", "--yes", "--out", out]
    assert main(asked) == 1
    assert "nobody is asked here" in caplog.text
    assert main([*asked, "--deploy", "deploy-lake.yml"]) == 1
    assert looked_at == [workflow_of(repository.environments, name) for name in ("deploy.yml", "deploy-lake.yml")]
    assert looked_at[0].is_relative_to(repository.directory)


@pytest.mark.long
def test_name_like_another_pipelines_is_refused(
    aws: LocalAws, checkout: Checkout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    iam = aws.client("iam")
    made: list[str] = []

    def bootstrapped(name: str, path: str = "/kinesis-efo-pipeline/") -> None:
        made.append(f"kinesis-efo-pipeline-{name}-apply")
        iam.create_role(RoleName=made[-1], Path=path, AssumeRolePolicyDocument="{}")

    environment = environment_of(checkout("alike-2"))
    out = synthesize_bootstrap([environment], tmp_path / "alike")

    def apply() -> None:
        apply_bootstrap(environment, out, aws.client("s3"), iam, terraform=Stopped)

    try:
        bootstrapped("alik")
        with pytest.raises(Reached):
            apply()
        # From another repository, whose files nobody sees here.
        bootstrapped("alike")
        told = "names of alike-2 begin like those of alike, which has a pipeline in account 111122223333 as well"
        with pytest.raises(PipelineError, match=f"{told}.*use another name, or another account"):
            apply()
        # Both are deployed: they get better policies, and are told.
        bootstrapped("alike-2")
        with pytest.raises(Reached):
            apply()
        assert f"warning: {told}" in caplog.text
        # A role of somebody else that IAM cannot tell from a new one.
        for name, tags in {
            "kinesis-efo-alike-2-theirs": {},
            "kinesis-efo-alike-2-lake": {"environment": "alike-2"},
            "kinesis-efo-alike-20-theirs": {},
        }.items():
            iam.create_role(
                RoleName=name,
                AssumeRolePolicyDocument="{}",
                Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
            )
            made.append(name)
        with pytest.raises(Reached):
            apply()
        assert (
            "role kinesis-efo-alike-2-theirs has a name like those of alike-2 and neither tag environment nor managed-by"
            in caplog.text
        )
        assert not any(f"role kinesis-efo-alike-2{each}" in caplog.text for each in ("-lake", "0-theirs"))
    finally:
        for role in made:
            iam.delete_role(RoleName=role)


@pytest.mark.long
@pytest.mark.parametrize("issuer", [GITHUB_ISSUER, f"{GITHUB_ISSUER}/acme"])
def test_provider_of_an_account_belongs_to_its_tags(
    issuer: str, aws: LocalAws, checkout: Checkout, tmp_path: Path
) -> None:
    tags = [{"Key": "environment", "Value": "first"}, {"Key": "managed-by", "Value": "kinesis-efo-bootstrap"}]
    iam = aws.client("iam")
    url = f"https://{issuer}"
    arn = iam.create_open_id_connect_provider(Url=url, ThumbprintList=["a" * 40], Tags=tags)["OpenIDConnectProviderArn"]
    environment = environment_of(checkout("first"), account_id=arn.split(":")[4])
    assert environment.pipeline
    pipeline = environment.pipeline.model_copy(update={"issuer": issuer})
    environment = environment.model_copy(update={"pipeline": pipeline})
    second = environment.model_copy(update={"project": "lake"})

    def apply(chosen: Environment) -> None:
        out = synthesize_bootstrap([chosen], tmp_path / chosen.project)
        apply_bootstrap(chosen, out, aws.client("s3"), iam, terraform=Stopped)

    try:
        with pytest.raises(
            PipelineError, match=rf"already, that of first, .* say `oidc_provider_arn: {arn}` .*first.yaml"
        ):
            apply(second)
        adopting = pipeline.model_copy(update={"oidc_provider_arn": arn})
        for ready in (environment, second.model_copy(update={"pipeline": adopting})):
            with pytest.raises(Reached):
                apply(ready)
    finally:
        iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=arn)
