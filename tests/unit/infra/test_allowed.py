"""The positive list has what the constructs declare, and nothing that runs a command, reads files or calls another provider."""

import copy
from typing import Any

import pytest
import yaml

import infra.stacks.cdk
import kinesis_efo_infra.cdk
from infra.settings.load import load_environment
from infra.stacks.app import synthesize
from kinesis_efo_infra.gate import allowed
from tests.support.environments import DIRECTORY
from tests.unit.infra.conftest import put, read_stack, rows

Json = dict[str, Any]
AWS = "registry.terraform.io/hashicorp/aws"


def declared(base: str) -> set[str]:
    """The types of the classes that constructs and stacks import."""
    modules = (infra.stacks.cdk, kinesis_efo_infra.cdk)
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    return {
        each.TF_RESOURCE_TYPE
        for each in classes
        if base in [parent.__name__ for parent in getattr(each, "__mro__", ())] and hasattr(each, "TF_RESOURCE_TYPE")
    }


def test_allowed_types_are_those_of_constructs() -> None:
    assert declared("TerraformResource") == allowed.RESOURCES | allowed.BOOTSTRAP
    assert declared("TerraformDataSource") == allowed.DATA


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The stack of a complete environment."""
    out = synthesize([load_environment(DIRECTORY / "dev.yaml")], DIRECTORY, outdir=tmp_path_factory.mktemp("allowed"))
    return read_stack(out / "stacks" / "kinesis-efo-dev")


# What is found, and what is put into a stack of ours.
FORGED = r"""
terraform_data => resource.terraform_data: {x: {}}
provisioner => resource.aws_kinesis_stream.orders.provisioner: [{local-exec: {command: env}}]
connection => resource.aws_kinesis_stream.orders.connection: {host: x}
aws_iam_access_key => resource.aws_iam_access_key: {x: {user: x}}
# What only an administrator applies, no pipeline may bring.
aws_iam_openid_connect_provider => resource.aws_iam_openid_connect_provider: {github: {url: x}}
external => data.external: {x: {program: [env]}}
module => module: {x: {source: x}}
check => check: {x: {}}
removed => removed: [{from: aws_kms_key.x, provisioner: [{local-exec: {command: env}}]}]
must be objects by type => resource: [{terraform_data: {x: {}}}]
must be an object => resource.aws_kms_key.x: [{provisioner: [{local-exec: {command: env}}]}]
provider null => terraform.required_providers.null: {source: 'null'}
terraform.cloud => terraform.cloud: {}
terraform.backend.http => terraform.backend: {http: {address: x}}
terraform.backend.s3 => terraform.backend.s3.endpoints: {s3: x}
provider aws => provider.aws.0.shared_config_files: [/tmp/x]
calls a provider => resource.aws_kinesis_stream.orders.tags: {x: '${provider::aws::arn_parse(1)}'}
expression reads files => resource.aws_kinesis_stream.orders.tags: {x: '%{ if fileexists /* */ ("x") }%{ endif }'}
# Terraform evaluates names as well.
or calls a provider => resource.aws_kinesis_stream.orders.tags: {x: '${templatestring(aws_kms_key.x.id, {})}'}
aws_s3_object.x.source => resource.aws_s3_object: {x: {bucket: x, key: x, source: /proc/self/environ}}
dynamic: blocks must be written out => data.aws_iam_policy_document.x: {statement: [{effect: Allow}, {dynamic: {principals: {for_each: ['*'], content: {}}}}]}
terraform.backend: must be an object => terraform.backend: [{http: {}}]
terraform.required_providers: must => terraform.required_providers: [{'null': {}}]
ignore_changes => resource.aws_kinesis_stream.a.lifecycle: {ignore_changes: [shard_count, kms_key_id]}
replace_triggered_by: not allowed => resource.aws_kinesis_stream.a.lifecycle: [{replace_triggered_by: [x]}]
create_before_destroy: not allowed => resource.aws_kinesis_stream.a.lifecycle: {create_before_destroy: true}
an object may be a manifest only => resource.aws_s3_object.a: {key: programs/job.py, content: import os}
an object may be a manifest only => resource.aws_s3_object.a: {key: environments/x.json, content: '{}'}
an object may be a manifest only => resource.aws_s3_object.a: {key: '${var.key}', content: '{}'}
an object may be a manifest only => resource.aws_s3_object.a: {key: m.json, content_base64: e30=}
shows what is sensitive => output: {x: {value: '${nonsensitive(aws_ssm_parameter.a.value)}'}}
shows what is sensitive => resource.aws_kinesis_stream.orders.name: '${nonsensitive/* */(aws_ssm_parameter.a.value)}'
# What is no expression may name files; these lifecycles and objects are those of constructs.
none => resource.aws_kinesis_stream.orders.tags: {x: file(s) of a program, y: '${aws_kms_key.profile.arn} and jobs/file.py', z: 'file://x'}
none => resource.aws_kinesis_stream.orders.lifecycle: {prevent_destroy: true, ignore_changes: [shard_count]}
none => resource.aws_s3_object.b: {key: kinesis-efo/dev/lake.json, content: '{}'}
"""


@pytest.mark.parametrize(("fault", "forged"), rows(FORGED))
def test_anything_else_in_a_stack_is_found(fault: str, forged: str, ours: Json) -> None:
    stack = copy.deepcopy(ours)
    path, _, value = forged.partition(": ")
    put(stack, path, yaml.safe_load(value))
    found = allowed.in_stack(stack)
    assert [fault in each for each in found] == [True] * (fault != "none"), found


def change(kind: str, **changes: Any) -> Json:
    return {"address": f"{kind}.x", "mode": "managed", "type": kind, "provider_name": AWS, "change": {}, **changes}


# What is found, and a changed resource, or a part of the plan.
PLANS = r"""
terraform_data.x: nothing of this type => terraform_data {}
external.x: nothing of this type => external {mode: data}
aws_kms_key.x: only the provider => aws_kms_key {provider_name: x/acme/aws}
and no module => aws_kms_key {module_address: module.x}
aws_kms_key.x: a provisioner => configuration {root_module: {resources: [{address: aws_kms_key.x, provisioners: [{}]}]}}
module x => configuration {root_module: {module_calls: {x: {}}}}
provider null => configuration {provider_config: {'null': {full_name: x/hashicorp/null}}}
aws_s3_object.x.source: it reads a file => aws_s3_object {change: {after: {source: /proc/self/environ}}}
aws_iam_role_policy_attachment.x.policy_arn: an expression makes it sensitive => aws_iam_role_policy_attachment {change: {after: {policy_arn: x}, after_sensitive: {policy_arn: true}}}
aws_security_group.x.ingress: an expression makes it sensitive => aws_security_group {change: {after: {ingress: [{}, {cidr_blocks: ['::/0']}]}, after_sensitive: {ingress: [{}, {cidr_blocks: [false, true]}]}}}
action_invocations => action_invocations [{}]
an object may be a manifest only => aws_s3_object {change: {after: {key: programs/job.py, content: import os}}}
"""


@pytest.mark.parametrize(("fault", "planned"), rows(PLANS))
def test_anything_else_in_a_plan_is_found(fault: str, planned: str) -> None:
    what, _, text = planned.partition(" ")
    value = yaml.safe_load(text)
    is_part = what in ("configuration", "action_invocations")
    (found,) = allowed.in_plan({what: value} if is_part else {"resource_changes": [change(what, **value)]})
    assert fault in found


def test_sensitive_marks_of_the_provider_pass() -> None:
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
    plan, extra = {"resource_changes": changes}, ["aws_secretsmanager_secret_version"]
    assert allowed.in_plan(plan, extra=extra) == []
    # Nobody adds to what only an administrator applies.
    assert len(allowed.in_plan(plan, extra=extra, bootstrap=True)) == 1
