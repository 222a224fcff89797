"""Where AWS cannot be asked, a command says in one line why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.apply_bootstrap import apply_bootstrap
from infra.aws import client
from infra.errors import AwsError
from infra.pipeline.__main__ import main
from infra.pipeline.terraform import Terraform
from infra.settings import Environment

PIPELINE = {"repository": "acme/lake"}


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_a_plan_without_credentials_is_one_line_with_the_remedy(
    load: Callable[..., Environment], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(pipeline=PIPELINE)
    assert main(["--directory", str(tmp_path), "plan", "test", "--commit", "c0ffee"]) == 1
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "error: AWS cannot be asked: Unable to locate credentials; give credentials of account 111122223333: `aws sso "
        "login` with AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; in CI, the role of the pipeline"
    )


def test_a_bootstrap_without_credentials_is_one_line_with_the_remedy(
    load: Callable[..., Environment], tmp_path: Path
) -> None:
    environment = load(pipeline=PIPELINE)
    s3, iam = (client(service, environment.region, environment.account_id) for service in ("s3", "iam"))

    def no_terraform(directory: Path) -> Terraform:
        return Terraform.__new__(Terraform)  # it would be asked for nothing before AWS is

    with pytest.raises(AwsError, match=r"^AWS cannot be asked: Unable to locate credentials; give credentials of acc"):
        apply_bootstrap(environment, tmp_path, s3, iam, terraform=no_terraform)


def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AwsError, match=r"profile \(nobody\) could not be found; give credentials of account 1"):
        client("s3", "eu-west-1", "1")


def test_aws_that_cannot_be_reached_is_another_line(
    load: Callable[..., Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load(pipeline=PIPELINE)
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "s"), ("MAX_ATTEMPTS", "1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert main(["--directory", str(tmp_path), "plan", "test", "--commit", "c0ffee"]) == 1
    assert 'Could not connect to the endpoint URL: "http://127.0.0.1:9' in caplog.text
    assert "look at the network, the proxy and AWS_ENDPOINT_URL" in caplog.text
