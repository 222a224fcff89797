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


def test_an_alarm_notifies_and_does_nothing_to_instances(declare: Callable[..., Environment]) -> None:
    alarm, topic = (
        f"arn:aws:cloudwatch:eu-west-1:{ACCOUNT}:alarm:kinesis-efo/test/x",
        "arn:aws:sns:eu-west-1:777788889999:oncall",
    )
    ours = f"arn:aws:sns:eu-west-1:{ACCOUNT}:team"
    for environment, theirs in ((declare(), False), (declare(alarms={"sns_topic": topic}), True)):
        for actions, may in (
            ("", True),
            (ours, True),
            (topic, theirs),
            (f"arn:aws:automate:eu-west-1:ec2:terminate,{ours}", False),
            (f"arn:aws:swf:eu-west-1:{ACCOUNT}:action/actions/AWS_EC2.InstanceId.Stop/1.0", False),
            (f"arn:aws:lambda:eu-west-1:{ACCOUNT}:function:x", False),
        ):
            context = {**Thing(alarm, OURS).context(), "cloudwatch:AlarmActions": actions}
            assert allowed(role(environment), "cloudwatch:PutMetricAlarm", alarm, context) is may, actions


@pytest.mark.parametrize("foreign", [{}, {"team": "billing"}, {"environment": "billing"}, {"managed-by": "somebody"}])
def test_a_stream_with_a_name_like_ours_is_not_changed_without_our_tags(
    foreign: dict[str, str], applies: list[Statement]
) -> None:
    stream, ours = (
        Thing(f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/test-billing", foreign),
        {"environment": "test", "managed_by": "kinesis-efo"},
    )
    for action in (
        "DeleteStream",
        "DecreaseStreamRetentionPeriod",
        "UpdateStreamMode",
        "StopStreamEncryption",
        "TagResource",
        "PutResourcePolicy",
        "DeleteResourcePolicy",
        "IncreaseStreamRetentionPeriod",
        "StartStreamEncryption",
        "EnableEnhancedMonitoring",
        "RegisterStreamConsumer",
    ):
        assert not allowed(applies, f"kinesis:{action}", stream.arn, stream.context(**ours)), action
        assert allowed(applies, f"kinesis:{action}", stream.arn, Thing(stream.arn, OURS).context()), action
    # AWS cannot tell a new stream from an old one that has neither tag: the page says so.
    untagged = not foreign.keys() & OURS.keys()
    assert allowed(applies, "kinesis:AddTagsToStream", stream.arn, stream.context(**ours)) is untagged
    assert not allowed(applies, "kinesis:AddTagsToStream", stream.arn, stream.context(environment="test"))
    assert allowed(applies, "kinesis:CreateStream", stream.arn, stream.context(**ours))


def test_a_stream_that_the_file_takes_over_may_have_anybodys_tags(declare: Callable[..., Environment]) -> None:
    theirs = Thing(f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/test-orders", {"environment": "billing"})
    asked = theirs.context(environment="test", managed_by="kinesis-efo")
    for imported in (False, True):
        statements = role(declare(streams={"orders": {"import_existing": True} if imported else {}}))
        assert allowed(statements, "kinesis:AddTagsToStream", theirs.arn, asked) is imported
        assert not allowed(statements, "kinesis:DeleteStream", theirs.arn, asked)


def bounds(environment: Environment) -> list[Statement]:
    document: dict[str, Any] = json.loads(iam.policy_json(permissions.policies(environment)["boundary"]))
    return list(document["Statement"])


@pytest.mark.parametrize("store", ["ssm", "s3"])
def test_jobs_do_not_write_what_jobs_run(store: str, declare: Callable[..., Environment]) -> None:
    environment = declare(manifest_store=store)
    names = Names(environment)
    bucket, statements = names.bucket_arn(names.artifacts_bucket), bounds(environment)
    kept = {
        "programs/1/job.py": False,
        "environments/1/x.tar.gz": False,
        "logs/x": True,
        names.manifest_key("lake"): store == "ssm",
    }
    for key, may in kept.items():
        for action in ("PutObject", "DeleteObject"):
            assert allowed(statements, f"s3:{action}", f"{bucket}/{key}", {}) is may, (action, key)
        assert allowed(statements, "s3:GetObject", f"{bucket}/{key}", {}), key


@pytest.mark.parametrize(
    ("namespace", "may"),
    [
        ("KinesisEfo", True),
        ("kinesis-efo/test/job", True),
        ("kinesis-efo/test2/job", False),
        ("AWS/Kinesis", False),
        (None, False),
    ],
)
def test_jobs_put_metrics_into_their_namespaces_only(
    namespace: str | None, may: bool, declare: Callable[..., Environment]
) -> None:
    context = {} if namespace is None else {"cloudwatch:namespace": namespace}
    assert allowed(bounds(declare()), "cloudwatch:PutMetricData", "*", context) is may


def test_jobs_assume_no_role_within_the_boundary(declare: Callable[..., Environment]) -> None:
    assert not allowed(bounds(declare()), "sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/x", {})


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
