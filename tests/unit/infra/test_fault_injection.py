"""The experiment of examples/fault_injection fits the API of FIS, AWS' list of actions, and what an environment declares."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from kinesis_efo.aws_errors import Cause, cause_of_code
from tests.support.iam import many
from tests.unit.infra.conftest import Synth

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT: dict[str, Any] = json.loads((ROOT / "examples" / "fault_injection" / "experiment.json").read_text())
ROLE: dict[str, Any] = json.loads((ROOT / "examples" / "fault_injection" / "role.json").read_text())
PAGE = (ROOT / "examples" / "fault_injection" / "README.md").read_text()

FIS_ACTIONS = {
    "aws:fis:inject-api-throttle-error": ("Roles", "aws:iam:role", "fis:InjectApiThrottleError", "ThrottlingException"),
    "aws:fis:inject-api-internal-error": ("Roles", "aws:iam:role", "fis:InjectApiInternalError", "InternalFailure"),
    "aws:fis:inject-api-unavailable-error": ("Roles", "aws:iam:role", "fis:InjectApiUnavailableError", "ServiceUnavailable"),
    "aws:kinesis:stream-expired-iterator-exception": (
        "KinesisStreams", "aws:kinesis:stream", "kinesis:InjectApiError", "ExpiredIteratorException",
    ),
}  # fmt: skip
"""By action, as the reference of FIS has them in 2026: the kind of target, its resource type, the permission, the error."""


def test_experiment_fits_the_api() -> None:
    service = botocore.session.get_session().get_service_model("fis")
    shape = service.operation_model("CreateExperimentTemplate").input_shape
    # AWS' command line makes the token.
    report = ParamValidator().validate({"clientToken": "a", **EXPERIMENT}, shape)
    assert not report.has_errors(), report.generate_report()
    unknown = EXPERIMENT.keys() - shape.members.keys()
    assert not unknown
    for kind in ("targets", "actions"):
        members = shape.members[kind].value.members
        for name, each in EXPERIMENT[kind].items():
            assert not each.keys() - members.keys(), name


def test_actions_are_those_of_fis() -> None:
    operations = set(botocore.session.get_session().get_service_model("kinesis").operation_names)
    allowed = {action for statement in ROLE["Statement"] for action in many(statement["Action"])}
    assert {action["actionId"] for action in EXPERIMENT["actions"].values()} == FIS_ACTIONS.keys()
    for action in EXPERIMENT["actions"].values():
        kind, resource_type, permission, error = FIS_ACTIONS[action["actionId"]]
        ((target_kind, target),) = action["targets"].items()
        assert (target_kind, EXPERIMENT["targets"][target]["resourceType"]) == (kind, resource_type)
        parameters = action["parameters"]
        assert 1 <= int(parameters["percentage"]) <= 100
        assert re.fullmatch(r"PT\d+M", parameters["duration"])
        named = set(parameters.get("operations", "GetRecords").split(","))
        assert named <= operations
        assert named & {"SubscribeToShard", "GetRecords"}
        assert permission in allowed
        assert f"`{action['actionId']}`" in PAGE
        # That of an iterator is mended by asking for another one: tests/unit/kinesis/test_polling.py.
        assert kind == "KinesisStreams" or cause_of_code(error) is Cause.PASSING
    # At a time there is one fault, so that what is seen can be told apart.
    before = [action.get("startAfter") for action in EXPERIMENT["actions"].values()]
    assert before == [None, *([name] for name in list(EXPERIMENT["actions"])[:-1])]


def test_experiment_names_what_an_environment_declares(synth: Synth) -> None:
    declared = synth("emr: {}, applications.lake.access: SERVERLESS")["resource"]
    # The environment of these tests is `test`.
    experiment = json.loads(json.dumps(EXPERIMENT).replace("dev", "test"))
    (role,) = experiment["targets"]["reader"]["resourceArns"]
    assert role.rpartition("/")[2] in {each["name"] for each in declared["aws_iam_role"].values()}
    (condition,) = experiment["stopConditions"]
    alarms = {each["alarm_name"] for each in declared["aws_cloudwatch_metric_alarm"].values()}
    assert condition["value"].rpartition(":alarm:")[2] in alarms
    (stream,) = experiment["targets"]["stream"]["resourceArns"]
    assert stream.rpartition("/")[2] in {each["name"] for each in declared["aws_kinesis_stream"].values()}
