"""What goes into the Terraform JSON without a type has a reason: the engine checks everything else against the provider's bindings."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import infra
import kinesis_efo_infra
from infra.settings import ledger
from infra.settings.load import load_environment
from infra.stacks.app import synthesize, synthesize_bootstrap
from tests.support.environments import EXAMPLE
from tests.support.missing import terraform

HATCHES = {
    "terraform.backend.s3.use_lockfile": "CDKTF 0.21 has no property for Terraform's own lock file in S3",
    "removed": "CDKTF has no class for what Terraform forgets without destroying it",
    "terraform.required_version": "CDKTF has no property for Terraform's version; that lock needs 1.10",
}
"""What is put into the JSON without a type, and why; the tests with Terraform check it."""


def test_every_escape_hatch_has_a_reason(tmp_path: Path) -> None:
    paths = [
        node.args[0]
        for package in (infra, kinesis_efo_infra)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_override", "add_deletion_override")
    ]
    assert {path.value if isinstance(path, ast.Constant) else ast.unparse(path) for path in paths} == set(HATCHES)
    # CDKTF notes in each stack what was overridden: nothing but these, and nothing in a resource.
    terraform()
    environment = load_environment(EXAMPLE)
    ledger.accept(tmp_path, environment)
    written = [
        synthesize([environment], tmp_path, outdir=tmp_path / "aws"),
        synthesize_bootstrap([environment], tmp_path / "bootstrap"),
    ]
    for path in (path for out in written for path in out.glob("stacks/*/cdk.tf.json")):
        overridden = json.loads(path.read_text(encoding="utf-8"))["//"]["metadata"].get("overrides", {})
        assert overridden.keys() <= {"stack"}
        assert set(overridden.get("stack", ())) <= {"terraform", "removed"}
