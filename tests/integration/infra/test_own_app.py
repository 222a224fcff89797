"""A CDKTF app of somebody's own, which has the constructs and nothing else of this repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.manifest import parse_manifest
from tests.support.isolated import CONSTRUCTS, ROOT
from tests.support.terraform.bindings import faults
from tests.support.terraform.harness import Terraform

PAGE = ROOT / "docs" / "how-to" / "own-cdktf-app.md"
AS_A_USER = """
import runpy, sys
runpy.run_path("main.py", run_name="__main__")
print(sorted({"infra", "kinesis_efo", "boto3", "pydantic", "yaml"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the stack of the page's app, synthesized in a folder of its own."""
    folder = tmp_path_factory.mktemp("own")
    (app,) = re.findall(r"```python\n(.*?app\.synth\(\)\n)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "main.py").write_text(app, encoding="utf-8")
    kept = ("HOME", "JSII_NODE", "PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": str(CONSTRUCTS)}
    ran = subprocess.run(
        [sys.executable, "-c", AS_A_USER],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]", "it uses nothing else of this repository, and nothing that is not asked for"
    return folder / "cdktf.out" / "stacks" / "streaming-dev"


def test_every_attribute_is_one_of_the_bindings(stack: Path) -> None:
    declared: dict[str, Any] = json.loads((stack / "cdk.tf.json").read_text(encoding="utf-8"))
    assert faults(declared) == []
    assert len(declared["resource"]["aws_kinesis_stream_consumer"]) == 2


def test_terraform_names_stay(stack: Path) -> None:
    """A change here replaces what others have deployed: docs/versioning.md."""
    declared = json.loads((stack / "cdk.tf.json").read_text(encoding="utf-8"))["resource"]
    assert {f"{kind}.{name}" for kind, entries in declared.items() for name in entries} == {
        "aws_dynamodb_table.lake_leases_table_F829B784",
        "aws_iam_policy.lake_access_policy_A1193370",
        "aws_iam_role.lake_access_role_B62254CF",
        "aws_iam_role_policy_attachment.lake_access_attach-reader_46ADDFB2",
        "aws_kinesis_stream.orders_stream_E13CBF67",
        "aws_kinesis_stream_consumer.lake_consumer-orders_consumer_8063E663",
        "aws_kinesis_stream_consumer.lake_consumer-payments_consumer_A1F4372A",
        "aws_kms_alias.lake_key_alias_9B8D7843",
        "aws_kms_alias.orders_key_alias_886CB7E9",
        "aws_kms_key.lake_key_B69EF68D",
        "aws_kms_key.orders_key_DC974405",
        "aws_ssm_parameter.lake_manifest_parameter_C0C2AEF6",
    }


@pytest.mark.long
def test_library_reads_the_manifest_that_terraform_applied(stack: Path, provider: Mapping[str, str]) -> None:
    terraform = Terraform(stack, provider)
    terraform.run("validate")
    terraform.apply()
    assert terraform.changes() == {}, "a second plan changes nothing"
    state = terraform.state()
    (parameter,) = [each for address, each in state.items() if address.startswith("aws_ssm_parameter.")]
    manifest = parse_manifest(parameter["value"], parameter["name"])
    assert (manifest.application, manifest.environment, manifest.region) == ("lake", "streaming-dev", "us-east-1")
    assert manifest.lease_table == "kinesis-efo-streaming-dev-lake"
    consumers = {each["arn"] for address, each in state.items() if address.startswith("aws_kinesis_stream_consumer.")}
    assert {each.consumer_arn for each in manifest.streams.values()} == consumers
    assert set(manifest.streams) == {"orders", "payments"}
    (policy,) = [each for address, each in state.items() if address.startswith("aws_iam_policy.")]
    statements = {each["Sid"]: each for each in json.loads(policy["policy"])["Statement"]}
    assert statements["NeverRegisterConsumers"] == {
        "Sid": "NeverRegisterConsumers",
        "Effect": "Deny",
        "Action": ["kinesis:DeregisterStreamConsumer", "kinesis:RegisterStreamConsumer"],
        "Resource": "*",
    }
    # What only Terraform knows is in the literal ARN of the parameter, which does not make the policy wait for it.
    assert statements["LoadManifest"]["Resource"].endswith(":parameter/kinesis-efo/streaming-dev/lake")
    assert "${" not in policy["policy"]
    shown = json.loads(terraform.run("output", "-json"))
    assert shown["manifest"]["value"] == f"ssm://{parameter['name']}"


@pytest.mark.long
def test_consumer_on_another_accounts_stream_is_refused(
    stack: Path, provider: Mapping[str, str], tmp_path: Path
) -> None:
    text = (stack / "cdk.tf.json").read_text(encoding="utf-8")
    text = text.replace("123456789012:stream/payments", "999922223333:stream/payments")
    # Its condition has the account in it, as the construct writes it.
    declared = json.loads(text.replace('account_id == \\"123456789012\\"', 'account_id == \\"999922223333\\"'))
    (tmp_path / "cdk.tf.json").write_text(json.dumps(declared), encoding="utf-8")
    refused = Terraform(tmp_path, provider).run("plan", "-no-color", succeeds=False)
    told = " ".join(refused.replace("│", " ").split())
    assert "stream must be of the account that it is deployed to" in told
    assert "its owner registers the consumer there" in told
