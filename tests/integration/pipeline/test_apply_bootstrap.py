"""The state of the bootstrap stack ends in the bucket that the stack declares, also after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.__main__ import main
from infra.errors import PipelineError
from infra.pipeline.apply_bootstrap import apply_bootstrap
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.pipeline.deployers import workflow_of
from kinesis_efo_infra.pipeline.deployment import GITHUB_ISSUER
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import BACKEND, REGION, Checkout, Repository


@pytest.fixture
def boot(checkout: Checkout) -> Checkout:
    """Makes a repository whose environment has a state bucket of its own."""
    return lambda name, **changes: checkout(name, state_bucket=f"state-of-{name}", **changes)


def command(repository: Repository, out: Path, *more: str) -> int:
    arguments = ["--directory", str(repository.environments), "bootstrap", repository.name, "--yes"]
    return main([*arguments, "--out", str(out), *more])


def bootstrap(repository: Repository, out: Path, **changes: Any) -> None:
    environment, aws = repository.environment, repository.aws
    written = synthesize_bootstrap([environment], out)
    apply_bootstrap(environment, written, aws.client("s3"), aws.client("iam"), **changes)


def reach(out: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make Terraform's S3 backend use local AWS.

    By an override file, since options of `terraform init` would also go to the local backend that comes first.
    """
    names = Names(environment)
    monkeypatch.delenv("TF_CLI_ARGS_init", raising=False)
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
def test_interrupted_bootstrap_continues(aws: LocalAws, boot: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = boot("cut")
    out = reach(repository.directory / "out", repository.environment, monkeypatch)
    with pytest.raises(PipelineError, match="the connection is gone"):
        bootstrap(repository, out, approve=True, terraform=Interrupted)
    before = json.loads(next(out.rglob("bootstrap.tfstate")).read_text())
    bootstrap(repository, out, approve=True)
    # Ids and all: nothing was created a second time.
    assert state_of(aws, repository.environment)["resources"] == before["resources"]


@pytest.mark.long
def test_bootstrap_without_a_pipeline_creates_the_bucket(
    aws: LocalAws, boot: Checkout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository = boot("alone", pipeline=None)
    with caplog.at_level("INFO"):
        assert command(repository, reach(repository.directory / "out", repository.environment, monkeypatch)) == 0
    assert "alone.yaml has no `pipeline:`: its state bucket alone is made" in caplog.text
    assert "GitHub was not asked" not in caplog.text
    left = [*repository.directory.rglob("*.tfstate.backup"), *repository.directory.rglob("bootstrap*.tf*")]
    assert not left, "the state has moved into the bucket"
    made = addresses(state_of(aws, repository.environment))
    assert {"aws_s3_bucket.state", "aws_kms_key.state"} <= made
    assert not [each for each in made if "iam" in each]
    # A pipeline that comes later finds it as its own.
    repository.commit(pipeline={"repository": "acme/lake"})
    later = reach(repository.directory / "later", repository.environment, monkeypatch)
    assert command(repository, later, "--unasked") == 0
    assert made < addresses(state_of(aws, repository.environment))


@pytest.mark.long
def test_bucket_created_by_hand_is_left_alone(aws: LocalAws, boot: Checkout, caplog: pytest.LogCaptureFixture) -> None:
    repository, s3 = boot("hand", pipeline=None), aws.client("s3")
    s3.create_bucket(Bucket="state-of-hand", CreateBucketConfiguration={"LocationConstraint": REGION})
    with caplog.at_level("INFO"):
        assert command(repository, repository.directory / "out") == 0
    assert "is there already, made by somebody else: nothing to do" in caplog.text
    assert not s3.list_objects_v2(Bucket="state-of-hand").get("Contents")


@pytest.mark.long
def test_missing_adopted_bucket_is_an_error(boot: Checkout, tmp_path: Path) -> None:
    repository = boot("odd", pipeline={"repository": "acme/lake", "adopt_state_bucket": True})
    with pytest.raises(PipelineError, match="bucket state-of-odd does not exist, although adopt_state_bucket says so"):
        bootstrap(repository, tmp_path / "out")


@pytest.mark.long
def test_rules_are_those_of_the_files_repository(
    boot: Checkout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository, looked_at = boot("theirs"), list[Path]()

    def look(_github: Any, _deployment: Any, deploy: Path) -> None:
        looked_at.append(deploy)
        raise PipelineError("nobody is asked here")

    monkeypatch.setattr("infra.pipeline.apply_bootstrap.check_rules", look)
    out = repository.directory / "out"
    assert (command(repository, out), command(repository, out, "--deploy", "deploy-lake.yml")) == (1, 1)
    assert "nobody is asked here" in caplog.text
    assert looked_at == [workflow_of(repository.environments, name) for name in ("deploy.yml", "deploy-lake.yml")]
    assert looked_at[0].is_relative_to(repository.directory)


@pytest.mark.long
def test_name_like_another_pipelines_is_refused(
    aws: LocalAws, boot: Checkout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    iam, repository, made = aws.client("iam"), boot("alike-2"), list[str]()

    def role(name: str, path: str = "/", **tags: str) -> None:
        made.append(name)
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        iam.create_role(RoleName=name, Path=path, AssumeRolePolicyDocument="{}", Tags=listed)

    def bootstrapped(name: str) -> None:
        role(f"kinesis-efo-pipeline-{name}-apply", "/kinesis-efo-pipeline/")

    def reached() -> None:
        with pytest.raises(Reached):
            bootstrap(repository, tmp_path / "alike", terraform=Stopped)

    try:
        bootstrapped("alik")
        reached()
        # From another repository, whose files nobody sees here.
        bootstrapped("alike")
        told = "names of alike-2 begin like those of alike, which has a pipeline in account 111122223333 as well"
        with pytest.raises(PipelineError, match=f"{told}.*use another name, or another account"):
            bootstrap(repository, tmp_path / "alike", terraform=Stopped)
        # Both are deployed: they get better policies, and are told.
        bootstrapped("alike-2")
        reached()
        assert f"warning: {told}" in caplog.text
        # A role of somebody else that IAM cannot tell from a new one.
        role("kinesis-efo-alike-2-theirs")
        role("kinesis-efo-alike-2-lake", environment="alike-2")
        role("kinesis-efo-alike-20-theirs")
        reached()
        untagged = "has a name like those of alike-2 and neither tag environment nor managed-by"
        assert f"role kinesis-efo-alike-2-theirs {untagged}" in caplog.text
        assert caplog.text.count(untagged) == 1
    finally:
        for each in made:
            iam.delete_role(RoleName=each)


@pytest.mark.long
@pytest.mark.parametrize("issuer", [GITHUB_ISSUER, f"{GITHUB_ISSUER}/acme"])
def test_provider_of_an_account_belongs_to_its_tags(issuer: str, aws: LocalAws, boot: Checkout, tmp_path: Path) -> None:
    tags = [{"Key": "environment", "Value": "first"}, {"Key": "managed-by", "Value": "kinesis-efo-bootstrap"}]
    iam = aws.client("iam")
    made = iam.create_open_id_connect_provider(Url=f"https://{issuer}", ThumbprintList=["a" * 40], Tags=tags)
    arn, pipeline = made["OpenIDConnectProviderArn"], {"repository": "acme/lake", "issuer": issuer}
    repository = boot("first", pipeline=pipeline, account_id=arn.split(":")[4])
    try:
        with pytest.raises(Reached):
            bootstrap(repository, tmp_path / "first", terraform=Stopped)
        repository.commit(project="lake")
        theirs = rf"already, that of first, .* say `oidc_provider_arn: {arn}` .*first.yaml"
        with pytest.raises(PipelineError, match=theirs):
            bootstrap(repository, tmp_path / "second", terraform=Stopped)
        repository.commit(pipeline={**pipeline, "oidc_provider_arn": arn})
        with pytest.raises(Reached):
            bootstrap(repository, tmp_path / "adopting", terraform=Stopped)
    finally:
        iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=arn)
