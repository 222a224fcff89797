"""What a stack or a plan grants is what the settings name: boundaries, accounts, roles and streams."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.gate.named import named_by
from kinesis_efo_infra.errors import SettingsError
from kinesis_efo_infra.gate import granted
from kinesis_efo_infra.pipeline.environment import Environment as AppEnvironment
from kinesis_efo_infra.pipeline.environment import load
from tests.unit.infra.conftest import Load, Synth, rows

Json = dict[str, Any]
PIPELINE = {"repository": "acme/lake"}
ACCOUNT, FOREIGN = "111122223333", "777788889999"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-boundary"


def statement(**changes: Any) -> str:
    return json.dumps({"Statement": {"Effect": "Allow", "Resource": "*", **changes}})


def document(**changes: Any) -> Json:
    return {"statement": [{"effect": "Allow", **changes}]}


def role(**changes: Any) -> Json:
    return {"name": "x", "permissions_boundary": BOUNDARY, "assume_role_policy": '{"Statement": []}', **changes}


GITHUB = "token.actions.githubusercontent.com"
WORDS = {
    "OURS": ACCOUNT,
    "THEIRS": FOREIGN,
    "ADMIN": "arn:aws:iam::aws:policy/AdministratorAccess",
    "GITHUB": GITHUB,
    "EKS": "oidc.eks.eu-west-1.amazonaws.com/id",
    "POD": "cluster_name: analytics, namespace: lake, service_account: etl",
}
PODS = """
pipeline: {repository: acme/lake}, applications:
  {oidc: {streams: [orders], access: {kind: eks, oidc_provider_arn: 'arn:aws:iam::OURS:oidc-provider/EKS/A', namespace: lake, service_account: etl}},
  pods: {streams: [orders], access: {kind: eks, cluster: analytics, namespace: lake, service_account: etl}},
  emr: {streams: [orders], access: {kind: eks, cluster: emr, namespace: lake}}}
"""


def written(text: str) -> str:
    return re.sub(r"\b[A-Z]+\b", lambda found: WORDS.get(found[0], found[0]), text)


def trusts(*subjects: str, test: str = "StringLike") -> Json:
    """The trust policy of a role for workflows on GitHub, through the account's own provider."""
    return {
        "assume_role_policy": statement(
            Action="sts:AssumeRoleWithWebIdentity",
            Principal={"Federated": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{GITHUB}"},
            Condition={"StringEquals": {f"{GITHUB}:aud": "sts.amazonaws.com"}, test: {f"{GITHUB}:sub": list(subjects)}},
        )
    }


# What is found, and the resource. A policy that is a mapping is one statement in JSON; `subjects` are trusted on GitHub.
PLANTED = rows(
    r"""
its permissions boundary is ADMIN => aws_iam_role {permissions_boundary: 'ADMIN'}
its permissions boundary is none => aws_iam_role {permissions_boundary: null}
is none, and the settings name => aws_iam_role {permissions_boundary: null, path: /lake-pipeline/}
lets pass every role => aws_iam_policy {policy: {Action: 'iam:PassRole'}}
lets read every stream => aws_iam_policy {policy: {Action: ['kinesis:Get*', 's3:GetObject']}}
read every stream; name them => data.aws_iam_policy_document {actions: ['kinesis:SubscribeToShard'], resources: ['arn:aws:kinesis:*:*:stream/*']}
every stream; name => aws_iam_role {inline_policy: [{name: x, policy: {NotAction: ['s3:*', 'iam:*']}}]}
lets account THEIRS in => aws_kms_key {policy: {Action: 'kms:*', Principal: {AWS: 'THEIRS'}}}
THEIRS in, which the environment's => data.aws_iam_policy_document {actions: ['sts:AssumeRole'], principals: [{type: AWS, identifiers: ['arn:aws:sts::THEIRS:assumed-role/x/y']}]}
lets everybody in => aws_s3_bucket_policy {policy: {Action: 's3:GetObject', Principal: '*'}}
everybody in => aws_kms_key {policy: {Action: 'kms:*', NotPrincipal: {AWS: 'THEIRS'}}}
lets account of ${aws_ssm => aws_kms_grant {grantee_principal: '${aws_ssm_parameter.x.value}'}
its policy cannot be read => aws_iam_policy {policy: '${jsonencode({"Statement": []})}'}
cannot be read: it must be JSON => aws_iam_role {assume_role_policy: '[]'}
ValueError: a key is written twice among Statement, Statement => aws_iam_policy {policy: '{"Statement": {"Effect": "Allow", "Resource": "*", "Action": "iam:PassRole"}, "Statement": []}'}
ValueError: unknown keys: principal => aws_kms_key {policy: {Action: 'kms:*', principal: {AWS: 'THEIRS'}}}
Effect 'allow' is neither Allow nor Deny => aws_iam_policy {policy: '{"Statement": {"Effect": "allow", "Action": "iam:PassRole", "Resource": "*"}}'}
lets GITHUB:repo:evil/fork:* in => aws_iam_role {subjects: ['repo:evil/fork:*']}
githubusercontent.com:repo:acme/lake:ref:refs/heads/main in => aws_iam_role {subjects: ['repo:acme/lake:ref:refs/heads/main']}
lets all for whom arn:aws:iam::OURS:oidc-provider/token => aws_iam_role {subjects: []}
for whom arn:aws:iam::OURS:oidc-provider/GITHUB vouches => aws_iam_role {subjects: ['repo:evil/fork:*'], test: StringEqualsIfExists}
lets oidc.eks.eu-west-1.amazonaws.com/id/B:system:serviceaccount:lake:etl in => data.aws_iam_policy_document {actions: ['sts:AssumeRoleWithWebIdentity'], principals: [{type: Federated, identifiers: ['arn:aws:iam::OURS:oidc-provider/EKS/B']}], condition: [{test: StringLike, variable: 'EKS/B:sub', values: ['system:serviceaccount:lake:etl']}]}
lets all for whom arn:aws:iam::OURS:saml-provider/x vouches in => aws_iam_role {assume_role_policy: {Action: 'sts:AssumeRoleWithSAML', Principal: {Federated: 'arn:aws:iam::OURS:saml-provider/x'}}}
lets Federated cognito => data.aws_iam_policy_document {actions: ['kms:Decrypt'], principals: [{type: Federated, identifiers: [cognito-identity.amazonaws.com]}]}
lets AWS AROA => data.aws_iam_policy_document {actions: ['kms:Decrypt'], principals: [{type: AWS, identifiers: [AROA1234567890EXAMPLE]}]}
its action iam:PassRole${aws => data.aws_iam_policy_document {actions: ['iam:PassRole${aws_kms_key.x.tags}']}
its resource *${aws => data.aws_iam_policy_document {actions: ['kinesis:ListShards'], resources: ['*${aws_kms_key.x.tags}']}
its resource ${aws_kinesis_stream.x.name} => data.aws_iam_policy_document {actions: ['kinesis:ListShards'], resources: ['${aws_kinesis_stream.x.name}']}
lets CanonicalUser 79a5 in => aws_s3_bucket_policy {policy: {Action: 's3:GetObject', Principal: {CanonicalUser: 79a5}}}
lets others in by its grant => aws_s3_bucket {grant: [{id: 79a5, permissions: [READ]}]}
lets others in by its access_control_policy => aws_s3_bucket_acl {access_control_policy: [{grant: [{grantee: [{id: 79a5}]}]}]}
lets others in by its acl => aws_s3_bucket {acl: authenticated-read}
its action arn:aws:automate:eu-west-1:ec2:terminate is no topic => aws_cloudwatch_metric_alarm {alarm_actions: ['arn:aws:automate:eu-west-1:ec2:terminate']}
its action arn:aws:sns:eu-west-1:THEIRS:x is no topic => aws_cloudwatch_metric_alarm {insufficient_data_actions: ['arn:aws:sns:eu-west-1:THEIRS:x']}
its image THEIRS.dkr.ecr => aws_emrserverless_application {image_configuration: [{image_uri: 'THEIRS.dkr.ecr.eu-west-1.amazonaws.com/x:1'}]}
lets ssm.amazonaws.com assume it => aws_iam_role {assume_role_policy: {Action: 'sts:Assume?ole', Principal: {Service: ssm.amazonaws.com}}}
lets lambda.amazonaws.com.cn assume it => aws_iam_role {assume_role_policy: {Action: 'sts:TagSession', Principal: {Service: lambda.amazonaws.com.cn}}}
its kms_master_key_id is of account THEIRS => aws_s3_bucket_server_side_encryption_configuration {rule: [{apply_server_side_encryption_by_default: [{kms_master_key_id: 'arn:aws:kms:eu-west-1:THEIRS:key/x'}]}]}
its encryption_key_arn is of account THEIRS => aws_emrserverless_application {monitoring_configuration: [{managed_persistence_monitoring_configuration: [{encryption_key_arn: 'arn:aws:kms:eu-west-1:THEIRS:key/x'}]}]}
its target_role_arn is => aws_eks_pod_identity_association {POD, target_role_arn: 'arn:aws:iam::OURS:role/Admin'}
its livy_endpoint_enabled lets others run code => aws_emrserverless_application {interactive_configuration: [{livy_endpoint_enabled: true}]}
lets everybody in, from 128.0.0.0/1 => aws_security_group {ingress: [{cidr_blocks: [128.0.0.0/1], ipv6_cidr_blocks: []}]}
its role_name is Admin, which => aws_iam_role_policy_attachments_exclusive {role_name: Admin}
its image public.ecr.aws/x/y:1 => aws_emrserverless_application {image_configuration: {image_uri: 'public.ecr.aws/x/y:1'}}
its setting spark.jars.packages brings code => aws_emrserverless_application {runtime_configuration: [{classification: spark-defaults, properties: {spark.jars.packages: 'a:b:1'}}]}
its replica copies elsewhere => aws_dynamodb_table {replica: [{region_name: us-east-1}]}
its replication_configuration copies elsewhere => aws_s3_bucket {replication_configuration: [{role: x, rules: []}]}
x: replicates elsewhere => aws_s3_bucket_replication_configuration {bucket: x}
its roles is Admin, which neither => aws_iam_policy_attachment {roles: [Admin], policy_arn: x}
its role is Admin, which neither the stack declares nor => aws_iam_role_policy_attachment {role: Admin}
its role_arn is arn:aws:iam::OURS:role/Admin, which => aws_eks_pod_identity_association {role_arn: 'arn:aws:iam::OURS:role/Admin', POD}
lets pods of analytics/attacker/etl in => aws_eks_pod_identity_association {role_arn: '${aws_iam_role.x.arn}', cluster_name: analytics, namespace: attacker, service_account: etl}
lets everybody in, from 0.0.0.0/0 => aws_security_group {ingress: [{cidr_blocks: [10.0.0.0/8, 0.0.0.0/0], from_port: 0}]}
lets everybody in, from ::/0 => aws_vpc_security_group_ingress_rule {cidr_ipv6: '::/0'}
"""
)
OURS = f"{ACCOUNT}:role"
# Resources by the statement's action: patterns of partitions, regions and accounts, and of whatever name.
PATTERNS = {
    "iam:PassRole": [
        f"arn:aws-*:iam::{OURS}/*", f"arn:*:iam::{OURS}/*", f"arn:aws*:iam::{OURS}/lake", f"arn:a?s:iam::{OURS}/lake",
        "arn:aws:iam::*:role/lake", "arn:aws:iam::11112222333?:role/lake", f"arn:aws:i*::{OURS}/lake", f"arn:aws:iam:*:{OURS}/lake",
        f"arn:AWS:IAM::{OURS}/*", f"arn:aws:iam::{OURS}/?*", f"arn:aws:iam::{OURS}/????", f"arn:aws:iam::{OURS}/*r*",
        f"arn:aws:iam::{ACCOUNT}:r*", f"*:{OURS}/lake", "arn:*",
        f"arn:aws:iam::{OURS}/${{aws:PrincipalTag/role}}", f"arn:aws:iam::{OURS}/${{aws:username}}*",
        "arn:${data.aws_partition.x.partition}:iam::${data.aws_caller_identity.x.account_id}:role/*",
    ],
    "kinesis:GetRecords": [
        f"arn:aws:kinesis:us-*:{ACCOUNT}:stream/*", f"arn:aws:kinesis:*:{ACCOUNT}:stream/orders",
        "arn:aws:kinesis:eu-west-?:1111*:stream/*", "arn:aws:k*:eu-west-1:111122223333:stream/orders",
        f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/*-orders", f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:*/*",
        f"arn:aws:kinesis:${{data.aws_region.x.region}}:{ACCOUNT}:stream*",
    ],
}  # fmt: skip
PLAIN = {
    "iam:PassRole": [
        f"arn:aws:iam::{OURS}/lake", f"arn:aws:iam::{OURS}/lake-*", f"arn:aws-cn:iam::{OURS}/lake/*", "${aws_iam_role.x.arn}",
        "arn:${data.aws_partition.x.partition}:iam::${data.aws_caller_identity.x.account_id}:role/lake", "arn:aws:s3:::x/*",
    ],
    "kinesis:SubscribeToShard": [
        f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/orders", f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/orders/consumer/*",
        "${aws_kinesis_stream.x.arn}/consumer/*",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "faults"), [(PATTERNS, 1), (PLAIN, 0)])
def test_resources_have_partition_region_and_account(wanted: dict[str, list[str]], faults: int, load: Load) -> None:
    named = named_by(load(pipeline=PIPELINE))
    for action, each in ((action, each) for action, resources in wanted.items() for each in resources):
        for planted in (
            ("aws_iam_policy", {"policy": statement(Action=action, Resource=each)}),
            ("data.aws_iam_policy_document", document(actions=[action], resources=[each])),
        ):
            for found in (granted.in_stack(stack_of(*planted), named), granted.in_plan(plan_of(*planted), named)):
                assert len(found) == faults, each
                assert all(fault.endswith(f"region and account: {each}") for fault in found)


def test_passing_every_role_is_seen_however_written(load: Load) -> None:
    named, role = named_by(load(pipeline=PIPELINE)), f"arn:aws:iam::{OURS}/x"
    for changes in (
        {"Action": "iam:PassRole", "Resource": [], "NotResource": role},
        {"Action": "iam:PassRole", "Resource": role, "NotResource": role},
        {"NotAction": ["[ik]*:*", "iam:[P]assRole", "kinesis:*"]},
        {"Action": "IAM:passrole"},
        {"Action": "iam:Pass????"},
    ):
        policy = statement(**changes)
        included = stack_of("data.aws_iam_policy_document", {"source_policy_documents": [policy]})
        for stack in (stack_of("aws_iam_policy", {"policy": policy}), included):
            (fault,) = granted.in_stack(stack, named)
            assert "lets pass every role" in fault, changes


def stack_of(kind: str, body: Json) -> Json:
    section, _, bare = kind.rpartition(".")
    return {section or "resource": {bare: {"x": body}}}


def plan_of(kind: str, body: Json, *, unknown: Json | None = None, address: str = "", refers: str = "") -> Json:
    change = {"actions": ["create"], "after": body, "after_unknown": unknown or {}}
    changed = {"address": address or f"{kind}.x", "type": kind.removeprefix("data."), "change": change}
    expressions = {"permissions_boundary": {"references": [refers, refers.removesuffix(".arn")]}}
    resources = [{"address": f"{kind}.x", "expressions": expressions}] if refers else []
    return {"resource_changes": [changed], "configuration": {"root_module": {"resources": resources}}}


def with_policies(body: Any) -> Any:
    """A body whose policies are JSON."""
    if isinstance(body, list):
        return [with_policies(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {
        name: statement(**each) if name.endswith("policy") and isinstance(each, dict) else with_policies(each)
        for name, each in body.items()
    }


@pytest.mark.parametrize(("found", "resource"), PLANTED)
def test_grant_of_more_is_found_in_stack_and_plan(found: str, resource: str, load: Load) -> None:
    kind, _, text = resource.partition(" ")
    body = with_policies(yaml.safe_load(written(text)))
    if kind == "data.aws_iam_policy_document":
        body = document(**body)
    if kind == "aws_iam_role":
        given = trusts(*body.pop("subjects"), test=body.pop("test", "StringLike")) if "subjects" in body else {}
        body = role(**body, **given)
    named = named_by(load(written(PODS)))
    for faults in (granted.in_stack(stack_of(kind, body), named), granted.in_plan(plan_of(kind, body), named)):
        (fault,) = faults
        assert written(found) in fault
        assert fault.startswith(kind)


def count(kind: str, body: Json, named: Any) -> int:
    return len(granted.in_stack(stack_of(kind, body), named))


def test_named_workloads_topics_images_and_roles_pass(load: Load, synth: Synth) -> None:
    topic = f"arn:aws:sns:eu-west-1:{FOREIGN}:oncall"
    changes = f"{written(PODS)}, alarms.sns_topic: '{topic}', applications.ec2: {{streams: [orders], access: EC2}}"
    stack, named = synth(changes), named_by(load(changes))
    assert granted.in_stack(stack, named) == []
    assert stack["resource"].keys() >= {"aws_eks_pod_identity_association", "aws_iam_instance_profile"}
    # What the stack declares is known by its name in a plan.
    declares = [("aws_iam_role", role(name="lake")), ("aws_iam_instance_profile", {"role": "lake"}),
                ("aws_emrserverless_application", {"image_configuration": [{"image_uri": f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/x:1"}]}),
                ("aws_cloudwatch_metric_alarm", {"alarm_actions": [topic, None], "ok_actions": []})]  # fmt: skip
    plan = {"resource_changes": [plan_of(*each)["resource_changes"][0] for each in declares]}
    assert granted.in_plan(plan, named) == []


def test_app_names_workloads_and_roles_in_its_file() -> None:
    head = {"environment": "dev", "region": "eu-west-1", "account_id": ACCOUNT, "state_bucket": "acme-state"}
    for change, faults in (({}, 1), ({"identities": [f"{GITHUB}:repo:acme/x:*"], "roles": ["etl"]}, 0)):
        named = AppEnvironment.model_validate({**head, "boundaries": [BOUNDARY], **change}).deployment.named
        assert count("aws_iam_role_policy", {"role": "etl"}, named) == faults
        assert count("aws_iam_role", role(**trusts("repo:acme/x:y")), named) == faults


# With `count` or `for_each`, a plan has an index, of whatever letters.
@pytest.mark.parametrize("index", [None, "", "[0]", '["a.b"]'])
def test_name_of_the_excused_boundary_is_reserved(index: str | None, load: Load) -> None:
    policy = {"name": "x", "policy": statement(Action="s3:GetObject", Resource="arn:aws:s3:::x/*")}
    address = f"aws_iam_policy.roles_boundary{index or ''}"

    def found(**changes: Any) -> list[str]:
        if index is None:
            return granted.in_stack(
                {"resource": {"aws_iam_policy": {"roles_boundary": policy}}}, named_by(load(**changes))
            )
        return granted.in_plan(plan_of("aws_iam_policy", policy, address=address), named_by(load(**changes)))

    (fault,) = found(pipeline=PIPELINE)
    assert fault.startswith(f"{address}: has the name of the boundary")
    assert found() == []


# Before the boundary exists, a plan does not know its ARN, and has what it refers to.
@pytest.mark.parametrize("address", ["aws_iam_role.x", "aws_iam_role.x[1]"])
@pytest.mark.parametrize(
    ("refers", "faults"), [("aws_iam_policy.roles_boundary.arn", 0), ("aws_iam_policy.lake.arn", 1)]
)
def test_unknown_boundary_is_what_the_stack_refers_to(address: str, refers: str, faults: int, load: Load) -> None:
    body, unknown = role(permissions_boundary=None), {"permissions_boundary": True}
    plan = plan_of("aws_iam_role", body, unknown=unknown, address=address, refers=refers)
    assert len(granted.in_plan(plan, named_by(load("applications.lake.access: SERVERLESS")))) == faults


def test_folder_without_environment_files_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no environment file; write <environment>\.yaml there"):
        load(tmp_path)
