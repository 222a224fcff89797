"""A deployment is rehearsed in local AWS: by real Terraform with the stand-in provider, and with the real one where it is in reach."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError
from infra.local.real_provider import OUT_OF_REACH
from infra.settings.model import Environment
from kinesis_efo_local import server
from tests.support.missing import EVERYTHING, not_here
from tests.support.rehearsal import LocalAccount, Rehearsal, RehearsalError, rehearse

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


@pytest.fixture
def stand_in(provider: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Terraform uses the stand-in provider."""
    monkeypatch.setenv("TF_REATTACH_PROVIDERS", provider["TF_REATTACH_PROVIDERS"])


@pytest.mark.long
@pytest.mark.usefixtures("stand_in")
def test_stacks_are_applied_changed_and_destroyed(
    declare: Declare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(**WHOLE)
    with caplog.at_level(logging.INFO):
        rehearse(tmp_path, "test", tmp_path / "scratch")
    said = [line for line in caplog.messages if line.startswith("kinesis-efo-test")]
    # What the file says; with more retention, a stream and a consumer; without protection. Then the same of the bootstrap stack.
    times = {"streaming": 3, "bootstrap": 2}
    assert [line.partition(": ")[2].partition(",")[0] for line in said] == [
        step
        for count in times.values()
        for step in ("initialized and valid", *["applied", "a second plan is empty"] * count, "destroyed")
    ]
    assert ": applied, 3 to import, " in said[1], "a stream, its consumer and a table were there"
    assert said[1].endswith("0 to replace, 0 to destroy")
    assert said[3].endswith("0 to replace, 0 to destroy")


@pytest.mark.long
@pytest.mark.usefixtures("stand_in")
def test_second_plan_with_changes_is_an_error(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(streams={"orders": {"retention_hours": 48}})

    def forgetful(_kinesis: Any, _params: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setitem(server.OPERATIONS, "IncreaseStreamRetentionPeriod", forgetful)
    with pytest.raises(RehearsalError, match=r"a second plan is not empty:\n[\s\S]*retention_period"):
        rehearse(tmp_path, "test", tmp_path / "scratch")


@pytest.mark.long
@pytest.mark.usefixtures("stand_in")
def test_leftover_resource_is_an_error(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare()

    def messy(stack: Any) -> None:
        destroy(stack)
        # As a provider that forgets a table.
        LocalAccount(declare(), stack.terraform._variables["AWS_ENDPOINT_URL"]).lease_table("forgotten")

    destroy = Rehearsal.end
    monkeypatch.setattr(Rehearsal, "end", messy)
    with pytest.raises(RehearsalError, match="left in local AWS after its destruction: dynamodb forgotten"):
        rehearse(tmp_path, "test", tmp_path / "scratch")


@pytest.mark.slow
def test_real_provider_applies_an_environment(declare: Declare, tmp_path: Path) -> None:
    """Waits of the provider take minutes, and it has to be downloaded: where that is not asked for, it is not run."""
    if not os.environ.get(EVERYTHING):
        not_here(
            f"Terraform's AWS provider was not tried; `make rehearsal`, or {EVERYTHING}=1, in reach of its registry"
        )
    declare(streams={"orders": {"mode": "provisioned", "shards": 1}}, alarms={"dashboard": False})
    try:
        rehearse(tmp_path, "test", tmp_path / "scratch")
    except PipelineError as error:
        if OUT_OF_REACH.search(str(error)):
            not_here(f"the registry of Terraform's AWS provider is out of reach: {error}")
        raise
