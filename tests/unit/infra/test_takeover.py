"""What the role that applies cannot take over, evaluated as IAM does: whatever is not its environment's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from infra.stacks.base import default_tags
from kinesis_efo_infra import iam
from tests.support.iam import Statement, allowed

ACCOUNT = "111122223333"
OURS = {"environment": "test", "managed-by": "kinesis-efo"}
KEY = f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/0123abcd"
APPLICATION = f"arn:aws:emr-serverless:eu-west-1:{ACCOUNT}:/applications/00abc"
RUN = f"{APPLICATION}/jobruns/00def"
MANAGING = {
    KEY: ("kms:PutKeyPolicy", "kms:ScheduleKeyDeletion", "kms:CreateAlias", "kms:UntagResource"),
    APPLICATION: (
        "emr-serverless:DeleteApplication", "emr-serverless:StartApplication", "emr-serverless:StartJobRun",
        "emr-serverless:StopApplication", "emr-serverless:UpdateApplication",
    ),
    RUN: ("emr-serverless:CancelJobRun", "emr-serverless:GetJobRun"),
}  # fmt: skip


@dataclass
class Thing:
    """Something in the account, with its tags and the alias that a key has."""

    arn: str
    tags: dict[str, str] = field(default_factory=dict)
    alias: str | None = None

    def context(self, **request_tags: str) -> dict[str, str]:
        context = {f"aws:ResourceTag/{name}": value for name, value in self.tags.items()}
        context |= {f"aws:RequestTag/{name.replace('_', '-')}": value for name, value in request_tags.items()}
        return context | ({"kms:ResourceAliases": self.alias} if self.alias else {})


@pytest.fixture
def declare(load: Callable[..., Environment]) -> Callable[..., Environment]:
    """Declares an environment with a pipeline and a job."""
    access = {"streams": ["orders"], "access": {"kind": "emr-serverless"}}
    job = {"application": "lake", "program": "jobs/archive.py"}
    declaration: dict[str, Any] = {"emr": {}, "applications": {"lake": access}, "jobs": [job]}
    return lambda **changes: load(pipeline={"repository": "acme/lake"}, **declaration, **changes)


@pytest.fixture
def applies(declare: Callable[..., Environment]) -> list[Statement]:
    """All that the role that applies may do."""
    return role(declare())


def role(environment: Environment, *, without: str = "boundary") -> list[Statement]:
    """The statements of the role that applies, as AWS gets them."""
    policies = permissions.policies(environment)
    statements = [each for kind, policy in policies.items() if kind != without for each in policy]
    document: dict[str, Any] = json.loads(iam.policy_json(statements))
    return list(document["Statement"])


def taken(statements: list[Statement], thing: Thing, ours: Mapping[str, str] = OURS) -> list[str]:
    """What the role may do to something, after it has tried to make it look like the environment's."""
    service = thing.arn.split(":")[2]
    claimed = {"environment": ours["environment"], "managed_by": ours["managed-by"]}
    for tags in (claimed, {"environment": claimed["environment"]}, {"managed_by": claimed["managed_by"]}):
        if allowed(statements, f"{service}:TagResource", thing.arn, thing.context(**tags)):
            thing.tags |= {name.replace("_", "-"): value for name, value in tags.items()}
    return [action for action in MANAGING[thing.arn] if allowed(statements, action, thing.arn, thing.context())]


@pytest.mark.parametrize(
    "foreign",
    [
        # The state's own key, first of all.
        Thing(KEY, {"environment": "test", "managed-by": "kinesis-efo-bootstrap"}, "alias/kinesis-efo/pipeline/test"),
        Thing(KEY, {"environment": "prod", "managed-by": "kinesis-efo"}, "alias/kinesis-efo/prod"),
        Thing(KEY, {"environment": "test", "managed-by": "somebody"}),
        Thing(KEY, {"environment": "billing"}),
        Thing(KEY, {"managed-by": "kinesis-efo"}),
        Thing(KEY, {}, "alias/billing"),
        Thing(APPLICATION, {"environment": "prod", "managed-by": "kinesis-efo"}),
        Thing(APPLICATION, {"managed-by": "somebody"}),
        Thing(RUN, {"environment": "prod", "managed-by": "kinesis-efo"}),
        Thing(RUN, {"environment": "billing"}),
    ],
    ids=lambda thing: f"{thing.arn.split(':')[2]} {thing.tags} {thing.alias}",
)
def test_what_is_somebody_elses_cannot_be_taken_over_by_tags(foreign: Thing, applies: list[Statement]) -> None:
    before = dict(foreign.tags)
    assert taken(applies, foreign) == []
    assert foreign.tags == before


@pytest.mark.parametrize(("ours", "theirs"), [*permutations(("kinesis-efo", "lake", "pond"), 2)])
def test_what_is_another_projects_cannot_be_taken_over_by_tags(
    ours: str, theirs: str, declare: Callable[..., Environment]
) -> None:
    us, them = declare(project=ours), declare(project=theirs)
    alias = f"alias/{Names(them).path}"
    for arn in MANAGING:
        for managed_by in ("kinesis-efo", "kinesis-efo-bootstrap"):
            tags = default_tags(them, managed_by)
            assert taken(role(us), Thing(arn, dict(tags), alias if arn == KEY else None), default_tags(us)) == []
        own = Thing(arn, default_tags(us))
        assert taken(role(us), own, default_tags(us)) == list(MANAGING[arn])


def test_the_buckets_of_states_are_not_managed(applies: list[Statement]) -> None:
    bucket = "arn:aws:s3:::state"
    for action in ("PutBucketPolicy", "DeleteBucket", "PutBucketVersioning", "PutLifecycleConfiguration"):
        assert not allowed(applies, f"s3:{action}", bucket, {}), action
    for key in ("bootstrap/test.tfstate", "other.tfstate", "other.deployed.json"):
        for action in ("GetObject", "PutObject", "DeleteObject"):
            assert not allowed(applies, f"s3:{action}", f"{bucket}/kinesis-efo/{key}", {}), (action, key)
    assert not allowed(applies, "s3:DeleteObject", f"{bucket}/kinesis-efo/test.tfstate", {})


def test_the_environments_own_can_be_created_and_changed(applies: list[Statement]) -> None:
    for create, tag, arn in (
        ("kms:CreateKey", "kms:TagResource", KEY),
        ("emr-serverless:CreateApplication", "emr-serverless:TagResource", APPLICATION),
        (None, "emr-serverless:TagResource", RUN),
    ):
        new = Thing(arn).context(environment="test", managed_by="kinesis-efo", owner="me")
        assert create is None or allowed(applies, create, "*", new)
        assert create is None or not allowed(applies, create, "*", Thing(arn).context(environment="test"))
        assert allowed(applies, tag, arn, new)
        own = Thing(arn, OURS)
        assert all(allowed(applies, action, arn, own.context()) for action in MANAGING[arn])
    assert allowed(applies, "kms:TagResource", KEY, Thing(KEY, OURS, "alias/kinesis-efo/test").context(owner="you"))
    assert allowed(applies, "emr-serverless:TagResource", APPLICATION, Thing(APPLICATION, OURS).context(owner="you"))
