"""A deployment is rehearsed in local AWS: by real Terraform with the stand-in provider, and with the real one where it is in reach."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.__main__ import NOT_RUN, main
from infra.errors import NotRunError, RehearsalError
from infra.local import apply_local as module
from infra.local.account import LocalAccount
from infra.local.apply_local import apply_local, changed, local_aws
from infra.settings.model import Environment
from kinesis_efo.local import LocalAws, Settings, server
from tests.support.missing import EVERYTHING, not_here

Declare = Callable[..., Environment]
PIPELINE = {"repository": "acme@1/data@2", "extra_policies": ["arn:aws:iam::111122223333:policy/extra"]}
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
WHOLE: dict[str, Any] = {
    "protected": True,
    "pipeline": PIPELINE,
    "streams": {
        "orders": {"mode": "provisioned", "shards": 2, "retention_hours": 48, "shard_metrics": ["IncomingBytes"]},
        "returns": {
            "name": "old-returns",
            "import_existing": True,
            "import_consumers": {"lake": "arn:aws:kinesis:eu-west-1:111122223333:stream/old-returns/consumer/lake:1"},
            "mode": "provisioned",
            "shards": 3,
            "scaled_elsewhere": True,
        },
        "payments": {"existing_arn": "arn:aws:kinesis:eu-west-1:111122223333:stream/payments"},
        "events": {"existing_arn": FOREIGN, "consumers": {"lake": f"{FOREIGN}/consumer/lake:1"}},
    },
    "applications": {
        "lake": {
            "streams": ["orders", "returns", "payments", "events"],
            "access": {"kind": "emr-serverless", "policies": ["arn:aws:iam::111122223333:policy/team/lake"]},
        },
        "ledger": {"streams": ["payments"], "lease_table": "Ledger2", "import_lease_table": True},
        "auditor": {"streams": ["orders"], "polling": "only"},
        "partner": {
            "streams": ["orders"],
            "access": {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]},
        },
    },
    "emr": {"serverless": {"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]}},
}


@contextmanager
def served(environment: Environment) -> Iterator[str]:
    """A local AWS in this process."""
    settings = Settings(region=environment.region, account_id=environment.account_id, consumer_deleting_seconds=0)
    with LocalAws(settings=settings) as aws:
        yield aws.endpoint_url


@pytest.fixture
def stand_in(provider: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Terraform uses the stand-in provider."""
    monkeypatch.setenv("TF_REATTACH_PROVIDERS", provider["TF_REATTACH_PROVIDERS"])


@pytest.mark.long
@pytest.mark.usefixtures("stand_in")
def test_stacks_are_applied_planned_again_changed_and_destroyed(
    declare: Declare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(**WHOLE)
    with caplog.at_level(logging.INFO):
        apply_local(tmp_path, "test", served)
    said = [line for line in caplog.messages if line.startswith("kinesis-efo-test")]
    assert [line.partition(": ")[2].partition(",")[0] for line in said] == [
        "initialized and valid",
        "applied",  # what the file says
        "applied",  # with more retention, a stream and a consumer
        "applied",  # without protection
        "destroyed",
        "initialized and valid",
        "applied",
        "applied",
        "destroyed",
    ]
    assert ": applied, 3 to import, " in said[1], "a stream, its consumer and a table were there"
    assert said[1].endswith("0 to replace, 0 to destroy; a second plan is empty")
    assert "0 to replace, 0 to destroy; a second plan is empty" in said[2]


@pytest.mark.usefixtures("stand_in")
def test_a_second_plan_that_is_not_empty_is_an_error(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(streams={"orders": {"retention_hours": 48}})

    def forgetful(_kinesis: Any, _params: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setitem(server.OPERATIONS, "IncreaseStreamRetentionPeriod", forgetful)
    with pytest.raises(RehearsalError, match=r"a second plan is not empty:\n[\s\S]*retention_period"):
        apply_local(tmp_path, "test", served)


@pytest.mark.usefixtures("stand_in")
def test_what_is_left_in_the_end_is_an_error(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare()

    def messy(stack: Any) -> None:
        destroy(stack)
        # As a provider that forgets a table.
        LocalAccount(declare(), stack._terraform._variables["AWS_ENDPOINT_URL"])._lease_table("forgotten")

    destroy = module.Stack.end
    monkeypatch.setattr(module.Stack, "end", messy)
    with pytest.raises(RehearsalError, match="left in local AWS after its destruction: dynamodb forgotten"):
        apply_local(tmp_path, "test", served)


def test_the_account_shows_what_is_in_it(declare: Declare) -> None:
    environment = declare(**WHOLE)
    with served(environment) as endpoint:
        account = LocalAccount(environment, endpoint)
        there = account.prepare()
        assert account.prepare() == there, "a second time finds it there"
        assert there.emr is not None
        assert there.emr.serverless is not None
        assert there.emr.serverless.subnets != ["subnet-0123456789abcdef0"]
        holds = account.holds()
        assert {
            "kinesis payments",
            "kinesis old-returns",
            "dynamodb Ledger2",
            "iam arn:aws:iam::111122223333:policy/team/lake",
            "iam arn:aws:iam::111122223333:policy/extra",
        } <= holds
        account.client("s3").create_bucket(
            Bucket="acme", CreateBucketConfiguration={"LocationConstraint": environment.region}
        )
        account.client("emr-serverless").create_application(
            name="jobs", releaseLabel="emr-spark-8.0.0", type="spark", clientToken="t"
        )
        account.client("ssm").put_parameter(Name="/a", Value="b", Type="String")
        account.client("cloudwatch").put_dashboard(DashboardName="d", DashboardBody='{"widgets":[]}')
        key = account.client("kms").create_key()["KeyMetadata"]["KeyId"]
        account.client("kms").create_alias(AliasName="alias/kinesis-efo/test", TargetKeyId=key)
        assert account.holds() - holds == {
            "s3 acme",
            "emr-serverless jobs",
            "ssm /a",
            "cloudwatch d",
            "kms alias/kinesis-efo/test",
        }


def test_the_change_keeps_what_there_is(declare: Declare) -> None:
    environment = declare(**WHOLE)
    later = changed(environment)
    assert set(later.streams) - set(environment.streams) == {"rehearsal"}
    assert later.applications["lake"].streams == [*environment.applications["lake"].streams, "rehearsal"]
    assert later.applications["partner"] == environment.applications["partner"]


def test_without_a_registry_nothing_is_run_and_the_exit_code_says_so(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "bin" / "tofu"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho 'Warning: old' >&2\necho 'Error: Failed to query available provider packages\n\n"
        "could not connect to registry.opentofu.org: no such host' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(program))
    monkeypatch.setattr(module.apply_local, "__defaults__", (served,))
    declare()
    assert main(["--directory", str(tmp_path), "apply-local", "test"]) == NOT_RUN == 75
    assert caplog.messages[-1] == (
        "not run: the registry of the AWS provider is out of reach: Failed to query available provider packages could not "
        "connect to registry.opentofu.org: no such host"
    )


def test_a_provider_that_is_there_and_wrong_is_a_failure(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "bin" / "terraform"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Error: the checksum of the registry does not match' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", str(program))
    monkeypatch.setattr(module.apply_local, "__defaults__", (served,))
    declare()
    assert main(["--directory", str(tmp_path), "apply-local", "test"]) == 1
    assert "the checksum of the registry does not match" in caplog.text


def test_without_the_binary_nothing_is_run(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare()
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "no-such-binary")
    with pytest.raises(NotRunError, match=r"there is no no-such-binary on the PATH"):
        apply_local(tmp_path, "test", served)


def test_local_aws_has_the_account_of_the_environment(declare: Declare) -> None:
    environment = declare()
    with local_aws(environment) as endpoint:
        identity = LocalAccount(environment, endpoint).client("sts").get_caller_identity()
    assert identity["Account"] == environment.account_id


@pytest.mark.slow
def test_the_real_provider_applies_an_environment(declare: Declare, tmp_path: Path) -> None:
    """Waits of the provider take minutes, and it has to be downloaded: where that is not asked for, it is not run."""
    if not os.environ.get(EVERYTHING):
        not_here(
            f"Terraform's AWS provider was not tried; `make apply-local`, or {EVERYTHING}=1, in reach of its registry"
        )
    declare(streams={"orders": {"mode": "provisioned", "shards": 1}}, alarms={"dashboard": False})
    try:
        apply_local(tmp_path, "test", served)
    except NotRunError as error:
        not_here(str(error))
