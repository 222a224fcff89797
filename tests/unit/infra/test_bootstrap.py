"""The permissions of a pipeline's roles, and who may assume them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from infra.__main__ import main
from infra.errors import SettingsError
from infra.gate.named import named_by_bootstrap_of
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.gate import granted
from kinesis_efo_infra.iam import REGISTRATION, Statement, policy_json
from tests.support.iam import allowed
from tests.unit.infra.conftest import FOREIGN, KEY, STREAM, Load, Synth, Write, attempts, without_metadata

PIPELINE = "pipeline: {repository: acme/lake, branch: trunk}"
IDS = "pipeline: {repository: acme@12/lake@34, branch: trunk}"
ROLE = "role/kinesis-efo-test-lake"
# Actions that read the content of a stream or a table.
DATA = (
    "dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:PartiQLSelect", "dynamodb:Query", "dynamodb:Scan",
    "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:SubscribeToShard",
)  # fmt: skip


@pytest.fixture
def environment(load: Load) -> Environment:
    adopted = "payments: {existing_arn: STREAM}, events: {existing_arn: FOREIGN, consumers: {lake: 'FOREIGN/consumer/lake:1'}}"
    access = "{kind: emr-ec2, role_name: old-role, policies: ['arn:aws:iam::111122223333:policy/buckets'], permissions_boundary: 'arn:aws:iam::111122223333:policy/bound'}"
    return load(
        f"{PIPELINE}, streams: {{orders: {{}}, named: {{name: shop}}, {adopted}}}, applications:"
        "{lake: {streams: [orders, named, payments, events], access: SERVERLESS},"
        f"own: {{streams: [orders], lease_table: OldTable, access: {access}}}}}"
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


def writes(environment: Environment) -> list[Statement]:
    changes = (permissions.change_data, permissions.change_access, permissions.change_keys)
    return [statement for change in changes for statement in change(environment)]


def check(statements: list[Statement], table: str) -> None:
    for expected, action, resource, why in attempts(table):
        assert bool(may(statements, action, resource)) == expected, f"{action} {resource} {why}"


def test_plan_role_reads_resources_and_no_data(environment: Environment) -> None:
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


def test_roles_cover_names_of_the_environment_only(environment: Environment) -> None:
    check(
        writes(environment),
        f"""
+ kinesis:UpdateShardCount stream/test-orders
+ kinesis:UpdateShardCount stream/shop
- kinesis:UpdateShardCount,kinesis:DeleteStream {STREAM} | somebody else's stream
- kinesis:UpdateShardCount,kinesis:DeleteStream,kinesis:RegisterStreamConsumer {FOREIGN}
+ kinesis:RegisterStreamConsumer {STREAM}
+ dynamodb:UpdateTable table/OldTable
+ iam:CreateRole role/old-role
- kinesis:DeleteStream stream/other-orders
- dynamodb:DeleteTable table/kinesis-efo-other-lake
- iam:CreateRole role/kinesis-efo-other-lake
- ssm:PutParameter parameter/kinesis-efo/other/lake
- s3:PutObject,s3:GetObject,s3:DeleteObject state/kinesis-efo/other.tfstate
- s3:DeleteObject state/kinesis-efo/test.tfstate
- s3:PutBucketPolicy,s3:DeleteBucket,s3:PutBucketVersioning,s3:PutLifecycleConfiguration state
""",
    )


def test_state_is_decrypted_in_its_own_region(load: Load) -> None:
    elsewhere = load(f"{PIPELINE}, state_region: us-east-1")
    for policy, sid in ((permissions.read, "DecryptState"), (permissions.change_data, "EncryptState")):
        (statement,) = [each for each in policy(elsewhere) if each.sid == sid]
        assert statement.resources == ("arn:aws:kms:us-east-1:111122223333:key/*",)
        assert statement.conditions[0].values == ("s3.us-east-1.amazonaws.com",)


def test_given_keys_may_be_used_without_tags(load: Load) -> None:
    statements = permissions.change_keys(load(f"{PIPELINE}, key: KEY, streams.orders.key: KEY"))
    (use,) = may(statements, "kms:CreateGrant", KEY)[1:]
    assert use.resources == (KEY,)
    assert {each.variable for each in use.conditions} == {"kms:ViaService"}
    assert all(each.resources != (KEY,) for each in may(statements, "kms:PutKeyPolicy", KEY))


def test_apply_role_cannot_extend_its_permissions(environment: Environment) -> None:
    names, write = Names(environment), writes(environment)
    for role in map(names.pipeline_role_arn, ("plan", "apply")):
        assert not [each for one in write for each in one.actions if "iam" in each and may([one], each, role)]
    policies = [
        f"policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-{kind}" for kind in permissions.policies(environment)
    ]
    check(
        write,
        f"""
{chr(10).join(f"- iam:CreatePolicyVersion {each}" for each in policies)}
- s3:PutObject state/kinesis-efo/bootstrap/test.tfstate
- iam:PutRolePolicy,iam:DeleteRolePermissionsBoundary,iam:CreateUser {ROLE}
- sts:AssumeRole {ROLE}
""",
    )
    role = f"arn:aws:iam::111122223333:{ROLE}"
    for action in ("iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:AttachRolePolicy"):
        conditions = [c for each in may(write, action, role) for c in each.conditions]
        bounds = [c.values for c in conditions if (c.test, c.variable) == ("StringEquals", "iam:PermissionsBoundary")]
        assert bounds == [(names.boundary_arn, "arn:aws:iam::111122223333:policy/bound")], action
    (attach,) = may(write, "iam:AttachRolePolicy", role)
    policies = ["kinesis-efo-test-*", "buckets"]
    assert attach.conditions[0].values == tuple(f"arn:aws:iam::111122223333:policy/{each}" for each in policies)


def test_job_within_its_boundary_changes_no_rights(environment: Environment) -> None:
    statements = permissions.boundary(environment)
    allowed = {action for each in statements if each.effect == "Allow" for action in each.actions}
    assert not {action for action in allowed if action.startswith(("iam:", "sts:", "organizations:", "lambda:"))}
    assert not allowed & set(REGISTRATION)


@pytest.fixture
def running(load: Load) -> Environment:
    jobs = "[{application: lake, program: a.py}, {application: pond, program: a.py, target: 'cluster:j-1'}]"
    applications = "{lake: {streams: [orders], access: SERVERLESS}, pond: {streams: [orders], access: EC2}}"
    return load(f"{PIPELINE}, emr: {{}}, applications: {applications}, jobs: {jobs}")


def test_jobs_start_where_the_environment_has_them(running: Environment) -> None:
    statements = permissions.run_jobs(running)
    check(
        statements,
        """
+ elasticmapreduce:AddJobFlowSteps cluster/j-1
- elasticmapreduce:AddJobFlowSteps cluster/j-2
- elasticmapreduce:TerminateJobFlows cluster/j-1
- s3:PutObject state/kinesis-efo/test.tfstate
""",
    )
    application = "arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00abc"
    (start,) = may(statements, "emr-serverless:StartJobRun", application)
    (end,) = may(statements, "emr-serverless:CancelJobRun", f"{application}/jobruns/00def")
    tags = {"aws:ResourceTag/environment": ("test",), "aws:ResourceTag/managed-by": ("kinesis-efo",)}
    for each in (start, end):
        assert {one.variable: one.values for one in each.conditions} == tags


def test_group_of_workers_is_changed_by_its_tags(running: Environment, load: Load) -> None:
    placed = load(f"{PIPELINE}, emr.serverless: NETWORK")
    group = "arn:aws:ec2:eu-west-1:111122223333:security-group/sg-0123456789abcdef0"
    for action in ("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupEgress", "DeleteSecurityGroup"):
        (write,) = may(permissions.run_jobs(placed), f"ec2:{action}", group)
        tags = {f"aws:ResourceTag/{each}" for each in ("environment", "managed-by")}
        assert {each.variable for each in write.conditions} == tags
    interface = group.replace("security-group/sg-", "network-interface/eni-")
    (create,) = may(permissions.run_jobs(placed), "ec2:CreateNetworkInterface", interface)
    assert [each.variable for each in create.conditions] == ["aws:CalledViaLast"]
    assert may(permissions.read(placed), "ec2:DescribeSubnets", "*")
    elsewhere = [*permissions.run_jobs(running), *permissions.read(running)]
    assert not [each for statement in elsewhere for each in statement.actions if each.startswith("ec2:")]


def test_plan_role_reads_no_artifacts(running: Environment) -> None:
    read, bucket = permissions.read(running), Names(running).artifacts_bucket
    check(read, f"+ s3:GetBucketPolicy {bucket}\n- s3:GetObject {bucket}/programs/x")
    assert not {each for statement in read for each in statement.actions} & set(DATA)


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
    del written["Principal"]
    context = {f"{ISSUER}:{claim}": value for claim, value in claims.items()}
    return allowed([{**written, "Resource": "*"}], "sts:AssumeRoleWithWebIdentity", "role", context)


def test_only_the_branchs_workflow_gets_the_apply_role(load: Load) -> None:
    given = load(IDS)
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


def test_pull_requests_and_branch_get_the_plan_role(load: Load) -> None:
    trust = permissions.trust_to_plan(load(IDS), "arn")
    for place in ("pull_request", "ref:refs/heads/trunk"):
        for repository in ("acme/lake", "acme@12/lake@34"):
            token = {"aud": "sts.amazonaws.com", "sub": f"repo:{repository}:{place}", "repository_id": "34"}
            assert trusts(trust, token)
            assert not trusts(trust, {**token, "repository_id": "35"}), "another repository got its name"
    assert not trusts(trust, {**DEPLOYS, "sub": "repo:acme/lake:ref:refs/heads/mine"})


def test_subject_decides_where_aws_has_no_more_claims(load: Load) -> None:
    plain = permissions.trust_to_apply(load(PIPELINE), "arn")
    assert trusts(plain, DEPLOYS)
    assert not trusts(plain, {**DEPLOYS, "sub": "repo:acme@12/lake@34:environment:test"}), "its name would be enough"
    assert not trusts(plain, {**DEPLOYS, "ref": "refs/heads/mine"})
    china = permissions.trust_to_apply(load(f"{IDS}, region: cn-north-1"), "arn")
    assert {each.variable for each in china.conditions} == {f"{ISSUER}:aud", f"{ISSUER}:sub"}
    assert china.conditions[1].values == ("repo:acme@12/lake@34:environment:test",)


@pytest.mark.parametrize("issuer", [f"{ISSUER}/acme", "token.actions.acme.ghe.com"])
def test_enterprise_tokens_have_their_issuer(issuer: str, load: Load, tmp_path: Path) -> None:
    environment = load(f"{IDS}, pipeline.issuer: {issuer}")
    stack = synthesized(environment, tmp_path)
    provider = stack["resource"]["aws_iam_openid_connect_provider"]["github"]
    assert provider["url"] == f"https://{issuer}"
    for kind in ("plan", "apply"):
        (statement,) = stack["data"]["aws_iam_policy_document"][f"{kind}_trust"]["statement"]
        # STS knows further claims only for the issuer that all of GitHub shares.
        assert {each["variable"] for each in statement["condition"]} == {f"{issuer}:aud", f"{issuer}:sub"}
    assert granted.in_stack(stack, named_by_bootstrap_of(environment)) == []
    assert granted.in_stack(stack, named_by_bootstrap_of(load(PIPELINE))), "of another issuer"


@pytest.mark.parametrize(
    ("issuer", "host"),
    [(ISSUER, "github.com"), (f"{ISSUER}/acme", "github.com"), ("token.actions.acme.ghe.com", "acme.ghe.com")],
)
def test_bootstrap_asks_the_github_of_the_issuer(
    issuer: str,
    host: str,
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(f"{IDS}, pipeline.issuer: {issuer}", account_id="444455556666")
    program = tmp_path / "gh"
    program.write_text('#!/bin/sh\necho "asked $GH_HOST" >&2; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("infra.stacks.app.synthesize_bootstrap", lambda _environments, out: out)
    assert main(["--directory", str(tmp_path), "bootstrap", "test"]) == 1
    assert f"failed: asked {host}. Log in" in caplog.text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("issuer", each) for each in (f"https://{ISSUER}", "evil.example", f"{ISSUER}/a/b", "x.ghe.com")),
        *(("repository", each) for each in ("acme", "acme@12/lake", "acme/lake@34", "acme/*", "acme/lake:ref:x")),
    ],
)
def test_issuer_and_repository_must_be_of_github(setting: str, value: str, load: Load) -> None:
    with pytest.raises(SettingsError, match=rf"pipeline\.{setting}: must match"):
        load(f"{PIPELINE}, pipeline.{setting}: '{value}'")


def test_trust_policy_fits_with_the_longest_names(load: Load) -> None:
    # IAM quotas: 2,048 characters, white space not counted; GitHub's longest names.
    longest = {"repository": f"{'o' * 39}@{10**9}/{'n' * 100}@{10**10}", "branch": "b" * 200}
    given = load(pipeline=longest, environment="e" * 32)
    provider = Names(given).iam_arn(f"oidc-provider/{ISSUER}")
    for trust in (permissions.trust_to_plan(given, provider), permissions.trust_to_apply(given, provider)):
        assert len(policy_json([trust]).replace(" ", "")) < 2048


def test_only_the_apply_role_may_write(environment: Environment, tmp_path: Path) -> None:
    attached = synthesized(environment, tmp_path)["resource"]["aws_iam_role_policy_attachment"]
    read, write = ("read", "read_access"), ("change_data", "change_access", "change_keys")
    expected = {f"{role}_{each}": each for role in ("plan", "apply") for each in read}
    expected |= {f"apply_{each}": each for each in write}
    assert {name: each["policy_arn"] for name, each in attached.items()} == {
        name: f"${{aws_iam_policy.{each}.arn}}" for name, each in expected.items()
    }


def test_bootstrap_keeps_addresses_and_names(environment: Environment, tmp_path: Path) -> None:
    """Another name, path or description replaces a role or policy, and with it what every workflow assumes."""
    resources = synthesized(environment, tmp_path)["resource"]
    policies = ["read", "read-access", "change-data", "change-access", "change-keys", "boundary"]
    for kind, names in (("aws_iam_role", ["plan", "apply"]), ("aws_iam_policy", policies)):
        assert set(resources[kind]) == {name.replace("-", "_") for name in names}
        for name in names:
            found = resources[kind][name.replace("-", "_")]
            assert found["name"] == f"kinesis-efo-pipeline-test-{name}"
            assert found["path"] == "/kinesis-efo-pipeline/"
            assert found["description"] == f"Pipeline of kinesis-efo in test: {name}"


def test_existing_provider_and_bucket_are_adopted(load: Load, tmp_path: Path) -> None:
    provider = "arn:aws:iam::111122223333:oidc-provider/token.actions.githubusercontent.com"
    stack = synthesized(
        load(f"{PIPELINE}, pipeline.oidc_provider_arn: {provider}, pipeline.adopt_state_bucket: true"), tmp_path
    )
    assert not {"aws_s3_bucket", "aws_kms_key", "aws_iam_openid_connect_provider"} & set(stack["resource"])
    principals = stack["data"]["aws_iam_policy_document"]["apply_trust"]["statement"][0]["principals"]
    assert principals == [{"identifiers": [provider], "type": "Federated"}]


def test_roles_are_bounded_with_and_without_pipeline(synth: Synth) -> None:
    pipelines = "arn:aws:iam::111122223333:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-boundary"
    for pipeline, boundary in (("tags: {}", "${aws_iam_policy.roles_boundary.arn}"), (PIPELINE, pipelines)):
        role = synth(f"applications.lake.access: SERVERLESS, {pipeline}")["resource"]["aws_iam_role"]["lake"]
        assert role["permissions_boundary"] == boundary


def test_permissions_too_long_for_policies_are_refused(load: Load, tmp_path: Path) -> None:
    streams = {f"s{n}": {"name": f"{'x' * 100}{n}"} for n in range(20)}
    environment = load(f"{PIPELINE}, applications.lake.streams: [s0]", streams=streams)
    with pytest.raises(SettingsError, match=r"pipeline: what it may do must fit managed policies \(6144 characters\)"):
        synthesize_bootstrap([environment], tmp_path)


def test_excepted_resources_are_in_the_stack(load: Load, tmp_path: Path) -> None:
    environment = load(f"{PIPELINE}, key: KEY, streams.orders: {{existing_arn: STREAM, key: KEY}}")
    documents = synthesized(environment, tmp_path)["data"]["aws_iam_policy_document"].values()
    written = {
        tuple(each["not_resources"]) for one in documents for each in one["statement"] if "not_resources" in each
    }
    policies = permissions.policies(environment).values()
    assert written == {each.excepted for policy in policies for each in policy if each.excepted} != set()
