"""`TERRAFORM_BINARY_NAME` says what plans and applies, and plans do not pass from one program to the other."""

from pathlib import Path

import pytest

from infra.errors import PipelineError, StalePlanError
from kinesis_efo_infra.pipeline.bundle import read_meta
from kinesis_efo_infra.pipeline.terraform import Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Checkout
from tests.support.terraform.tofu import stand_in_tofu


@pytest.mark.long
def test_opentofu_applies_only_its_own_plans(
    aws: LocalAws, checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = checkout("tofu")
    repository.plan("one")
    program, calls = stand_in_tofu(tmp_path / "bin")
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(program))
    with pytest.raises(
        StalePlanError,
        match=r"was planned with Terraform 1\.\d+\.\d+; this is OpenTofu 1\.10\.6, whose state the other may not",
    ):
        repository.apply("one")
    repository.plan("two")
    assert read_meta(repository.plans / repository.stack).terraform == "OpenTofu 1.10.6"
    calls.unlink()
    repository.apply("two")
    assert "tofu-orders" in aws.client("kinesis").list_streams()["StreamNames"]
    ran = [line.split()[1] for line in calls.read_text().splitlines()]
    assert ran == ["init", "state", "plan", "show", "version", "show", "apply"]


def test_plan_without_the_binary_names_it(
    aws: LocalAws, checkout: Checkout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repository = checkout("tofu-gone")
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "no-such-tofu")
    assert repository.step("plan") == 1
    assert "there is no no-such-tofu on the PATH: install Terraform or OpenTofu, 1.10 or later" in caplog.text


def test_other_program_and_failure_name_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "echo")
    with pytest.raises(PipelineError, match=r"/echo is neither Terraform nor OpenTofu: `version` prints '-chdir="):
        _ = Terraform(tmp_path).version
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "false")
    with pytest.raises(PipelineError, match=r"^false validate failed in "):
        Terraform(tmp_path).validate()
