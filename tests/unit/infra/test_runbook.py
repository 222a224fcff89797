"""Every alarm and every exception has its section in the runbook, and there are no other sections."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kinesis_efo import errors
from kinesis_efo.metrics import METRICS
from kinesis_efo.options import SOURCE_OPTIONS
from kinesis_efo.spark.sink import SINK_OPTIONS
from tests.unit.infra.conftest import Synth

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "runbook.md").read_text()

EVERYTHING = {
    "applications": {
        "lake": {"streams": ["orders"], "polling": True},
        "digest": {"streams": ["orders"], "continuous": False, "access": {"kind": "emr-serverless"}},
    },
    "emr": {},
    "jobs": [{"application": "digest", "program": "jobs/digest.py", "schedule": "rate(1 hour)"}],
}


def sections(prefix: str) -> set[str]:
    """Names in headings such as `### Alarm `lag``, of sections that say something."""
    found = re.findall(rf"^### {prefix}`([^`]+)`\n\n(?=[^#\n])", TEXT, re.MULTILINE)
    assert len(found) == len(set(found))
    return set(found)


def test_every_alarm_has_a_section(synth: Synth) -> None:
    stack = synth(streams={"orders": {}}, **EVERYTHING)
    alarms = stack["resource"]["aws_cloudwatch_metric_alarm"].values()
    assert {alarm["alarm_name"].rpartition("/")[2] for alarm in alarms} == sections("Alarm "), (
        "docs/runbook.md needs a section for each alarm, and no other"
    )


def test_every_alarm_points_to_its_section(synth: Synth) -> None:
    everything = synth(**EVERYTHING)
    for alarm in everything["resource"]["aws_cloudwatch_metric_alarm"].values():
        what = alarm["alarm_name"].rpartition("/")[2]
        assert alarm["alarm_description"].endswith(f" Runbook: docs/runbook.md, alarm {what}.")


def test_every_exception_has_a_section() -> None:
    ours = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert ours == sections(""), "docs/runbook.md needs a section for each exception, and no other"


def test_metrics_and_options_that_it_names_exist() -> None:
    names = {metric.name for metric in METRICS} | {metric.cloudwatch for metric in METRICS}
    assert set(re.findall(r"`(kinesis_efo\.[a-z0-9_.]+)`", TEXT)) <= names
    options = {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
    assert set(re.findall(r"`([a-z][A-Za-z.]+)=[^`]*`", TEXT)) <= options
