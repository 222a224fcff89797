"""The dashboard and the alerts ask for the metrics of the catalog, by the names and labels that Prometheus has."""

import json
import re
from typing import Any

import pytest
import yaml

from kinesis_efo.metrics import METRICS
from kinesis_efo.metrics.catalog import DIMENSIONS, Kind
from scripts.docs import ROOT
from scripts.prometheus import prometheus_name
from tests.unit.test_docs import anchors

NAMES = {prometheus_name(metric): metric for metric in METRICS}
DASHBOARD = json.loads((ROOT / "docs/dashboards/kinesis-efo.json").read_text(encoding="utf-8"))
GRAPHS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
(GROUP,) = yaml.safe_load((ROOT / "docs/dashboards/kinesis-efo.rules.yaml").read_text(encoding="utf-8"))["groups"]
RULES = GROUP["rules"]
TARGETS = [target["expr"] for panel in GRAPHS for target in panel["targets"]]
EXPRESSIONS = [*TARGETS, *(rule["expr"] for rule in RULES)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_use_metrics_and_their_labels(expression: str) -> None:
    named = set(re.findall(r"kinesis_efo_\w+", expression))
    assert named
    assert named <= NAMES.keys()
    possible = {"application", "environment", "fetcher"}.intersection(DIMENSIONS)
    possible |= {label for name in named for label in NAMES[name].attributes}
    grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
    assert grouped | set(re.findall(r'(\w+)=~?"', expression)) <= possible
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
        assert NAMES[name].kind is Kind.COUNTER, "only a counter has a rate"
    assert ") offset" not in expression, "`offset` belongs to series, before they are summed up"


def test_dashboard_shows_all_metrics_and_counters_as_rates() -> None:
    assert NAMES.keys() - set(re.findall(r"kinesis_efo_\w+", " ".join(TARGETS))) == set()
    for expression in TARGETS:
        for name in re.findall(r"kinesis_efo_\w+", expression):
            assert (f"rate({name}" in expression) == (NAMES[name].kind is Kind.COUNTER)
    for panel in GRAPHS:
        for key in ("refId", "legendFormat"):
            assert len({target[key] for target in panel["targets"]}) == len(panel["targets"]), panel["title"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_lead_to_a_section_of_a_page(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page.startswith("docs/")
    assert anchor in anchors(ROOT / page)
    grouped = [set(labels.split(", ")) for labels in re.findall(r"by \(([^)]*)\)", rule["expr"])]
    assert all(each == grouped[0] for each in grouped)
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) == grouped[0]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert re.fullmatch(r"\d+m", rule["for"])
    assert [each["alert"] for each in RULES].count(rule["alert"]) == 1
