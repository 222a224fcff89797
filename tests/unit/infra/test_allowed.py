"""The positive list has what the constructs declare, and nothing that runs a command, reads files or calls another provider."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

import infra.stacks.cdk
import kinesis_efo_infra.cdk
from infra.settings.load import load_environments
from infra.stacks.app import synthesize, synthesize_bootstrap
from kinesis_efo_infra.gate import allowed
from tests.support.environments import DIRECTORY

Json = dict[str, Any]
SHELL = [{"local-exec": {"command": "env"}}]
AWS = "registry.terraform.io/hashicorp/aws"


def declared(base: str) -> set[str]:
    """The types of the classes that constructs and stacks import."""
    classes = {getattr(module, name) for module in (infra.stacks.cdk, kinesis_efo_infra.cdk) for name in module.__all__}
    return {
        each.TF_RESOURCE_TYPE
        for each in classes
        if base in [parent.__name__ for parent in getattr(each, "__mro__", ())] and hasattr(each, "TF_RESOURCE_TYPE")
    }


def test_it_has_the_types_that_constructs_declare_and_no_other() -> None:
    assert declared("TerraformResource") == allowed.RESOURCES | allowed.BOOTSTRAP
    assert declared("TerraformDataSource") == allowed.DATA


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """The stacks of complete environments, and their bootstrap stacks."""
    out = tmp_path_factory.mktemp("allowed")
    environments = load_environments(DIRECTORY)
    found = {}
    for written in (
        synthesize(environments, DIRECTORY, outdir=out / "stacks"),
        synthesize_bootstrap(environments, out / "bootstrap"),
    ):
        for path in written.glob("stacks/*/cdk.tf.json"):
            found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_every_stack_of_ours_passes(stacks: dict[str, Json]) -> None:
    assert len(stacks) == 4
    for name, stack in stacks.items():
        assert allowed.in_stack(stack, bootstrap=name.endswith("-bootstrap")) == [], name
    # What only an administrator applies, no pipeline may bring.
    (fault,) = allowed.in_stack(stacks["kinesis-efo-dev-bootstrap"])
    assert fault == "resource.aws_iam_openid_connect_provider.github: nothing of this type is allowed"


def orders(stack: Json) -> Json:
    stream: Json = next(iter(stack["resource"]["aws_kinesis_stream"].values()))
    return stream


FORGED: dict[str, Callable[[Json], None]] = {
    "terraform_data": lambda stack: stack["resource"].update(terraform_data={"x": {}}),
    "provisioner": lambda stack: orders(stack).update(provisioner=SHELL),
    "connection": lambda stack: orders(stack).update(connection={"host": "x"}),
    "aws_iam_access_key": lambda stack: stack["resource"].update(aws_iam_access_key={"x": {"user": "x"}}),
    "aws_sns_topic_policy": lambda stack: stack["resource"].update(aws_sns_topic_policy={"x": {}}),
    "external": lambda stack: stack["data"].update(external={"x": {"program": ["env"]}}),
    "http": lambda stack: stack["data"].update(http={"x": {"url": "x"}}),
    "module": lambda stack: stack.update(module={"x": {"source": "x"}}),
    "check": lambda stack: stack.update(check={"x": {}}),
    "removed": lambda stack: stack.update(removed=[{"from": "aws_kms_key.x", "provisioner": SHELL}]),
    "must be objects by type": lambda stack: stack.update(resource=[{"terraform_data": {"x": {}}}]),
    "must be an object": lambda stack: stack["resource"]["aws_kms_key"].update(x=[{"provisioner": SHELL}]),
    "provider null": lambda stack: stack["terraform"]["required_providers"].update(null={"source": "null"}),
    "provider aws: only": lambda stack: stack["terraform"]["required_providers"]["aws"].update(source="acme/aws"),
    "terraform.cloud": lambda stack: stack["terraform"].update(cloud={}),
    "terraform.backend.http": lambda stack: stack["terraform"].update(backend={"http": {"address": "x"}}),
    "terraform.backend.s3": lambda stack: stack["terraform"]["backend"]["s3"].update(endpoints={"s3": "x"}),
    "provider aws": lambda stack: stack["provider"]["aws"][0].update(shared_config_files=["/tmp/x"]),
    "reads files": lambda stack: orders(stack).update(tags={"x": '${file("/proc/self/environ")}'}),
    "calls a provider": lambda stack: orders(stack).update(tags={"x": "${provider::aws::arn_parse(1)}"}),
    "expression reads files": lambda stack: orders(stack).update(
        tags={"x": '%{ if fileexists /* */ ("x") }%{ endif }'}
    ),
    # Terraform evaluates names as well.
    "files, or calls": lambda stack: orders(stack).update(tags={'${file("/etc/hostname")}': "x"}),
    "or calls a provider": lambda stack: orders(stack).update(tags={"x": "${templatestring(aws_kms_key.x.id, {})}"}),
    "aws_s3_object.x.source": lambda stack: stack["resource"].update(
        aws_s3_object={"x": {"bucket": "x", "key": "x", "source": "/proc/self/environ"}}
    ),
    "dynamic: blocks must be written out": lambda stack: stack["data"]["aws_iam_policy_document"].update(
        x={"statement": {"dynamic": {"principals": {"for_each": ["*"], "content": {}}}}}
    ),
    "terraform.backend: must be an object": lambda stack: stack["terraform"].update(backend=[{"http": {}}]),
    "terraform.required_providers: must": lambda stack: stack["terraform"].update(required_providers=[{"null": {}}]),
}


@pytest.mark.parametrize("fault", FORGED)
def test_whatever_else_is_in_a_stack_is_found(fault: str, stacks: dict[str, Json]) -> None:
    stack = copy.deepcopy(stacks["kinesis-efo-dev"])
    FORGED[fault](stack)
    (found,) = allowed.in_stack(stack)
    assert fault in found


def test_what_is_no_expression_may_name_files(stacks: dict[str, Json]) -> None:
    stack = copy.deepcopy(stacks["kinesis-efo-dev"])
    orders(stack)["tags"] = {
        "x": "file(s) of a program",
        "y": "${aws_kms_key.profile.arn} and jobs/file.py",
        "z": "file://x",
    }
    assert allowed.in_stack(stack) == []


def change(kind: str, **changes: Any) -> Json:
    return {"address": f"{kind}.x", "mode": "managed", "type": kind, "provider_name": AWS, "change": {}, **changes}


PLANS: dict[str, Json] = {
    "terraform_data.x: nothing of this type": {"resource_changes": [change("terraform_data")]},
    "external.x: nothing of this type": {"resource_changes": [change("external", mode="data")]},
    "aws_kms_key.x: only the provider": {"resource_changes": [change("aws_kms_key", provider_name="x/acme/aws")]},
    "and no module": {"resource_changes": [change("aws_kms_key", module_address="module.x")]},
    "aws_kms_key.x: a provisioner": {
        "configuration": {"root_module": {"resources": [{"address": "aws_kms_key.x", "provisioners": [{}]}]}}
    },
    "module x": {"configuration": {"root_module": {"module_calls": {"x": {}}}}},
    "provider null": {"configuration": {"provider_config": {"null": {"full_name": "x/hashicorp/null"}}}},
    "aws_s3_object.x.source: it reads a file": {
        "resource_changes": [change("aws_s3_object", change={"after": {"source": "/proc/self/environ"}})]
    },
    "aws_iam_role_policy_attachment.x.policy_arn: an expression makes it sensitive": {
        "resource_changes": [
            change(
                "aws_iam_role_policy_attachment",
                change={"after": {"policy_arn": "x"}, "after_sensitive": {"policy_arn": True}},
            )
        ]
    },
    "aws_security_group.x.ingress: an expression makes it sensitive": {
        "resource_changes": [
            change(
                "aws_security_group",
                change={
                    "after": {"ingress": [{}, {"cidr_blocks": ["::/0"]}]},
                    "after_sensitive": {"ingress": [{}, {"cidr_blocks": [False, True]}]},
                },
            )
        ]
    },
    "action_invocations": {"action_invocations": [{}]},
}


@pytest.mark.parametrize("fault", PLANS)
def test_whatever_else_is_in_a_plan_is_found(fault: str) -> None:
    (found,) = allowed.in_plan(PLANS[fault])
    assert fault in found


def test_what_the_provider_itself_marks_as_sensitive_is_no_fault() -> None:
    after = {"value": "x", "value_wo": None, "tags": {"true": "x"}}
    marks = {"value": True, "value_wo": True, "tags": {"true": {}}, "tags_all": {}}
    secret = {"after": {"secret_string": "x"}, "after_sensitive": {"secret_string": True}}
    changes = [
        change("aws_ssm_parameter", change={"after": after, "after_sensitive": marks}),
        change("aws_kms_key", change={"after": {"policy": "x"}, "after_sensitive": False}),
        change("aws_kms_key", change={"after": None, "after_sensitive": False}),
        # Of types that a team has added, the provider may mark others.
        change("aws_secretsmanager_secret_version", change=secret),
    ]
    assert allowed.in_plan({"resource_changes": changes}, extra=["aws_secretsmanager_secret_version"]) == []


def test_a_plan_of_our_types_passes_with_terraform_and_with_opentofu() -> None:
    for provider in (AWS, "registry.opentofu.org/hashicorp/aws"):
        changes = [change("aws_kms_key", provider_name=provider), change("aws_region", mode="data")]
        configured = {
            "provider_config": {"aws": {"full_name": provider}},
            "root_module": {"resources": [{"address": "x"}]},
        }
        assert allowed.in_plan({"resource_changes": changes, "configuration": configured}) == []
    provider = change("aws_iam_openid_connect_provider")
    assert allowed.in_plan({"resource_changes": [provider]}, bootstrap=True) == []
    assert len(allowed.in_plan({"resource_changes": [provider]})) == 1


@pytest.mark.parametrize(
    ("kind", "body", "fault"),
    [
        ("aws_dynamodb_table", {"lifecycle": {"ignore_changes": "all"}}, "ignore_changes"),
        ("aws_iam_role", {"lifecycle": {"ignore_changes": ["assume_role_policy"]}}, "ignore_changes"),
        ("aws_kinesis_stream", {"lifecycle": {"ignore_changes": ["shard_count", "kms_key_id"]}}, "ignore_changes"),
        ("aws_kinesis_stream", {"lifecycle": [{"replace_triggered_by": ["x"]}]}, "replace_triggered_by: not allowed"),
        ("aws_kinesis_stream", {"lifecycle": {"create_before_destroy": True}}, "create_before_destroy: not allowed"),
        ("aws_s3_object", {"key": "programs/job.py", "content": "import os"}, "an object may be a manifest only"),
        ("aws_s3_object", {"key": "environments/x.json", "content": "{}"}, "an object may be a manifest only"),
        ("aws_s3_object", {"key": "${var.key}", "content": "{}"}, "an object may be a manifest only"),
        ("aws_s3_object", {"key": "m.json", "content_base64": "e30="}, "an object may be a manifest only"),
    ],
)
def test_a_hidden_lifecycle_or_object_is_refused(kind: str, body: Json, fault: str) -> None:
    (found,) = allowed.in_stack({"resource": {kind: {"a": body}}})
    assert fault in found
    if kind == "aws_s3_object":
        change = {"type": kind, "mode": "managed", "address": f"{kind}.a", "change": {"after": body}}
        assert any(fault in each for each in allowed.in_plan({"resource_changes": [change]}))


def test_the_lifecycles_of_our_constructs_are_allowed() -> None:
    scaled = {"lifecycle": {"prevent_destroy": True, "ignore_changes": ["shard_count"]}}
    manifest = {"key": "kinesis-efo/dev/lake.json", "content": "{}"}
    stack = {"resource": {"aws_kinesis_stream": {"a": scaled}, "aws_s3_object": {"b": manifest}}}
    assert allowed.in_stack(stack) == []


@pytest.mark.parametrize("call", ["nonsensitive(", "nonsensitive (", "upper(nonsensitive(", "nonsensitive/* */("])
def test_an_output_that_shows_a_secret_is_refused(call: str) -> None:
    value = f"${{{call}aws_ssm_parameter.a.value))}}"
    for stack in ({"output": {"x": {"value": value}}}, {"resource": {"aws_kinesis_stream": {"a": {"name": value}}}}):
        assert [each for each in allowed.in_stack(stack) if "shows what is sensitive" in each]
