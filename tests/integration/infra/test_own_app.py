"""A CDKTF app of somebody's own, which has the constructs and nothing else of this repository."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kinesis_efo.manifest import parse_manifest
from tests.support.commands import outcome
from tests.support.isolated import CONSTRUCTS, ROOT
from tests.support.terraform.harness import Terraform

PAGE = ROOT / "docs" / "how-to" / "own-cdktf-app.md"
AS_A_USER = """
import runpy, sys
runpy.run_path("main.py", run_name="__main__")
print(sorted({"infra", "kinesis_efo", "boto3", "pydantic", "yaml"} & set(sys.modules)))
"""


@pytest.mark.long
def test_library_reads_the_manifest_that_terraform_applied(tmp_path: Path, provider: Mapping[str, str]) -> None:
    (app,) = re.findall(r"```python\n(.*?app\.synth\(\)\n)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "main.py").write_text(app, encoding="utf-8")
    kept = ("HOME", "JSII_NODE", "PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": str(CONSTRUCTS)}
    ran = outcome([sys.executable, "-c", AS_A_USER], cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]", "it uses nothing else of this repository, and nothing that is not asked for"
    terraform = Terraform(tmp_path / "cdktf.out" / "stacks" / "streaming-dev", provider)
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
    assert json.loads(terraform.run("output", "-json"))["manifest"]["value"] == f"ssm://{parameter['name']}"
