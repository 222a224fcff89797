"""The gate refuses a scan that did not really take place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.errors import GateError
from infra.gate import __main__ as command
from infra.gate.scan import ACCEPTED, EXCUSED, FLOOR, named
from kinesis_efo_infra.gate.failures import Failure, Result
from kinesis_efo_infra.gate.planted import CANARY, PLANTED
from kinesis_efo_infra.gate.scan import BOOTSTRAP, ENVIRONMENTS, judge, refused, scan_plans, scan_stacks
from tests.unit.infra.conftest import Load


def check(identifier: str, resource: str, origin: str) -> dict[str, str]:
    return {
        "check_id": identifier,
        "check_name": "Ensure something",
        "resource": resource,
        "file_abs_path": f"/scratch/{origin}/cdk.tf.json",
    }


def report(**changes: Any) -> dict[str, Any]:
    """checkov's report if it finds the planted faults and no others."""
    planted = [check(*each.split(" "), CANARY) for each in PLANTED]
    passed = [check("CKV_AWS_1", f"resource.{n}", "dev") for n in range(FLOOR)]
    parts = {"failed": planted, "passed": passed, "errors": 0, **changes}
    results = {"failed_checks": parts["failed"], "passed_checks": parts["passed"]}
    return {"summary": {"parsing_errors": parts["errors"]}, "results": results}


def judged(*found: dict[str, str], kinds: dict[str, str] | None = None, **changes: Any) -> Result:
    """The verdict on a report with more that was found."""
    given = report(**changes)
    given["results"]["failed_checks"] = [*given["results"]["failed_checks"], *found]
    return judge([given], ["dev"], PLANTED, kinds or {}, ACCEPTED)


BLIND = "the gate is blind: planted faults were not found: CKV2_AWS_6 aws_s3_bucket.open, CKV_AWS_43 aws_kinesis_stream"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": 1}, "could not parse 1 of the files"),
        ({"failed": []}, BLIND),
        ({"passed": []}, "so that something was not scanned: {'dev': 0}"),
        ({"passed": [check("CKV_AWS_1", f"r{n}", "other") for n in range(FLOOR)]}, "{'dev': 0}"),
    ],
)
def test_untrustworthy_scan_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GateError, match=re.escape(message)):
        judged(**changes)


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (None, "holds no synthesized stacks"),
        ({"terraform": {}}, "declares nothing"),
        ({"terraform": {}, "resource": {"a": {}}}, "has a second stack dev: synthesize each environment once"),
    ],
)
def test_unusable_stacks_are_not_scanned(stack: Any, message: str, tmp_path: Path) -> None:
    if stack is not None:
        manifest = {"stacks": {"dev": {"synthesizedStackPath": "dev.json"}}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        (tmp_path / "dev.json").write_text(json.dumps(stack), encoding="utf-8")
    with pytest.raises(GateError, match=message):
        scan_stacks(tmp_path, tmp_path)


def test_plan_without_resources_is_not_scanned(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"planned_values": {"root_module": {"resources": []}}}', encoding="utf-8")
    with pytest.raises(GateError, match="is not the JSON of a plan: ValueError: it has no resources"):
        scan_plans([tmp_path / "plan.json"])


def test_failure_is_excused_on_one_resource_only() -> None:
    meant = [check("CKV_AWS_144", f"aws_s3_bucket.{name}", "dev") for name in ("state", "other")]
    result = judged(*meant, kinds={"dev": BOOTSTRAP})
    assert [each.resource for each in result.excused] == ["aws_s3_bucket.state"]
    assert [each.resource for each in result.failed] == ["aws_s3_bucket.other"]


def test_excused_failures_are_counted_and_listed_on_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert command.main([str(tmp_path)]) == 1, "nothing was scanned"
    caplog.clear()
    excused = Failure("CKV_AWS_18", "name", "aws_s3_bucket.artifacts", "stack")
    reasons = {excused: EXCUSED[ENVIRONMENTS, "CKV_AWS_18", "artifacts"]}
    monkeypatch.setattr(command, "scan_stacks", lambda *_, **__: Result([], {"a": 30, "b": 12}, [excused], reasons))
    caplog.set_level("INFO")
    assert (command.main([]), command.main(["--excused"])) == (0, 0)
    assert caplog.messages[0] == "checkov: 0 failed, 1 excused (--excused lists them), 42 passed"
    assert "access logs need a bucket of the account's own" in caplog.messages[1]
    monkeypatch.setattr(command, "scan_stacks", lambda *_, **__: Result([excused], {"a": FLOOR}))
    assert command.main([]) == 1


def test_stack_of_no_environment_file_is_a_failure(load: Load) -> None:
    found = refused({"kinesis-efo-other": {}}, {"kinesis-efo-other": ENVIRONMENTS}, named([load()]))
    assert [str(each) for each in found] == [
        "EFO_ALLOWED Ensure that a stack is one of an environment file: kinesis-efo-other in kinesis-efo-other"
    ]
    # A bootstrap stack is none of an environment, whatever it is called.
    assert list(refused({"kinesis-efo-test": {}}, {"kinesis-efo-test": BOOTSTRAP}, named([load()])))
