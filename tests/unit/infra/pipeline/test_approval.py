"""A plan that differs from what was reviewed is applied only after somebody has read it."""

from __future__ import annotations

from typing import Any

import pytest

from infra.pipeline.deployments import deployment_of
from kinesis_efo_infra.pipeline.approval import decide
from kinesis_efo_infra.pipeline.comparison import digest
from kinesis_efo_infra.pipeline.deployment import Deployment
from tests.unit.infra.conftest import Load

Json = dict[str, Any]


def plan(hours: int) -> Json:
    change = {"actions": ["update"], "before": {"retention_period": 24}, "after": {"retention_period": hours}}
    return {"resource_changes": [{"address": "aws_kinesis_stream.orders", "change": change}]}


@pytest.fixture
def deployment(load: Load) -> Deployment:
    return deployment_of(load(pipeline={"repository": "acme/lake", "branch": "trunk"}))


def test_reviewed_plan_continues_with_any_serial(deployment: Deployment) -> None:
    later = {**plan(48), "prior_state": {"serial": 9}}
    decision = decide(deployment, later, plan(48), approved=[], approvers=False)
    assert (decision.may_go_on, decision.digest) == (True, digest(plan(48)))
    assert "does what was reviewed" in decision.told


@pytest.mark.parametrize("reviewed", [None, plan(72)])
def test_other_plans_wait_for_an_approval(reviewed: Json | None, deployment: Deployment) -> None:
    approved = [digest(plan(72))]
    more: dict[str, Any] = {"approvers": False, "repair": True, "workflow": "deploy-lake.yml"}
    refused = decide(deployment, plan(48), reviewed, approved=approved, **more)
    assert not refused.may_go_on
    command = f"gh workflow run deploy-lake.yml --ref trunk -f approved={digest(plan(48))} -f repair=true`"
    assert command in refused.told
    assert ("aws_kinesis_stream.orders: update with other values of retention_period" in refused.told) is bool(reviewed)
    assert decide(deployment, plan(48), reviewed, approved=[digest(plan(48))], approvers=False).may_go_on
    waits = decide(deployment, plan(48), reviewed, approved=[], approvers=True)
    assert waits.may_go_on
    assert "whoever approves this deployment approves this plan" in waits.told
