"""Every alarm and every exception has its section on its page, and there are no other sections."""

import inspect
import re
from pathlib import Path

from infra.settings.load import load_environment
from kinesis_efo import errors
from kinesis_efo.metrics import METRICS
from kinesis_efo.options import SOURCE_OPTIONS
from kinesis_efo.spark.sink import SINK_OPTIONS
from tests.support.environments import EXAMPLE
from tests.unit.infra.conftest import Synth

DOCS = Path(__file__).resolve().parents[3] / "docs"
RUNBOOK, ALARMS, ERRORS = ((DOCS / f"{name}.md").read_text() for name in ("runbook", "alarms", "errors"))


def sections(page: str, prefix: str = "") -> set[str]:
    """Names in headings such as `## Alarm `lag``, of sections that say something."""
    found = re.findall(rf"^## {prefix}`([^`]+)`\n\n(?=[^#\n])", page, re.MULTILINE)
    assert len(found) == len(set(found))
    return set(found)


def test_every_alarm_has_its_section_and_points_to_it(synth: Synth) -> None:
    alarms = synth(load_environment(EXAMPLE))["resource"]["aws_cloudwatch_metric_alarm"].values()
    names = {alarm["alarm_name"].rpartition("/")[2]: alarm["alarm_description"] for alarm in alarms}
    assert names.keys() == sections(ALARMS, "Alarm "), "docs/alarms.md needs a section for each alarm, and no other"
    for what, description in names.items():
        assert description.endswith(f" Runbook: docs/runbook.md, alarm {what}.")
        assert f'<a id="alarm-{what}"></a>[{what}](alarms.md#alarm-{what})' in RUNBOOK


def test_every_exception_has_a_section() -> None:
    ours = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert ours == sections(ERRORS), "docs/errors.md needs a section for each exception, and no other"


def test_metrics_and_options_that_they_name_exist() -> None:
    text = RUNBOOK + ALARMS + ERRORS
    names = {metric.name for metric in METRICS} | {metric.cloudwatch for metric in METRICS}
    assert set(re.findall(r"`(kinesis_efo\.[a-z0-9_.]+)`", text)) <= names
    options = {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
    assert set(re.findall(r"`([a-z][A-Za-z.]+)=[^`]*`", text)) <= options
