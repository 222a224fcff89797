"""A finding is shown at the entry of the environment file that it comes from."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.settings.names import environment_of
from kinesis_efo_infra.gate.failures import Failure, Result
from kinesis_efo_infra.gate.report import report
from kinesis_efo_infra.gate.sarif import as_sarif
from tests.support.environments import DIRECTORY

FILE = """\
environment: dev
streams:
  orders: {}
  clicks:
    shards: 2
applications:
  lake:
    streams: [orders]
"""


def locations(tmp_path: Path, *failures: Failure) -> list[Any]:
    (tmp_path / "dev.yaml").write_text(FILE, encoding="utf-8")
    (run,) = json.loads(as_sarif(failures, tmp_path, environment_of))["runs"]
    return [result["locations"][0]["physicalLocation"] for result in run["results"]]


def test_findings_are_at_the_lines_of_their_entries(tmp_path: Path) -> None:
    lines = {
        "aws_kinesis_stream.orders": 3,
        "resource.clicks": 4,
        "aws_kinesis_stream_consumer.orders_lake": 3,
        "data.lake_reader": 7,
        "aws_kms_key.environment_key": 1,
    }
    found = locations(tmp_path, *(Failure("CKV_AWS_43", "Ensure", each, "kinesis-efo-dev") for each in lines))
    assert {each["artifactLocation"]["uri"] for each in found} == {str(tmp_path / "dev.yaml")}
    assert [each["region"]["startLine"] for each in found] == list(lines.values())


def test_paths_of_a_directory_begin_at_the_root() -> None:
    failure = Failure("CKV_AWS_43", "Ensure", "aws_kinesis_stream.flights", "kinesis-efo-dev", "https://docs/43")
    (below,) = json.loads(as_sarif([failure], DIRECTORY, environment_of, "apps/lake"))["runs"]
    rule = {"id": "CKV_AWS_43", "shortDescription": {"text": "Ensure"}, "helpUri": "https://docs/43"}
    assert below["tool"]["driver"]["rules"] == [rule]
    uri = below["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "apps/lake/tests/support/environments/dev.yaml"


def test_category_is_the_directory_within_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub takes one document of a tool, commit and category: the later one would take the earlier one's findings away."""
    (tmp_path / "apps" / ".lake").mkdir(parents=True)

    def category(at: Path) -> Any:
        monkeypatch.chdir(at)
        report(Result(failed=[], excused=[], passed={}), tmp_path, environment_of, sarif=at / "x.sarif")
        return json.loads((at / "x.sarif").read_text(encoding="utf-8"))["runs"][0].get("automationDetails")

    assert category(tmp_path / "apps" / ".lake") is None, "not on GitHub"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "apps"))
    assert category(tmp_path / "apps" / ".lake") == {"id": ".lake/"}
    assert category(tmp_path / "apps") is None
    assert category(tmp_path) is None, "outside of the repository"
