"""What the role that applies cannot take over, evaluated as IAM does: whatever is not its environment's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from infra.settings.names import Names
from tests.support.iam import Statement, allowed
from tests.unit.infra.conftest import Load, attempt, policy, tags

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
def declare(load: Load) -> Load:
    """Declares an environment with a pipeline and a job."""
    return lambda text="tags: {}", /, **changes: load(f"JOB, PIPELINE, {text}", **changes)


@pytest.fixture
def applies(declare: Load) -> list[Statement]:
    """All that the role that applies may do."""
    return policy(declare())


def taken(statements: list[Statement], thing: Thing, ours: Mapping[str, str] = OURS) -> list[str]:
    """What the role may do to something, after it has tried to make it look like the environment's."""
    service = thing.arn.split(":")[2]
    claimed = {"environment": ours["environment"], "managed_by": ours["managed-by"]}
    for chosen in (claimed, {"environment": claimed["environment"]}, {"managed_by": claimed["managed_by"]}):
        if allowed(statements, f"{service}:TagResource", thing.arn, thing.context(**chosen)):
            thing.tags |= {name.replace("_", "-"): value for name, value in chosen.items()}
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
def test_foreign_resources_cannot_be_taken_over_by_tags(foreign: Thing, applies: list[Statement]) -> None:
    before = dict(foreign.tags)
    assert taken(applies, foreign) == []
    assert foreign.tags == before


ALARM_ACTIONS = {
    "none": "",
    "team": "arn:aws:sns:eu-west-1:111122223333:team",
    "topic": "arn:aws:sns:eu-west-1:777788889999:oncall",
    "terminate": "arn:aws:automate:eu-west-1:ec2:terminate,arn:aws:sns:eu-west-1:111122223333:team",
    "stop": "arn:aws:swf:eu-west-1:111122223333:action/actions/AWS_EC2.InstanceId.Stop/1.0",
    "run": "arn:aws:lambda:eu-west-1:111122223333:function:x",
}


@pytest.mark.parametrize(("topic", "theirs"), [("tags: {}", "-"), (f"alarms.sns_topic: {ALARM_ACTIONS['topic']}", "+")])
def test_alarm_notifies_and_changes_nothing(topic: str, theirs: str, declare: Load) -> None:
    put = "cloudwatch:PutMetricAlarm alarm:kinesis-efo/test/x | ours"
    table = f"""
+ {put} + none
+ {put} + team
{theirs} {put} + topic
- {put} + terminate
- {put} + stop
- {put} + run
"""
    actions = {name: {"cloudwatch:AlarmActions": each} for name, each in ALARM_ACTIONS.items()}
    attempt(policy(declare(topic)), table, ours=tags("Resource"), **actions)


CHANGES = ",".join(
    f"kinesis:{action}"
    for action in (
        "DeleteStream", "DecreaseStreamRetentionPeriod", "UpdateStreamMode", "StopStreamEncryption", "TagResource", "PutResourcePolicy",
        "DeleteResourcePolicy", "IncreaseStreamRetentionPeriod", "StartStreamEncryption", "EnableEnhancedMonitoring", "RegisterStreamConsumer",
    )
)  # fmt: skip


@pytest.mark.parametrize("foreign", [{}, {"team": "billing"}, {"environment": "billing"}, {"managed-by": "somebody"}])
def test_stream_named_like_ours_needs_our_tags(foreign: dict[str, str], applies: list[Statement]) -> None:
    # AWS cannot tell a new stream from an old one that has neither tag: the page says so.
    table = f"""
- {CHANGES} stream/test-billing | theirs + new
+ {CHANGES} stream/test-billing | ours
{"-" if foreign.keys() & OURS.keys() else "+"} kinesis:AddTagsToStream stream/test-billing | theirs + new
- kinesis:AddTagsToStream stream/test-billing | theirs + half
+ kinesis:CreateStream stream/test-billing | theirs + new
"""
    contexts = {
        "theirs": {f"aws:ResourceTag/{name}": value for name, value in foreign.items()},
        "half": {"aws:RequestTag/environment": "test"},
    }
    attempt(applies, table, ours=tags("Resource"), new=tags("Request"), **contexts)


@pytest.mark.parametrize(("imported", "sign"), [("false", "-"), ("true", "+")])
def test_imported_stream_may_have_any_tags(imported: str, sign: str, declare: Load) -> None:
    table = f"""
{sign} kinesis:AddTagsToStream stream/test-orders | theirs + new
- kinesis:DeleteStream stream/test-orders | theirs + new
"""
    statements = policy(declare(f"streams.orders.import_existing: {imported}"))
    attempt(statements, table, theirs={"aws:ResourceTag/environment": "billing"}, new=tags("Request"))


@pytest.mark.parametrize(("store", "sign"), [("ssm", "+"), ("s3", "-")])
def test_jobs_change_no_programs_metrics_and_roles(store: str, sign: str, declare: Load) -> None:
    environment = declare(f"manifest_store: {store}")
    bucket, manifest = Names(environment).artifacts_bucket, Names(environment).manifest_key("lake")
    table = f"""
- s3:PutObject,s3:DeleteObject {bucket}/programs/1/job.py
- s3:PutObject,s3:DeleteObject {bucket}/environments/1/x.tar.gz
+ s3:PutObject,s3:DeleteObject {bucket}/logs/x
{sign} s3:PutObject,s3:DeleteObject {bucket}/{manifest}
+ s3:GetObject {bucket}/programs/1/job.py
+ s3:GetObject {bucket}/environments/1/x.tar.gz
+ s3:GetObject {bucket}/logs/x
+ s3:GetObject {bucket}/{manifest}
+ cloudwatch:PutMetricData * | KinesisEfo
+ cloudwatch:PutMetricData * | kinesis-efo/test/job
- cloudwatch:PutMetricData * | kinesis-efo/test2/job
- cloudwatch:PutMetricData * | AWS/Kinesis
- cloudwatch:PutMetricData *
- sts:AssumeRole role/x
"""
    namespaces = ("KinesisEfo", "kinesis-efo/test/job", "kinesis-efo/test2/job", "AWS/Kinesis")
    contexts = {each: {"cloudwatch:namespace": each} for each in namespaces}
    attempt(policy(environment, "boundary"), table, **contexts)


def test_own_resources_can_be_created_and_changed(applies: list[Statement]) -> None:
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
