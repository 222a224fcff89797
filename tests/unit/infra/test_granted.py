"""What a stack or a plan grants is what the settings name: boundaries, accounts, roles and streams."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.gate.named import named_by, named_by_bootstrap_of
from infra.settings.load import load_environments
from infra.settings.model import Environment
from infra.stacks.app import synthesize, synthesize_bootstrap
from kinesis_efo_infra.gate import granted
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
}


def stack_of(kind: str, body: Json) -> Json:
    section, _, bare = kind.rpartition(".")
    return {section or "resource": {bare: {"x": body}}}


def plan_of(kind: str, body: Json) -> Json:
    address = f"{kind}.x"
    change = {"actions": ["create"], "after": body, "after_unknown": {}}
    return {"resource_changes": [{"address": address, "type": kind.removeprefix("data."), "change": change}]}


@pytest.mark.parametrize("said", PLANTED)
def test_what_grants_more_is_found_in_stacks_and_in_plans(said: str, load: Load) -> None:
    named = named_by(load(pipeline=PIPELINE))
    for found in (granted.in_stack(stack_of(*PLANTED[said]), named), granted.in_plan(plan_of(*PLANTED[said]), named)):
        (fault,) = found
        assert said in fault
        assert fault.startswith(PLANTED[said][0])


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
        assert {each.partition(":")[0] for each in found} == {"aws_iam_role.plan", "aws_iam_role.apply"}


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
