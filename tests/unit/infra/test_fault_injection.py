"""The experiment of examples/fault_injection fits the API of FIS, AWS' list of actions, and what an environment declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.infra.conftest import Synth

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT: dict[str, Any] = json.loads((ROOT / "examples" / "fault_injection" / "experiment.json").read_text())


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
