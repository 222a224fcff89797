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


@pytest.mark.parametrize(
    ("resource", "line"),
    [
        ("aws_kinesis_stream.orders", 3),
        ("resource.clicks", 4),
        ("aws_kinesis_stream_consumer.orders_lake", 3),
        ("data.lake_reader", 7),
        ("aws_kms_key.environment_key", 1),
    ],
)
def test_finding_is_at_the_line_of_its_entry(resource: str, line: int, tmp_path: Path) -> None:
    (where,) = locations(tmp_path, Failure("CKV_AWS_43", "Ensure", resource, "kinesis-efo-dev"))
    assert where["artifactLocation"]["uri"] == str(tmp_path / "dev.yaml")
    assert where["region"] == {"startLine": line}


def test_directories_have_categories_and_paths_from_the_root() -> None:
    """GitHub takes one document of a tool, commit and category: the later one would take the earlier one's findings away."""
    failure = Failure("CKV_AWS_43", "Ensure", "aws_kinesis_stream.flights", "kinesis-efo-dev", "https://docs/43")
    at_root, below = (
        json.loads(as_sarif([failure], DIRECTORY, environment_of, place))["runs"][0] for place in ("", "apps/lake")
    )
    assert "automationDetails" not in at_root
    rule = {"id": "CKV_AWS_43", "shortDescription": {"text": "Ensure"}, "helpUri": "https://docs/43"}
    assert at_root["tool"]["driver"]["rules"] == [rule]
    assert below["automationDetails"] == {"id": "apps/lake/"}
    uri = below["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "apps/lake/tests/support/environments/dev.yaml"


def test_category_is_the_directory_within_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
