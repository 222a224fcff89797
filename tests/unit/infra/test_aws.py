"""Where AWS cannot be asked, a command says in one line why, and what to do."""

from pathlib import Path

import pytest

from infra.__main__ import main as infra
from infra.errors import AwsError, SettingsError
from infra.pipeline.__main__ import main
from infra.pipeline.apply_bootstrap import apply_bootstrap
from kinesis_efo.errors import ConfigurationError
from kinesis_efo_infra.pipeline import filled_in
from kinesis_efo_infra.pipeline.aws import client
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_tools.emr.deployment import load_deployment
from tests.support.messages import raises
from tests.unit.infra.conftest import Load, Write

PIPELINE = {"repository": "acme/lake"}


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


NO_CREDENTIALS = (
    "error: there are no credentials: Unable to locate credentials; give credentials of account 222233334444: `aws sso "
    "login` with AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; in CI, the role of the pipeline"
)
KEYS = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "s", "MAX_ATTEMPTS": "1", "ENDPOINT_URL": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("given", "remedy"), [({}, NO_CREDENTIALS), (KEYS, "look at the network, the proxy and AWS_ENDPOINT_URL")]
)
def test_plan_that_cannot_ask_aws_names_the_remedy(
    given: dict[str, str],
    remedy: str,
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(pipeline=PIPELINE, account_id="222233334444")
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert main(["--directory", str(tmp_path), "plan", "test", "--commit", "c0ffee"]) == 1
    assert remedy in caplog.text


def test_bootstrap_without_credentials_names_the_remedy(load: Load, tmp_path: Path) -> None:
    environment = load(pipeline=PIPELINE, account_id="222233334444")
    s3, iam = (client(service, environment.region, environment.account_id) for service in ("s3", "iam"))

    def no_terraform(directory: Path) -> Terraform:
        return Terraform.__new__(Terraform)  # it would be asked for nothing before AWS is

    with pytest.raises(
        AwsError, match=r"^there are no credentials: Unable to locate credentials; give credentials of acc"
    ):
        apply_bootstrap(environment, tmp_path, s3, iam, terraform=no_terraform)


def test_missing_credentials_are_reported_by_jobs() -> None:
    ssm = client("ssm", "eu-west-1", "222233334444")
    with raises(
        ConfigurationError,
        "there are no credentials to read parameter /kinesis-efo/dev/lake/job with: Unable to locate credentials; `aws sso "
        "login` with AWS_PROFILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ):
        load_deployment("dev", "lake", ssm)


@pytest.mark.parametrize("command", ["plan", "apply", "drift", "jobs", "bootstrap", "doctor"])
def test_values_of_the_template_never_reach_aws(
    command: str, write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(pipeline=PIPELINE, account_id=filled_in.ACCOUNT, state_bucket="acme-terraform-state-test")
    extra = ["--commit", "c0ffee"] if command in ("plan", "apply", "drift") else []
    run = infra if command in ("bootstrap", "doctor") else main
    assert run(["--directory", str(tmp_path), command, "test", *extra]) == 1
    assert caplog.records[-1].getMessage() == (
        "error: 2 faults:\n"
        "  test.yaml: account_id: is the account of the examples: give your own; got '123456789012'\n"
        "  test.yaml: state_bucket: is the template's, and may be somebody's: give a name of your own, as names of buckets are "
        "unique in all of AWS; got 'acme-terraform-state-test'"
    )


def test_template_may_be_used_in_local_aws(load: Load) -> None:
    environment = load(account_id=filled_in.ACCOUNT, state_bucket="acme-terraform-state-test")
    filled_in.refuse(environment, {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566"})
    with pytest.raises(SettingsError, match="account_id"):
        filled_in.refuse(environment, {"AWS_ENDPOINT_URL": "https://kinesis.eu-west-1.amazonaws.com"})
    filled_in.refuse(load(account_id="222233334444"), {})


def test_success_is_quiet(
    write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make synth` runs these two: a warning is told once."""
    monkeypatch.setenv("CDKTF_OUTDIR", str(tmp_path / "out"))
    monkeypatch.chdir(tmp_path)
    write(streams={"orders": {}, "clicks": {}}, pipeline=PIPELINE)
    for more in ([], ["--bootstrap"]):
        assert infra(["--directory", str(tmp_path), "synth", *more]) == 0
    told = f"warning: {tmp_path / 'test.yaml'}: streams.clicks: no application consumes it, yet it is billed while it exists"
    assert [each for each in caplog.messages if "no application consumes it" in each] == [told]
