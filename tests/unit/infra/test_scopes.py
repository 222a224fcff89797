"""No role of an environment reaches another's, of its project or of another one, evaluated as IAM does, in one account, in whatever regions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest

from infra.settings.literals import literal_policy
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import REGISTRATION
from tests.support.iam import Statement, allowed
from tests.unit.infra.conftest import Load, attempt, in_json, policy, tags

REGIONS = ("eu-west-1", "us-east-1")
PIPELINE = {"repository": "acme/lake"}
ACCOUNT = "111122223333"
ADOPTED = f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/payments"
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
NETWORK = {"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]}
# A policy of their own lets jobs use what their arguments name.
ACCESS = {"kind": "emr-serverless", "policies": ["arn:aws:iam::111122223333:policy/lake-output"]}


def declared(load: Load, name: str, region: str = "eu-west-1", **changes: Any) -> Environment:
    """An environment, such as `dev` or `lake.dev`, with a job on EMR Serverless, in a bucket and a database of its own."""
    output = f"s3://acme-lake-{name}/raw"
    project, _, environment = name.rpartition(".")
    return load(
        environment=environment,
        project=project or "kinesis-efo",
        region=region,
        protected=True,
        state_bucket="states",
        pipeline={**PIPELINE, "databases": [database(name)]},
        emr={"serverless": NETWORK},
        applications={"lake": {"streams": ["orders"], "access": ACCESS}},
        jobs=[{"application": "lake", "program": "jobs/archive.py", "arguments": ["--output", output]}],
        **changes,
    )


def database(name: str) -> str:
    return f"lake_{name}".replace(".", "_")


def boundary(environment: Environment) -> list[Statement]:
    return policy(environment, "boundary")


def own_tags(environment: Environment) -> dict[str, str]:
    """The context of a request for one of its resources."""
    return tags("Resource", Names(environment).qualified)


def used_by_jobs(environment: Environment) -> dict[str, tuple[str, ...]]:
    """What the jobs of an environment use, with actions."""
    names = Names(environment)
    stream, lake = names.stream_arn("orders"), "acme-lake-" + names.qualified
    objects = [names.bucket_arn(each) for each in (lake, names.artifacts_bucket)]
    tables = f"table/{database(names.qualified)}/t"
    return {
        stream: ("kinesis:GetRecords", "kinesis:ListShards", "kinesis:PutRecords"),
        f"{stream}/consumer/lake:1": ("kinesis:SubscribeToShard",),
        names.lease_table_arn("lake"): iam.LEASES,
        names.parameter_arn("lake"): ("ssm:GetParameter",),
        names.arn("kms", "key/own"): ("kms:Decrypt", "kms:GenerateDataKey"),
        **{f"{each}/x": ("s3:GetObject", "s3:PutObject") for each in objects},
        **dict.fromkeys(objects, ("s3:ListBucket",)),
        names.arn("glue", tables): ("glue:GetTable", "glue:UpdateTable"),
        names.arn("logs", f"log-group:/{names.path}/x"): ("logs:PutLogEvents",),
    }


def changed_by_the_pipeline(environment: Environment) -> dict[str, tuple[str, ...]]:
    """What the role that applies changes, with actions."""
    names = Names(environment)
    role, path = names.role_arn("lake"), names.path
    dashboard = names.iam_arn(f"dashboard/{names.prefix}").replace(":iam:", ":cloudwatch:")
    return {
        names.stream_arn("orders"): ("kinesis:DeleteStream", "kinesis:PutResourcePolicy"),
        names.lease_table_arn("lake"): ("dynamodb:DeleteTable", "dynamodb:Scan"),
        names.parameter_arn("lake"): ("ssm:PutParameter",),
        names.arn("ssm", f"parameter{names.deployment_parameter_name('lake')}"): ("ssm:PutParameter",),
        names.arn("kms", "key/own"): ("kms:PutKeyPolicy", "kms:ScheduleKeyDeletion"),
        names.arn("kms", f"alias/{path}/orders"): ("kms:UpdateAlias", "kms:DeleteAlias"),
        names.arn("cloudwatch", f"alarm:{path}/lake/x"): ("cloudwatch:DeleteAlarms",),
        dashboard: ("cloudwatch:PutDashboard",),
        names.arn("ec2", "security-group/sg-1"): ("ec2:DeleteSecurityGroup",),
        role.replace(":role/", ":instance-profile/"): ("iam:DeleteInstanceProfile",),
        role: ("iam:DeleteRole", "iam:UpdateAssumeRolePolicy", "iam:TagRole"),
        names.policy_arn("lake"): ("iam:CreatePolicyVersion", "iam:DeletePolicy"),
        names.bucket_arn(names.artifacts_bucket): ("s3:PutBucketPolicy",),
        names.arn("emr-serverless", "/applications/00a"): ("emr-serverless:DeleteApplication",),
        names.arn("emr-serverless", "/applications/00a/jobruns/1"): ("emr-serverless:CancelJobRun",),
    }


def reached(statements: list[Statement], things: Mapping[str, tuple[str, ...]], context: dict[str, str]) -> set[str]:
    return {f"{act} {arn}" for arn, acts in things.items() for act in acts if allowed(statements, act, arn, context)}


def everything(things: Mapping[str, tuple[str, ...]]) -> set[str]:
    return {f"{act} {arn}" for arn, acts in things.items() for act in acts}


# Environments of one project, a project beside the default one and beside another, and where names begin alike.
TWO = "dev prod, dev dev-2, dev dev2, dev lake.dev, lake.dev pond.dev, lake lake.dev, lake-dev lake.dev, a.b-c ab.c"
PAIRS = [pair for each in TWO.split(", ") for pair in permutations(each.split())]
PLACES = [(*pair, *regions) for pair in PAIRS for regions in [(REGIONS[0], REGIONS[0]), REGIONS, REGIONS[::-1]]]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other", "here", "there"), PLACES)
def test_environment_reaches_nothing_of_another(one: str, other: str, here: str, there: str, load: Load) -> None:
    ours, theirs = declared(load, one, here), declared(load, other, there)
    for statements, things in ((boundary, used_by_jobs), (policy, changed_by_the_pipeline)):
        assert reached(statements(ours), things(ours), own_tags(ours)) == everything(things(ours))
        assert reached(statements(ours), things(theirs), own_tags(theirs)) == set(), statements.__name__
    # They have one bucket of states.
    state = Names(theirs).bucket_arn(theirs.state_bucket)
    for key in (Names(theirs).state_key, Names(theirs).bootstrap_state_key, Names(theirs).record_key):
        for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
            assert not allowed(boundary(ours), action, f"{state}/{key}", {})
            assert not allowed(policy(ours), action, f"{state}/{key}", {})


# `dev` beside `dev-2` is refused, as names alone do not keep them apart.
@pytest.mark.slow
@pytest.mark.parametrize(("one", "other", "here", "there"), [each for each in PLACES if each[:2] != ("dev", "dev-2")])
def test_names_alone_separate_environments(one: str, other: str, here: str, there: str, load: Load) -> None:
    ours, theirs = declared(load, one, here), declared(load, other, there)
    assert reached(boundary(ours), used_by_jobs(theirs), {}) == set()
    assert reached(policy(ours), changed_by_the_pipeline(theirs), {}) == set()


ROLES_AND_POLICIES = (
    "iam:AttachRolePolicy", "iam:CreatePolicy", "iam:CreatePolicyVersion", "iam:CreateRole", "iam:DeletePolicy", "iam:DeletePolicyVersion",
    "iam:DeleteRole", "iam:DetachRolePolicy", "iam:PutRolePermissionsBoundary", "iam:TagPolicy", "iam:TagRole", "iam:UntagPolicy",
    "iam:UntagRole", "iam:UpdateAssumeRolePolicy", "iam:UpdateRole",
)  # fmt: skip


def changed_in_iam(mine: list[Statement], theirs: Environment, context: dict[str, str]) -> set[str]:
    """What may be changed of the roles and policies of an environment, given what IAM is told."""
    names = Names(theirs)
    told = {"iam:PermissionsBoundary": names.boundary_arn, "iam:PolicyARN": names.policy_arn("lake"), **context}
    things = dict.fromkeys((names.role_arn("lake"), names.policy_arn("lake")), ROLES_AND_POLICIES)
    return {each.split()[0] for each in reached(mine, things, told)}


def test_tags_separate_names_that_begin_alike(load: Load) -> None:
    dev, sister = declared(load, "dev"), declared(load, "dev-2")
    role = policy(dev)
    # A boundary of the sister's is none of ours; here, only tags are to decide.
    ours = {"iam:PermissionsBoundary": Names(dev).boundary_arn}
    requested = {name.replace("Resource", "Request"): value for name, value in own_tags(dev).items()}
    create = {"iam:CreatePolicy", "iam:CreateRole"}
    assert changed_in_iam(role, dev, own_tags(dev)) == set(ROLES_AND_POLICIES) - create
    assert changed_in_iam(role, dev, requested) == {*create, "iam:TagPolicy", "iam:TagRole"}
    for told in (own_tags(sister), {}):
        assert changed_in_iam(role, sister, {**told, **ours}) == set()
        # Taking it over by tagging it.
        assert "iam:TagRole" not in changed_in_iam(role, sister, {**own_tags(sister), **requested, **ours})
    foreign = {name.replace("Resource", "Request"): value for name, value in own_tags(sister).items()}
    assert changed_in_iam(role, sister, {**foreign, **ours}) == set(), "made as the sister's own"


@pytest.fixture
def adopting(load: Load) -> Environment:
    """An environment with given keys and streams, one of them of another environment, and jobs with and without roles."""
    given = "arn:aws:kms:eu-west-1:111122223333:key"
    events = "{existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1'}}"
    streams = f"orders: {{}}, named: {{name: shop}}, events: {events}, payments: {{existing_arn: STREAM, key: '{given}/others'}}"
    return load(
        f"PIPELINE, emr: {{}}, key: '{given}/given', streams: {{{streams}}},"
        "applications: {lake: {streams: [orders, named, payments, events], access: SERVERLESS},"
        "own: {streams: [orders], writes: [named], polling: true, lease_table: OldTable}}"
    )


@pytest.mark.parametrize("key", ["lake", "own"])
def test_boundary_leaves_a_job_what_its_policy_grants(key: str, adopting: Environment) -> None:
    bound = boundary(adopting)
    others = {"aws:ResourceTag/environment": "prod", "aws:ResourceTag/managed-by": "kinesis-efo"}
    given = ("stream/payments", "stream/events", "key/given", "key/others")
    for statement in in_json(list(literal_policy(adopting, key).statements.values())):
        via = statement.get("Condition", {}).get("StringEquals", {}).get("kms:ViaService", [""])
        for action in statement["Action"]:
            for resource in statement["Resource"]:
                context = others if any(each in resource for each in given) else own_tags(adopting)
                answer = allowed(bound, action, resource, {**context, "kms:ViaService": via[0]})
                assert answer == (statement["Effect"] == "Allow"), (action, resource)


def test_job_registers_no_consumers_and_reads_no_state(adopting: Environment) -> None:
    never = ",".join(REGISTRATION)
    table = f"""
- {never} {Names(adopting).stream_arn("orders")} | ours
- {never} {ADOPTED} | ours
- {never} {ADOPTED}/consumer/lake:1 | ours
- s3:GetObject state/kinesis-efo/test.tfstate
- kms:Decrypt key/state | bootstrap
"""
    contexts = {"ours": tags("Resource"), "bootstrap": tags("Resource", managed_by="kinesis-efo-bootstrap")}
    attempt(boundary(adopting), table, **contexts)


def test_without_pipeline_a_job_may_not_register(load: Load) -> None:
    table = f"""
+ s3:PutObject anywhere/x
- {",".join(REGISTRATION)} {ADOPTED}
- dynamodb:PutItem table/t | prod
"""
    attempt(in_json(permissions.boundary_without_pipeline(load())), table, prod=tags("Resource", "prod"))


def test_job_buckets_are_those_of_arguments_and_settings(load: Load) -> None:
    environment = load(
        "JOB, pipeline: {repository: acme/lake, buckets: [told]}, emr.artifacts_bucket: programs,"
        "applications.lake.access: {kind: emr-serverless, policies: ['arn:aws:iam::111122223333:policy/lake-output']},"
        "jobs.0.spark: {spark.jars: 's3://jars/a'},"
        "jobs.0.arguments: [--output, 's3://raw/x', '--checkpoint=s3a://checks/y', --option, 'manifest=ssm:///m']"
    )
    assert Names(environment).job_buckets == ("checks", "jars", "programs", "raw", "told")
    table = "\n".join(f"+ s3:PutObject {each}/x" for each in Names(environment).job_buckets)
    table += """
- s3:PutObject rawer/x
+ kms:GenerateDataKey arn:aws:kms:eu-west-1:999999999999:key/1 | s3
- kms:GenerateDataKey arn:aws:kms:eu-west-1:999999999999:key/1
"""
    attempt(boundary(environment), table, s3={"kms:ViaService": "s3.eu-west-1.amazonaws.com"})
