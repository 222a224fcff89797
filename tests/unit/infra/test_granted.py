"""What a stack or a plan grants is what the settings name: boundaries, accounts, roles and streams."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.gate.named import named_by, named_by_bootstrap_of
from infra.settings.load import load_environments
from infra.settings.model import Environment
from infra.stacks.app import synthesize, synthesize_bootstrap
from kinesis_efo_infra.errors import SettingsError
from kinesis_efo_infra.gate import granted
from kinesis_efo_infra.pipeline.environment import Environment as AppEnvironment
from kinesis_efo_infra.pipeline.environment import load
from tests.support.environments import DIRECTORY

Json = dict[str, Any]
Load = Callable[..., Environment]
PIPELINE = {"repository": "acme/lake"}
ACCOUNT, FOREIGN = "111122223333", "777788889999"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/kinesis-efo-pipeline/kinesis-efo-pipeline-test-boundary"


def statement(**changes: Any) -> str:
    return json.dumps({"Statement": {"Effect": "Allow", "Resource": "*", **changes}})


def document(**changes: Any) -> Json:
    return {"statement": [{"effect": "Allow", **changes}]}


def role(**changes: Any) -> Json:
    return {"name": "x", "permissions_boundary": BOUNDARY, "assume_role_policy": '{"Statement": []}', **changes}


GITHUB, EKS = "token.actions.githubusercontent.com", "oidc.eks.eu-west-1.amazonaws.com/id/"
POD = {"cluster_name": "analytics", "namespace": "lake", "service_account": "etl"}
PODS = {
    "oidc": {"kind": "eks", "oidc_provider_arn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{EKS}A", "namespace": "lake",
             "service_account": "etl"},
    "pods": {"kind": "eks", "cluster": "analytics", "namespace": "lake", "service_account": "etl"},
    "emr": {"kind": "eks", "cluster": "emr", "namespace": "lake"},
}  # fmt: skip


def trusts(*subjects: str, test: str = "StringLike") -> Json:
    """The trust policy of a role for workflows on GitHub, through the account's own provider."""
    return {
        "assume_role_policy": statement(
            Action="sts:AssumeRoleWithWebIdentity",
            Principal={"Federated": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{GITHUB}"},
            Condition={"StringEquals": {f"{GITHUB}:aud": "sts.amazonaws.com"}, test: {f"{GITHUB}:sub": list(subjects)}},
        )
    }


def with_pods(load: Load) -> Environment:
    applications = {key: {"streams": ["orders"], "access": access} for key, access in PODS.items()}
    return load(pipeline=PIPELINE, streams={"orders": {}}, applications=applications)


AWS = "arn:aws:iam::aws:policy/AdministratorAccess"
# By what is said of it: the type, and the body.
PLANTED: dict[str, tuple[str, Json]] = {
    f"its permissions boundary is {AWS}": ("aws_iam_role", role(permissions_boundary=AWS)),
    "its permissions boundary is none": ("aws_iam_role", role(permissions_boundary=None)),
    "boundary is none": ("aws_iam_role", role(permissions_boundary=None, path="/kinesis-efo-pipeline/")),
    "is none, and the settings name": ("aws_iam_role", role(permissions_boundary=None, path="/lake-pipeline/")),
    "lets pass every role": ("aws_iam_policy", {"policy": statement(Action="iam:PassRole")}),
    "every role; name": (
        "aws_iam_policy",
        {"policy": statement(Action="iam:*", Resource=f"arn:aws:iam::{ACCOUNT}:role/*")},
    ),
    "pass every role; name them": ("data.aws_iam_policy_document", document(actions=["iam:Pass*"], resources=["*"])),
    "lets read every stream": ("aws_iam_policy", {"policy": statement(Action=["kinesis:Get*", "s3:GetObject"])}),
    "read every stream; name them": (
        "data.aws_iam_policy_document",
        document(actions=["kinesis:SubscribeToShard"], resources=["arn:aws:kinesis:*:*:stream/*"]),
    ),
    "every stream; name": (
        "aws_iam_role",
        role(inline_policy=[{"name": "x", "policy": statement(NotAction=["s3:*", "iam:*"])}]),
    ),
    f"lets account {FOREIGN} in": ("aws_kms_key", {"policy": statement(Action="kms:*", Principal={"AWS": FOREIGN})}),
    f"account {FOREIGN} in, which": (
        "aws_kinesis_resource_policy",
        {"policy": statement(Action="kinesis:PutRecord", Principal={"AWS": [f"arn:aws:iam::{FOREIGN}:root"]})},
    ),
    f"{FOREIGN} in, which the environment's": (
        "data.aws_iam_policy_document",
        document(
            actions=["sts:AssumeRole"],
            principals=[{"type": "AWS", "identifiers": [f"arn:aws:sts::{FOREIGN}:assumed-role/x/y"]}],
        ),
    ),
    "lets everybody in": ("aws_s3_bucket_policy", {"policy": statement(Action="s3:GetObject", Principal="*")}),
    "everybody in": ("aws_kms_key", {"policy": statement(Action="kms:*", NotPrincipal={"AWS": FOREIGN})}),
    f"lets account {FOREIGN} in, which the environment's file": ("aws_lambda_permission", {"principal": FOREIGN}),
    "x: lets everybody in": ("aws_lambda_permission", {"principal": "*"}),
    "lets account of ${aws_ssm": ("aws_kms_grant", {"grantee_principal": "${aws_ssm_parameter.x.value}"}),
    "account of ${": ("aws_kms_key", {"policy": statement(Action="kms:*", Principal={"AWS": '${join("", ["77"])}'})}),
    "its policy cannot be read": ("aws_iam_policy", {"policy": '${jsonencode({"Statement": []})}'}),
    "cannot be read: it must be JSON": ("aws_iam_role", role(assume_role_policy="[]")),
    # AWS may take the first of two keys, where Python takes the last.
    "ValueError: a key is written twice among Statement, Statement": (
        "aws_iam_policy",
        {"policy": statement(Action="iam:PassRole")[:-1] + ', "Statement": []}'},
    ),
    "a key is written twice among Effect, Action, Action": (
        "aws_iam_policy",
        {"policy": '{"Statement": {"Effect": "Allow", "Action": "iam:PassRole", "Action": "s3:GetObject"}}'},
    ),
    "ValueError: unknown keys: principal": (
        "aws_kms_key",
        {"policy": statement(Action="kms:*", principal={"AWS": FOREIGN})},
    ),
    "ValueError: unknown keys: statement": ("aws_iam_policy", {"policy": '{"statement": [], "Statement": []}'}),
    "Effect 'allow' is neither Allow nor Deny": (
        "aws_iam_policy",
        {"policy": '{"Statement": {"Effect": "allow", "Action": "iam:PassRole", "Resource": "*"}}'},
    ),
    "lets token.actions.githubusercontent.com:repo:evil/fork:* in": (
        "aws_iam_role",
        role(**trusts("repo:evil/fork:*")),
    ),
    "githubusercontent.com:repo:* in": ("aws_iam_role", role(**trusts("repo:*"))),
    "githubusercontent.com:repo:acme/lake:ref:refs/heads/main in": (
        "aws_iam_role",
        role(**trusts("repo:acme/lake:ref:refs/heads/main")),
    ),
    "lets all for whom arn:aws:iam::111122223333:oidc-provider/token": ("aws_iam_role", role(**trusts())),
    "for whom arn:aws:iam::111122223333:oidc-provider/token.actions.githubusercontent.com vouches": (
        "aws_iam_role",
        role(**trusts("repo:evil/fork:*", test="StringEqualsIfExists")),
    ),
    "lets oidc.eks.eu-west-1.amazonaws.com/id/B:system:serviceaccount:lake:etl in": (
        "data.aws_iam_policy_document",
        document(
            actions=["sts:AssumeRoleWithWebIdentity"],
            principals=[{"type": "Federated", "identifiers": [f"arn:aws:iam::{ACCOUNT}:oidc-provider/{EKS}B"]}],
            condition=[{"test": "StringLike", "variable": f"{EKS}B:sub", "values": ["system:serviceaccount:lake:etl"]}],
        ),
    ),
    f"lets all for whom arn:aws:iam::{ACCOUNT}:saml-provider/x vouches in": (
        "aws_iam_role",
        role(
            assume_role_policy=statement(
                Action="sts:AssumeRoleWithSAML", Principal={"Federated": f"arn:aws:iam::{ACCOUNT}:saml-provider/x"}
            )
        ),
    ),
    "lets CanonicalUser 79a5 in": (
        "aws_s3_bucket_policy",
        {"policy": statement(Action="s3:GetObject", Principal={"CanonicalUser": "79a5"})},
    ),
    "lets others in by its grant": ("aws_s3_bucket", {"grant": [{"id": "79a5", "permissions": ["READ"]}]}),
    "lets others in by its access_control_policy": (
        "aws_s3_bucket_acl",
        {"access_control_policy": [{"grant": [{"grantee": [{"id": "79a5"}]}]}]},
    ),
    "lets others in by its acl": ("aws_s3_bucket", {"acl": "authenticated-read"}),
    "its action arn:aws:automate:eu-west-1:ec2:terminate is no topic": (
        "aws_cloudwatch_metric_alarm",
        {"alarm_actions": ["arn:aws:automate:eu-west-1:ec2:terminate"]},
    ),
    f"its action arn:aws:lambda:eu-west-1:{ACCOUNT}:function:x is no topic": (
        "aws_cloudwatch_composite_alarm",
        {"ok_actions": [f"arn:aws:lambda:eu-west-1:{ACCOUNT}:function:x"]},
    ),
    f"its action arn:aws:sns:eu-west-1:{FOREIGN}:x is no topic": (
        "aws_cloudwatch_metric_alarm",
        {"insufficient_data_actions": [f"arn:aws:sns:eu-west-1:{FOREIGN}:x"]},
    ),
    f"its image {FOREIGN}.dkr.ecr": (
        "aws_emrserverless_application",
        {"image_configuration": [{"image_uri": f"{FOREIGN}.dkr.ecr.eu-west-1.amazonaws.com/x:1"}]},
    ),
    f"its image {ACCOUNT}.dkr.ecr.evil.com": (
        "aws_emrserverless_application",
        {"image_configuration": [{"image_uri": f"{ACCOUNT}.dkr.ecr.evil.com/x:1"}]},
    ),
    **{
        f"lets {service}.amazonaws.com{end} assume it": (
            "aws_iam_role",
            role(assume_role_policy=statement(Action=action, Principal={"Service": f"{service}.amazonaws.com{end}"})),
        )
        for service, action, end in (
            ("ec2", "sts:AssumeRole", ""),
            ("ssm", "sts:Assume?ole", ""),
            ("codebuild", "sts:*", ""),
            ("lambda", "sts:TagSession", ".cn"),
        )
    },
    "lets glue.amazonaws.com assume it": (
        "data.aws_iam_policy_document",
        document(actions=["sts:Assume*"], principals=[{"type": "Service", "identifiers": ["glue.amazonaws.com"]}]),
    ),
    **{
        f"its {name} is of account {FOREIGN}": (kind, body)
        for kind, name, body in (
            ("aws_kinesis_stream", "kms_key_id", {"kms_key_id": f"arn:aws:kms:eu-west-1:{FOREIGN}:key/x"}),
            (
                "aws_dynamodb_table",
                "kms_key_arn",
                {"server_side_encryption": [{"kms_key_arn": f"arn:aws:kms:eu-west-1:{FOREIGN}:key/x"}]},
            ),
            (
                "aws_s3_bucket_server_side_encryption_configuration",
                "kms_master_key_id",
                {
                    "rule": [
                        {
                            "apply_server_side_encryption_by_default": [
                                {"kms_master_key_id": f"arn:aws:kms:eu-west-1:{FOREIGN}:key/x"}
                            ]
                        }
                    ]
                },
            ),
            (
                "aws_kinesis_stream_consumer",
                "stream_arn",
                {"stream_arn": f"arn:aws:kinesis:eu-west-1:{FOREIGN}:stream/x"},
            ),
            (
                "aws_emrserverless_application",
                "encryption_key_arn",
                {
                    "monitoring_configuration": [
                        {
                            "managed_persistence_monitoring_configuration": [
                                {"encryption_key_arn": f"arn:aws:kms:eu-west-1:{FOREIGN}:key/x"}
                            ]
                        }
                    ]
                },
            ),
        )
    },
    "its target_role_arn is": (
        "aws_eks_pod_identity_association",
        {**POD, "target_role_arn": f"arn:aws:iam::{ACCOUNT}:role/Admin"},
    ),
    "its livy_endpoint_enabled lets others run code": (
        "aws_emrserverless_application",
        {"interactive_configuration": [{"livy_endpoint_enabled": True}]},
    ),
    "its studio_enabled lets others run code": (
        "aws_emrserverless_application",
        {"interactive_configuration": {"studio_enabled": "true"}},
    ),
    **{
        f"lets everybody in, from {cidr}": (
            "aws_security_group",
            {
                "ingress": [
                    {"cidr_blocks": [cidr] if "." in cidr else [], "ipv6_cidr_blocks": [cidr] if ":" in cidr else []}
                ]
            },
        )
        for cidr in ("128.0.0.0/1", "0.0.0.0/1", "2000::/3")
    },
    "its role_name is Admin, which": ("aws_iam_role_policy_attachments_exclusive", {"role_name": "Admin"}),
    "its image public.ecr.aws/x/y:1": (
        "aws_emrserverless_application",
        {"image_configuration": {"image_uri": "public.ecr.aws/x/y:1"}},
    ),
    "its setting spark.jars.packages brings code": (
        "aws_emrserverless_application",
        {
            "runtime_configuration": [
                {"classification": "spark-defaults", "properties": {"spark.jars.packages": "a:b:1"}}
            ]
        },
    ),
    "its setting spark.driver.extraClassPath brings code": (
        "aws_emrserverless_application",
        {"runtime_configuration": {"properties": {"spark.driver.extraClassPath": "s3://x/y.jar"}}},
    ),
    "its replica copies elsewhere": ("aws_dynamodb_table", {"replica": [{"region_name": "us-east-1"}]}),
    "its replication_configuration copies elsewhere": (
        "aws_s3_bucket",
        {"replication_configuration": [{"role": "x", "rules": []}]},
    ),
    "x: replicates elsewhere": ("aws_s3_bucket_replication_configuration", {"bucket": "x"}),
    "its role is Admin, which neither the stack": ("aws_iam_instance_profile", {"role": "Admin"}),
    "its roles is Admin, which neither": ("aws_iam_policy_attachment", {"roles": ["Admin"], "policy_arn": "x"}),
    "its role is Admin, which neither the stack declares nor": ("aws_iam_role_policy_attachment", {"role": "Admin"}),
    "its user is root-like, which": ("aws_iam_user_policy", {"user": "root-like"}),
    f"its role_arn is arn:aws:iam::{ACCOUNT}:role/Admin, which": (
        "aws_eks_pod_identity_association",
        {"role_arn": f"arn:aws:iam::{ACCOUNT}:role/Admin", **POD},
    ),
    "lets pods of analytics/attacker/etl in": (
        "aws_eks_pod_identity_association",
        {"role_arn": "${aws_iam_role.x.arn}", **POD, "namespace": "attacker"},
    ),
    "lets everybody in, from 0.0.0.0/0": (
        "aws_security_group",
        {"ingress": [{"cidr_blocks": ["10.0.0.0/8", "0.0.0.0/0"], "from_port": 0}]},
    ),
    "lets everybody in, from ::/0": ("aws_vpc_security_group_ingress_rule", {"cidr_ipv6": "::/0"}),
    "everybody in, from 0.0.0.0/0": ("aws_security_group_rule", {"type": "ingress", "cidr_blocks": ["0.0.0.0/0"]}),
}


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
def test_resources_are_named_with_partition_region_and_account(
    wanted: dict[str, list[str]], faults: int, load: Load
) -> None:
    named = named_by(load(pipeline=PIPELINE))
    for action, resources in wanted.items():
        for each in resources:
            policy = "aws_iam_policy", {"policy": statement(Action=action, Resource=each)}
            written = "data.aws_iam_policy_document", document(actions=[action], resources=[each])
            for planted in (policy, written):
                for found in (
                    granted.in_stack(stack_of(*planted), named),
                    granted.in_plan(plan_of(*planted), named),
                ):
                    assert len(found) == faults, each
                    assert all(fault.endswith(f"region and account: {each}") for fault in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"Action": "iam:PassRole", "Resource": [], "NotResource": f"arn:aws:iam::{OURS}/x"},
        {"Action": "iam:PassRole", "Resource": f"arn:aws:iam::{OURS}/x", "NotResource": f"arn:aws:iam::{OURS}/x"},
        {"NotAction": ["[ik]*:*", "iam:[P]assRole", "kinesis:*"]},
        {"Action": "IAM:passrole"},
        {"Action": "iam:Pass????"},
    ],
)
def test_whatever_is_left_out_and_however_it_is_written_every_role_is_seen(changes: Json, load: Load) -> None:
    policy = {"policy": statement(**changes)}
    (fault,) = granted.in_stack(stack_of("aws_iam_policy", policy), named_by(load(pipeline=PIPELINE)))
    assert "lets pass every role" in fault


def stack_of(kind: str, body: Json) -> Json:
    section, _, bare = kind.rpartition(".")
    return {section or "resource": {bare: {"x": body}}}


def plan_of(kind: str, body: Json) -> Json:
    address = f"{kind}.x"
    change = {"actions": ["create"], "after": body, "after_unknown": {}}
    return {"resource_changes": [{"address": address, "type": kind.removeprefix("data."), "change": change}]}


@pytest.mark.parametrize("said", PLANTED)
def test_what_grants_more_is_found_in_stacks_and_in_plans(said: str, load: Load) -> None:
    named = named_by(with_pods(load))
    for found in (granted.in_stack(stack_of(*PLANTED[said]), named), granted.in_plan(plan_of(*PLANTED[said]), named)):
        (fault,) = found
        assert said in fault
        assert fault.startswith(PLANTED[said][0])


@pytest.mark.slow
def test_every_stack_of_ours_passes(tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("granted")
    environments = load_environments(DIRECTORY)
    stacks = synthesize(environments, DIRECTORY, outdir=out / "stacks")
    bootstrap = synthesize_bootstrap(environments, out / "bootstrap")
    for environment in environments:
        name = f"kinesis-efo-{environment.environment}"
        for written, named in (
            (stacks / "stacks" / name, named_by(environment)),
            (bootstrap / "stacks" / f"{name}-bootstrap", named_by_bootstrap_of(environment)),
        ):
            stack = json.loads((written / "cdk.tf.json").read_text(encoding="utf-8"))
            assert granted.in_stack(stack, named) == []
        # The pipeline's own roles, in another stack.
        found = granted.in_stack(stack, named_by(environment))
        trusts = {f"data.aws_iam_policy_document.{each}_trust" for each in ("plan", "apply")}
        assert {each.partition(":")[0] for each in found} == {"aws_iam_role.plan", "aws_iam_role.apply", *trusts}


def test_accounts_and_boundaries_that_the_file_names_pass(load: Load) -> None:
    bound = f"arn:aws:iam::{ACCOUNT}:policy/bound"
    environment = load(
        pipeline=PIPELINE,
        streams={"orders": {}},
        applications={
            "theirs": {
                "streams": ["orders"],
                "access": {"kind": "other-account", "principals": [f"arn:aws:iam::{FOREIGN}:role/reader"]},
            },
            "lake": {"streams": ["orders"], "access": {"kind": "emr-ec2", "permissions_boundary": bound}},
        },
    )
    named = named_by(environment)
    let_in = {"policy": statement(Action="kms:Decrypt", Principal={"AWS": f"arn:aws:iam::{FOREIGN}:root"})}
    assert granted.in_stack(stack_of("aws_kms_key", let_in), named) == []
    for each in (bound, BOUNDARY):
        assert granted.in_stack(stack_of("aws_iam_role", role(permissions_boundary=each)), named) == []
    third = let_in["policy"].replace(FOREIGN, "000000000000")
    assert len(granted.in_stack(stack_of("aws_kms_key", {"policy": third}), named)) == 1


def test_workloads_topics_images_and_roles_that_the_file_or_the_stack_names_pass(
    load: Load, synth: Callable[..., Json]
) -> None:
    topic = f"arn:aws:sns:eu-west-1:{FOREIGN}:oncall"
    applications = {key: {"streams": ["orders"], "access": access} for key, access in PODS.items()}
    applications["ec2"] = {"streams": ["orders"], "access": {"kind": "emr-ec2"}}
    changes: Json = {
        "pipeline": PIPELINE,
        "alarms": {"sns_topic": topic},
        "streams": {"orders": {}},
        "applications": applications,
    }
    stack, named = synth(**changes), named_by(load(**changes))
    assert granted.in_stack(stack, named) == []
    assert stack["resource"].keys() >= {"aws_eks_pod_identity_association", "aws_iam_instance_profile"}
    # What the stack declares is known by its name in a plan.
    declares = [("aws_iam_role", "lake", role(name="lake")), ("aws_iam_instance_profile", "x", {"role": "lake"}),
                ("aws_emrserverless_application", "x", {"image_configuration": [{"image_uri": f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/x:1"}]}),
                ("aws_cloudwatch_metric_alarm", "x", {"alarm_actions": [topic, None], "ok_actions": []})]  # fmt: skip
    plan = {"resource_changes": [plan_of(kind, body)["resource_changes"][0] for kind, _, body in declares]}
    assert granted.in_plan(plan, named) == []


def test_an_app_names_workloads_and_roles_in_its_environment_file() -> None:
    head = {"environment": "dev", "region": "eu-west-1", "account_id": ACCOUNT, "state_bucket": "acme-state"}
    profile, trusting = (
        stack_of("aws_iam_role_policy", {"role": "etl"}),
        stack_of("aws_iam_role", role(**trusts("repo:acme/x:y"))),
    )
    for change, faults in (
        ({}, 1),
        ({"identities": [f"{GITHUB}:repo:acme/x:*"], "roles": ["etl"], "boundaries": [BOUNDARY]}, 0),
    ):
        named = AppEnvironment.model_validate({**head, "boundaries": [BOUNDARY], **change}).deployment.named
        for stack in (profile, trusting):
            assert len(granted.in_stack(stack, named)) == faults


def test_the_bootstrap_trusts_its_own_repository_only(load: Load) -> None:
    named = named_by_bootstrap_of(load(pipeline=PIPELINE))
    for subject, faults in (
        ("repo:acme/lake:pull_request", 0),
        ("repo:acme/lake2:pull_request", 1),
        ("repo:acme/*", 1),
    ):
        stack = stack_of("aws_iam_role", role(path="/kinesis-efo-pipeline/", **trusts(subject)))
        assert len(granted.in_stack(stack, named)) == faults


def test_a_boundary_of_aws_is_none_even_if_the_file_names_it(load: Load) -> None:
    access = {"kind": "emr-ec2", "permissions_boundary": AWS}
    named = named_by(load(pipeline=PIPELINE, applications={"lake": {"streams": ["orders"], "access": access}}))
    assert len(granted.in_stack(stack_of("aws_iam_role", role(permissions_boundary=AWS)), named)) == 1


def test_nothing_else_has_the_name_by_which_checks_of_a_boundary_are_excused(load: Load) -> None:
    policy = {"name": "x", "policy": statement(Action="s3:GetObject", Resource="arn:aws:s3:::x/*")}
    stack = {"resource": {"aws_iam_policy": {"roles_boundary": policy}}}
    (fault,) = granted.in_stack(stack, named_by(load(pipeline=PIPELINE)))
    assert fault.startswith("aws_iam_policy.roles_boundary: has the name of the boundary")
    assert granted.in_stack(stack, named_by(load())) == []
    # With `count` or `for_each`, a plan has an index, of whatever letters.
    for index in ("", "[0]", '["a.b"]'):
        plan = plan_of("aws_iam_policy", policy)
        plan["resource_changes"][0]["address"] = f"aws_iam_policy.roles_boundary{index}"
        (fault,) = granted.in_plan(plan, named_by(load(pipeline=PIPELINE)))
        assert fault.startswith(f"aws_iam_policy.roles_boundary{index}: has the name of the boundary")
        assert granted.in_plan(plan, named_by(load())) == []


def test_what_a_plan_has_several_of_is_held_against_what_the_stack_says_of_them(load: Load) -> None:
    several = plan_of("aws_iam_role", role(permissions_boundary=None))
    (change,) = several["resource_changes"]
    change["address"], change["change"]["after_unknown"] = "aws_iam_role.x[1]", {"permissions_boundary": True}
    named = named_by(
        load(applications={"lake": {"streams": ["orders"], "access": {"kind": "emr-serverless"}}}),
    )
    for refers, faults in (("aws_iam_policy.roles_boundary.arn", 0), ("aws_iam_policy.lake.arn", 1)):
        expressions = {"permissions_boundary": {"references": [refers]}}
        resources = [{"address": "aws_iam_role.x", "expressions": expressions}]
        plan = {**several, "configuration": {"root_module": {"resources": resources}}}
        assert len(granted.in_plan(plan, named)) == faults


def test_without_a_pipeline_the_boundary_is_the_one_that_the_stack_declares(
    load: Load, synth: Callable[..., Json]
) -> None:
    changes: Json = {"applications": {"lake": {"streams": ["orders"], "access": {"kind": "emr-serverless"}}}}
    stack, named = synth(**changes), named_by(load(**changes))
    assert granted.in_stack(stack, named) == []
    other = copy.deepcopy(stack)
    other["resource"]["aws_iam_role"]["lake"]["permissions_boundary"] = "${aws_iam_policy.lake.arn}"
    assert len(granted.in_stack(other, named)) == 1
    # Before it exists, a plan does not know its ARN, and says what it refers to.
    created = plan_of("aws_iam_role", role(permissions_boundary=None))
    created["resource_changes"][0]["change"]["after_unknown"] = {"permissions_boundary": True}
    for refers, faults in (("aws_iam_policy.roles_boundary.arn", 0), ("aws_iam_policy.lake.arn", 1)):
        expressions = {"permissions_boundary": {"references": [refers, refers.removesuffix(".arn")]}}
        resources = [{"address": "aws_iam_role.x", "expressions": expressions}]
        plan = {**created, "configuration": {"root_module": {"resources": resources}}}
        assert len(granted.in_plan(plan, named)) == faults


def test_folder_without_environment_files_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no environment file; write <environment>\.yaml there"):
        load(tmp_path)
