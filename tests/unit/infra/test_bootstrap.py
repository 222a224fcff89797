"""The permissions of a pipeline's roles, and who may assume them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.gate.named import named_by_bootstrap_of
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.gate import granted
from kinesis_efo_infra.iam import REGISTRATION, Statement, policy_json
from tests.support.iam import allowed
from tests.unit.infra.conftest import without_metadata

Load = Callable[..., Environment]
PIPELINE = {"repository": "acme/lake", "branch": "trunk"}
ADOPTED = "arn:aws:kinesis:eu-west-1:111122223333:stream/payments"
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
# Actions that read the content of a stream or a table.
DATA = (
    "dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:PartiQLSelect", "dynamodb:Query", "dynamodb:Scan",
    "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:SubscribeToShard",
)  # fmt: skip


@pytest.fixture
def environment(load: Load) -> Environment:
    return load(
        pipeline=PIPELINE,
        streams={
            "orders": {},
            "named": {"name": "shop"},
            "payments": {"existing_arn": ADOPTED},
            "events": {"existing_arn": FOREIGN, "consumers": {"lake": f"{FOREIGN}/consumer/lake:1"}},
        },
        applications={
            "lake": {"streams": ["orders", "named", "payments", "events"], "access": {"kind": "emr-serverless"}},
            "own": {
                "streams": ["orders"],
                "lease_table": "OldTable",
                "access": {
                    "kind": "emr-ec2",
                    "role_name": "old-role",
                    "policies": ["arn:aws:iam::111122223333:policy/buckets"],
                    "permissions_boundary": "arn:aws:iam::111122223333:policy/bound",
                },
            },
        },
    )


def synthesized(environment: Environment, out: Path) -> dict[str, Any]:
    written = synthesize_bootstrap([environment], out)
    text = (written / "stacks" / "kinesis-efo-test-bootstrap" / "cdk.tf.json").read_text(encoding="utf-8")
    stack: dict[str, Any] = without_metadata(json.loads(text))
    return stack


def may(statements: Iterable[Statement], action: str, resource: str) -> list[Statement]:
    """The statements that allow an action on a resource, whatever their conditions."""
    return [
        each
        for each in statements
        if each.effect == "Allow"
        and any(fnmatchcase(action, pattern) for pattern in each.actions)
        and any(fnmatchcase(resource, pattern) for pattern in each.resources)
    ]


def test_the_plan_role_reads_declared_resources_and_no_data(environment: Environment) -> None:
    statements = permissions.read(environment)
    actions = {action for each in statements if each.effect == "Allow" for action in each.actions}
    assert not actions & set(DATA)
    verbs = {action.partition(":")[2] for action in actions} - {"Decrypt"}
    assert all(verb.startswith(("Describe", "Get", "List")) for verb in verbs), verbs
    objects = [r for each in statements if "s3:GetObject" in each.actions for r in each.resources]
    assert objects == [
        "arn:aws:s3:::state/kinesis-efo/test.tfstate",
        "arn:aws:s3:::state/kinesis-efo/test.deployed.json",
        "arn:aws:s3:::state/kinesis-efo/test.hmac-key",
    ]


def test_the_roles_cover_the_names_of_the_environment_and_no_others(environment: Environment) -> None:
    names = Names(environment)
    write = (
        permissions.change_data(environment)
        + permissions.change_access(environment)
        + permissions.change_keys(environment)
    )
    for key in ("orders", "named"):
        assert may(write, "kinesis:UpdateShardCount", names.stream_arn(key))
    for arn in (ADOPTED, FOREIGN):
        assert not may(write, "kinesis:UpdateShardCount", arn), "somebody else's stream"
        assert not may(write, "kinesis:DeleteStream", arn)
    assert may(write, "kinesis:RegisterStreamConsumer", ADOPTED)
    assert not may(write, "kinesis:RegisterStreamConsumer", FOREIGN)
    assert may(write, "dynamodb:UpdateTable", names.lease_table_arn("own"))
    assert may(write, "iam:CreateRole", "arn:aws:iam::111122223333:role/old-role")
    other = "kinesis-efo-other"
    for action, resource in {
        "kinesis:DeleteStream": "arn:aws:kinesis:eu-west-1:111122223333:stream/other-orders",
        "dynamodb:DeleteTable": f"arn:aws:dynamodb:eu-west-1:111122223333:table/{other}-lake",
        "iam:CreateRole": f"arn:aws:iam::111122223333:role/{other}-lake",
        "ssm:PutParameter": "arn:aws:ssm:eu-west-1:111122223333:parameter/kinesis-efo/other/lake",
        "s3:PutObject": "arn:aws:s3:::state/kinesis-efo/other.tfstate",
    }.items():
        assert not may(write, action, resource), resource


def test_the_state_is_decrypted_in_its_own_region(load: Load) -> None:
    elsewhere = load(pipeline=PIPELINE, state_region="us-east-1")
    for statements, sid in (
        (permissions.read(elsewhere), "DecryptState"),
        (permissions.change_data(elsewhere), "EncryptState"),
    ):
        (statement,) = [each for each in statements if each.sid == sid]
        assert statement.resources == ("arn:aws:kms:us-east-1:111122223333:key/*",)
        assert statement.conditions[0].values == ("s3.us-east-1.amazonaws.com",)


def test_given_keys_may_be_used_without_tags(load: Load) -> None:
    key = "arn:aws:kms:eu-west-1:111122223333:key/0123abcd"
    given = load(pipeline=PIPELINE, key=key, streams={"orders": {"key": key}})
    (use,) = may(permissions.change_keys(given), "kms:CreateGrant", key)[1:]
    assert use.resources == (key,)
    assert {each.variable for each in use.conditions} == {"kms:ViaService"}
    assert all(each.resources != (key,) for each in may(permissions.change_keys(given), "kms:PutKeyPolicy", key))


def test_the_apply_role_cannot_extend_its_own_permissions(environment: Environment) -> None:
    names = Names(environment)
    write = (
        permissions.change_data(environment)
        + permissions.change_access(environment)
        + permissions.change_keys(environment)
    )
    for kind in ("plan", "apply"):
        role = names.pipeline_role_arn(kind)
        assert not [
            action for each in write for action in each.actions if "iam" in action and may([each], action, role)
        ]
    for kind in permissions.policies(environment):
        policy = f"arn:aws:iam::111122223333:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-{kind}"
        assert not may(write, "iam:CreatePolicyVersion", policy)
    assert not may(write, "s3:PutObject", "arn:aws:s3:::state/kinesis-efo/bootstrap/test.tfstate")
    role = "arn:aws:iam::111122223333:role/kinesis-efo-test-lake"
    for action in ("iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:AttachRolePolicy"):
        conditions = [c for each in may(write, action, role) for c in each.conditions]
        bounds = [c.values for c in conditions if (c.test, c.variable) == ("StringEquals", "iam:PermissionsBoundary")]
        assert bounds == [(names.boundary_arn, "arn:aws:iam::111122223333:policy/bound")], action
    for action in ("iam:PutRolePolicy", "iam:DeleteRolePermissionsBoundary", "iam:CreateUser", "sts:AssumeRole"):
        assert not may(write, action, role)
    (attach,) = may(write, "iam:AttachRolePolicy", role)
    assert attach.conditions[0].values == (
        "arn:aws:iam::111122223333:policy/kinesis-efo-test-*",
        "arn:aws:iam::111122223333:policy/buckets",
    )


def test_a_job_within_its_boundary_changes_no_rights(environment: Environment) -> None:
    statements = permissions.boundary(environment)
    allowed = {action for each in statements if each.effect == "Allow" for action in each.actions}
    assert not {action for action in allowed if action.startswith(("iam:", "sts:", "organizations:", "lambda:"))}
    assert not allowed & set(REGISTRATION)


@pytest.fixture
def running(load: Load) -> Environment:
    serverless = {"streams": ["orders"], "access": {"kind": "emr-serverless"}}
    return load(
        pipeline=PIPELINE,
        emr={},
        applications={"lake": serverless, "pond": {"streams": ["orders"], "access": {"kind": "emr-ec2"}}},
        jobs=[
            {"application": "lake", "program": "jobs/archive.py"},
            {"application": "pond", "program": "jobs/archive.py", "target": "cluster:j-1"},
        ],
    )


def test_jobs_are_started_where_the_environment_says_and_nowhere_else(running: Environment) -> None:
    statements = permissions.run_jobs(running)
    at = "arn:aws:elasticmapreduce:eu-west-1:111122223333:cluster"
    assert may(statements, "elasticmapreduce:AddJobFlowSteps", f"{at}/j-1")
    assert not may(statements, "elasticmapreduce:AddJobFlowSteps", f"{at}/j-2")
    assert not may(statements, "elasticmapreduce:TerminateJobFlows", f"{at}/j-1")
    application = "arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00abc"
    (start,) = may(statements, "emr-serverless:StartJobRun", application)
    assert {each.variable: each.values for each in start.conditions} == {
        "aws:ResourceTag/environment": ("test",),
        "aws:ResourceTag/managed-by": ("kinesis-efo",),
    }
    (end,) = may(statements, "emr-serverless:CancelJobRun", f"{application}/jobruns/00def")
    assert end.conditions == start.conditions
    assert not may(statements, "s3:PutObject", "arn:aws:s3:::state/kinesis-efo/test.tfstate")


def test_the_group_of_the_workers_is_changed_by_its_tags_and_only_where_there_is_one(
    running: Environment, load: Load
) -> None:
    network = {"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]}
    placed = load(pipeline=PIPELINE, emr={"serverless": network})
    group = "arn:aws:ec2:eu-west-1:111122223333:security-group/sg-0123456789abcdef0"
    for action in ("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupEgress", "DeleteSecurityGroup"):
        (write,) = may(permissions.run_jobs(placed), f"ec2:{action}", group)
        assert {each.variable for each in write.conditions} == {
            "aws:ResourceTag/environment",
            "aws:ResourceTag/managed-by",
        }
    interface = "arn:aws:ec2:eu-west-1:111122223333:network-interface/eni-1"
    (create,) = may(permissions.run_jobs(placed), "ec2:CreateNetworkInterface", interface)
    assert [each.variable for each in create.conditions] == ["aws:CalledViaLast"]
    assert may(permissions.read(placed), "ec2:DescribeSubnets", "*")
    elsewhere = [*permissions.run_jobs(running), *permissions.read(running)]
    assert not [each for statement in elsewhere for each in statement.actions if each.startswith("ec2:")]


def test_the_plan_role_sees_where_jobs_run_but_not_their_artifacts(running: Environment) -> None:
    read = permissions.read(running)
    bucket = Names(running).bucket_arn(Names(running).artifacts_bucket)
    assert may(read, "s3:GetBucketPolicy", bucket)
    assert not may(read, "s3:GetObject", f"{bucket}/programs/x")
    assert not {each for statement in read for each in statement.actions} & set(DATA)


def test_github_is_trusted_for_this_repository_and_place_only(environment: Environment, tmp_path: Path) -> None:
    documents = synthesized(environment, tmp_path)["data"]["aws_iam_policy_document"]
    subjects = {}
    for kind in ("plan", "apply"):
        (statement,) = documents[f"{kind}_trust"]["statement"]
        conditions = {each["variable"]: (each["test"], each["values"]) for each in statement["condition"]}
        assert conditions["token.actions.githubusercontent.com:aud"] == ("StringEquals", ["sts.amazonaws.com"])
        test, subjects[kind] = conditions["token.actions.githubusercontent.com:sub"]
        assert test == "StringEquals"
    assert subjects == {
        "plan": ["repo:acme/lake:pull_request", "repo:acme/lake:ref:refs/heads/trunk"],
        "apply": ["repo:acme/lake:environment:test"],
    }


ISSUER = "token.actions.githubusercontent.com"
DEPLOYS = {
    "aud": "sts.amazonaws.com",
    "sub": "repo:acme/lake:environment:test",
    "repository_id": "34",
    "environment": "test",
    "ref": "refs/heads/trunk",
    "job_workflow_ref": "acme/lake/.github/workflows/deploy-environment.yml@refs/heads/trunk",
}
"""What GitHub's token says in the job that applies."""


def trusts(statement: Statement, claims: dict[str, str]) -> bool:
    """Whether a role may be assumed with a token, evaluated as IAM does it."""
    (written,) = json.loads(policy_json([statement]))["Statement"]
    written = {**{name: each for name, each in written.items() if name != "Principal"}, "Resource": "*"}
    context = {f"{ISSUER}:{claim}": value for claim, value in claims.items()}
    return allowed([written], "sts:AssumeRoleWithWebIdentity", "role", context)


def test_only_the_workflow_of_the_branch_gets_the_role_that_applies(load: Load) -> None:
    given = load(pipeline={**PIPELINE, "repository": "acme@12/lake@34"})
    trust = permissions.trust_to_apply(given, "arn")
    assert trusts(trust, DEPLOYS)
    assert trusts(trust, {**DEPLOYS, "sub": "repo:acme@12/lake@34:environment:test"}), "the other form of subjects"
    workflows = "acme/lake/.github/workflows"
    assert trusts(trust, {**DEPLOYS, "job_workflow_ref": f"{workflows}/deploy.yml@refs/heads/trunk"}), "that of before"
    # An own branch names the environment, before it has rules or after a typo in its name.
    own = "refs/heads/mine"
    assert not trusts(trust, {**DEPLOYS, "ref": own})
    for claim, value in {
        "job_workflow_ref": f"{workflows}/deploy-environment.yml@{own}",
        "repository_id": "35",
        "environment": "tets",
        "ref": "refs/pull/7/merge",
        "sub": "repo:acme/lake:ref:refs/heads/trunk",
    }.items():
        assert not trusts(trust, {**DEPLOYS, claim: value}), claim
        assert not trusts(trust, {name: each for name, each in DEPLOYS.items() if name != claim}), claim
    assert not trusts(trust, {**DEPLOYS, "job_workflow_ref": f"{workflows}/mine.yml@refs/heads/trunk"})


def test_pull_requests_and_the_branch_get_the_role_that_plans(load: Load) -> None:
    trust = permissions.trust_to_plan(load(pipeline={**PIPELINE, "repository": "acme@12/lake@34"}), "arn")
    for place in ("pull_request", "ref:refs/heads/trunk"):
        for repository in ("acme/lake", "acme@12/lake@34"):
            token = {"aud": "sts.amazonaws.com", "sub": f"repo:{repository}:{place}", "repository_id": "34"}
            assert trusts(trust, token)
            assert not trusts(trust, {**token, "repository_id": "35"}), "another repository got its name"
    assert not trusts(trust, {**DEPLOYS, "sub": "repo:acme/lake:ref:refs/heads/mine"})


def test_without_ids_and_where_aws_knows_no_more_claims_the_subject_decides(load: Load) -> None:
    plain = permissions.trust_to_apply(load(pipeline=PIPELINE), "arn")
    assert trusts(plain, DEPLOYS)
    assert not trusts(plain, {**DEPLOYS, "sub": "repo:acme@12/lake@34:environment:test"}), "its name would be enough"
    assert not trusts(plain, {**DEPLOYS, "ref": "refs/heads/mine"})
    china = permissions.trust_to_apply(load(region="cn-north-1", pipeline={"repository": "acme@12/lake@34"}), "arn")
    assert {each.variable for each in china.conditions} == {f"{ISSUER}:aud", f"{ISSUER}:sub"}
    assert china.conditions[1].values == ("repo:acme@12/lake@34:environment:test",)


@pytest.mark.parametrize("issuer", [f"{ISSUER}/acme", "token.actions.acme.ghe.com"])
def test_tokens_of_an_enterprise_have_its_issuer(issuer: str, load: Load, tmp_path: Path) -> None:
    environment = load(pipeline={**PIPELINE, "repository": "acme@12/lake@34", "issuer": issuer})
    stack = synthesized(environment, tmp_path)
    provider = stack["resource"]["aws_iam_openid_connect_provider"]["github"]
    assert provider["url"] == f"https://{issuer}"
    for kind in ("plan", "apply"):
        (statement,) = stack["data"]["aws_iam_policy_document"][f"{kind}_trust"]["statement"]
        # STS knows further claims only for the issuer that all of GitHub shares.
        assert {each["variable"] for each in statement["condition"]} == {f"{issuer}:aud", f"{issuer}:sub"}
    assert granted.in_stack(stack, named_by_bootstrap_of(environment)) == []
    assert granted.in_stack(stack, named_by_bootstrap_of(load(pipeline=PIPELINE))), "of another issuer"


@pytest.mark.parametrize(
    "issuer", ["https://token.actions.githubusercontent.com", "evil.example", f"{ISSUER}/a/b", "x.ghe.com"]
)
def test_an_issuer_is_one_of_github(issuer: str, load: Load) -> None:
    with pytest.raises(SettingsError, match=r"pipeline\.issuer: must match"):
        load(pipeline={**PIPELINE, "issuer": issuer})


def test_a_trust_policy_fits_a_role_with_the_longest_names(load: Load) -> None:
    # IAM quotas: 2,048 characters, white space not counted; GitHub's longest names.
    longest = {"repository": f"{'o' * 39}@{10**9}/{'n' * 100}@{10**10}", "branch": "b" * 200}
    given = load(pipeline=longest, environment="e" * 32)
    provider = Names(given).iam_arn(f"oidc-provider/{ISSUER}")
    for trust in (permissions.trust_to_plan(given, provider), permissions.trust_to_apply(given, provider)):
        assert len(policy_json([trust]).replace(" ", "")) < 2048


def test_a_repository_is_named_as_github_names_it(load: Load) -> None:
    for wrong in ("acme", "acme@12/lake", "acme/lake@34", "acme/*", "acme/lake:environment:prod"):
        with pytest.raises(SettingsError, match=r"pipeline\.repository: must match"):
            load(pipeline={"repository": wrong})


def test_only_the_apply_role_may_write(environment: Environment, tmp_path: Path) -> None:
    attached = synthesized(environment, tmp_path)["resource"]["aws_iam_role_policy_attachment"]
    assert {name: each["policy_arn"] for name, each in attached.items()} == {
        "plan_read": "${aws_iam_policy.read.arn}",
        "plan_read_access": "${aws_iam_policy.read_access.arn}",
        "apply_read": "${aws_iam_policy.read.arn}",
        "apply_read_access": "${aws_iam_policy.read_access.arn}",
        "apply_change_data": "${aws_iam_policy.change_data.arn}",
        "apply_change_access": "${aws_iam_policy.change_access.arn}",
        "apply_change_keys": "${aws_iam_policy.change_keys.arn}",
    }


def test_what_a_bootstrap_stack_deployed_before_keeps_its_addresses_and_names(
    environment: Environment, tmp_path: Path
) -> None:
    resources = synthesized(environment, tmp_path)["resource"]
    # Another name, path or description replaces a role or policy, and with it what every workflow assumes.
    for kind, names_of_kind in {
        "aws_iam_role": ["plan", "apply"],
        "aws_iam_policy": ["read", "read-access", "change-data", "change-access", "change-keys", "boundary"],
    }.items():
        assert {
            address: (each["name"], each["path"], each["description"]) for address, each in resources[kind].items()
        } == {
            name.replace("-", "_"): (
                f"kinesis-efo-pipeline-test-{name}",
                "/kinesis-efo-pipeline/",
                f"Pipeline of kinesis-efo in test: {name}",
            )
            for name in names_of_kind
        }


def test_an_existing_provider_and_bucket_are_adopted(load: Load, tmp_path: Path) -> None:
    provider = "arn:aws:iam::111122223333:oidc-provider/token.actions.githubusercontent.com"
    adopting = load(pipeline={**PIPELINE, "oidc_provider_arn": provider, "adopt_state_bucket": True})
    stack = synthesized(adopting, tmp_path)
    assert not {"aws_s3_bucket", "aws_kms_key", "aws_iam_openid_connect_provider"} & set(stack["resource"])
    principals = stack["data"]["aws_iam_policy_document"]["apply_trust"]["statement"][0]["principals"]
    assert principals == [{"identifiers": [provider], "type": "Federated"}]


def test_roles_are_bounded_with_a_pipeline_and_without(load: Load, synth: Callable[..., dict[str, Any]]) -> None:
    applications = {"lake": {"streams": ["orders"], "access": {"kind": "emr-serverless"}}}
    by_hand = synth(applications=applications)
    assert by_hand["resource"]["aws_iam_role"]["lake"]["permissions_boundary"] == "${aws_iam_policy.roles_boundary.arn}"
    bounded = synth(applications=applications, pipeline=PIPELINE)["resource"]["aws_iam_role"]["lake"]
    assert bounded["permissions_boundary"] == (
        "arn:aws:iam::111122223333:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-boundary"
    )


def test_permissions_that_do_not_fit_a_policy_are_a_fault(load: Load, tmp_path: Path) -> None:
    streams = {f"s{n}": {"name": f"{'x' * 100}{n}"} for n in range(20)}
    environment = load(pipeline=PIPELINE, streams=streams, applications={"lake": {"streams": ["s0"]}})
    with pytest.raises(SettingsError, match=r"pipeline: what it may do must fit managed policies \(6144 characters\)"):
        synthesize_bootstrap([environment], tmp_path)
