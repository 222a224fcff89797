"""The Terraform JSON is what the typed bindings of the pinned provider describe, with no escape hatch that has no reason."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import infra
import kinesis_efo_infra
from infra.settings import ledger
from infra.settings.load import load_environment
from infra.stacks.app import synthesize, synthesize_bootstrap
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.missing import terraform
from tests.support.terraform.bindings import faults, versions

HATCHES = {
    "terraform.backend.s3.use_lockfile": "CDKTF 0.21 has no property for Terraform's own lock file in S3",
    "removed": "CDKTF has no class for what Terraform forgets without destroying it",
    "terraform.required_version": "CDKTF has no property for Terraform's version; that lock needs 1.10",
}
"""What is put into the JSON without a type, and why; `faults` cannot know these, and the tests with Terraform do."""


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every complete environment, and their bootstrap stacks."""
    terraform()
    directory = tmp_path_factory.mktemp("bindings")
    environments = [load_environment(path) for path in (*sorted(DIRECTORY.glob("*.yaml")), EXAMPLE)]
    for environment in environments:
        ledger.accept(directory, environment)
    written = [
        synthesize(environments, directory, outdir=directory / "aws"),
        synthesize_bootstrap(environments, directory / "bootstrap"),
    ]
    return {
        str(path.relative_to(directory)): json.loads(path.read_text(encoding="utf-8"))
        for out in written
        for path in out.glob("stacks/*/cdk.tf.json")
    }


@pytest.mark.slow
def test_every_attribute_fits_the_bindings(stacks: dict[str, Any]) -> None:
    assert len(stacks) == 6
    assert {name: found for name, stack in stacks.items() if (found := faults(stack))} == {}


def test_bindings_have_the_version_of_the_stacks(stacks: dict[str, Any]) -> None:
    for stack in stacks.values():
        assert versions(stack) == {stack["terraform"]["required_providers"]["aws"]["version"]}


def stream(stack: Any) -> Any:
    return stack["resource"]["aws_kinesis_stream"]["flights"]


PLANTED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda stack: stream(stack).update(shards=4), "shards: KinesisStreamConfig does not know it"),
    (lambda stack: stream(stack).update(shard_count="4"), "shard_count: '4' is no "),
    (lambda stack: stream(stack).update(retention_period=True), "retention_period: True is no "),
    (lambda stack: stream(stack).update(shard_level_metrics="ALL"), "shard_level_metrics: 'ALL' is no "),
    (lambda stack: stream(stack).update(tags={"owner": 1}), "tags.owner: 1 is no "),
    (lambda stack: stream(stack).pop("name"), "name: is missing"),
    (lambda stack: stream(stack)["stream_mode_details"].clear(), "stream_mode_details.stream_mode: is missing"),
    (lambda stack: stream(stack).update(stream_mode_details="ON_DEMAND"), "must be an object; got 'ON_DEMAND'"),
    (
        lambda stack: stack["data"]["aws_iam_policy_document"]["artifacts_bucket"]["statement"][0].update(action="*"),
        "artifacts_bucket.statement.0.action: DataAwsIamPolicyDocumentStatement does not know it",
    ),
    (lambda stack: stack["provider"]["aws"][0].update(regoin="eu-west-1"), "provider.aws.regoin: AwsProviderConfig"),
]


@pytest.mark.parametrize(("plant", "message"), PLANTED, ids=lambda value: value if isinstance(value, str) else "")
def test_planted_fault_is_found(plant: Callable[[Any], Any], message: str, stacks: dict[str, Any]) -> None:
    stack = copy.deepcopy(stacks["aws/stacks/kinesis-efo-dev/cdk.tf.json"])
    plant(stack)
    (found,) = faults(stack)
    assert message in found


def test_every_escape_hatch_has_a_reason(stacks: dict[str, Any]) -> None:
    paths = [
        node.args[0]
        for package in (infra, kinesis_efo_infra)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_override", "add_deletion_override")
    ]
    assert {path.value if isinstance(path, ast.Constant) else ast.unparse(path) for path in paths} == set(HATCHES)
    # CDKTF notes in each stack what was overridden: nothing but these, and nothing in a resource.
    overridden = [stack["//"]["metadata"].get("overrides", {}) for stack in stacks.values()]
    assert [
        each for each in overridden if each.keys() > {"stack"} or set(each.get("stack", ())) - {"terraform", "removed"}
    ] == []
