"""The steps as a CI system calls them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.pipeline.__main__ import main
from kinesis_efo_infra.pipeline import comparison
from kinesis_efo_infra.pipeline.bundle import Changes, Meta, write_meta

Write = Callable[..., Path]
PIPELINE = {"repository": "acme/lake"}

GH = """\
#!{python}
import json, sys
arguments = sys.argv[1:]
sent = json.load(sys.stdin) if "--input" in arguments else None
with open({log!r}, "a") as log:
    print(json.dumps([arguments, sent]), file=log)
if "--slurp" in arguments:
    print("[[]]")
elif any("artifacts" in each for each in arguments):
    print(json.dumps({{"artifacts": []}}))
else:
    print("{{}}")
"""


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Puts a fake `gh` with empty answers on the PATH; returns its calls."""
    log, binary = tmp_path / "gh.log", tmp_path / "bin" / "gh"
    binary.parent.mkdir()
    binary.write_text(GH.format(python=sys.executable, log=str(log)), encoding="utf-8")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/lake")
    return lambda: [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_environments_are_one_line_for_a_matrix(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(pipeline=PIPELINE)
    assert main(["--directory", str(tmp_path), "environments"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert [each["environment"] for each in json.loads(line)] == ["test"]
    assert main(["--directory", str(tmp_path), "environments", "--branch", "feature"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_pull_request_without_plans_gets_a_comment_that_says_so(
    write: Write, tmp_path: Path, gh: Callable[[], list[Any]]
) -> None:
    write(pipeline=PIPELINE)
    directory = ["--directory", str(tmp_path)]
    assert main([*directory, "github-comment", "7", "--run-id", "5", "--plans", str(tmp_path / "plans")]) == 0
    asked, *_, (posted, sent) = gh()
    assert asked[0][-1] == "repos/acme/lake/actions/runs/5/artifacts?per_page=100"
    assert posted[:4] == ["api", "--method", "POST", "repos/acme/lake/issues/7/comments"]
    assert "Deployed as it is here: `kinesis-efo-test`." in sent["body"]
    assert "repos/acme/lake/pulls/7/files?per_page=100" in [each[0][-1] for each in gh()], "for environment files"


def test_a_directory_of_the_repository_gets_a_comment_that_names_it(
    write: Write, tmp_path: Path, gh: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(pipeline=PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path.parent))
    assert main(["--directory", ".", "github-comment", "7", "--run-id", "5"]) == 0
    body = gh()[-1][1]["body"]
    assert body.startswith(
        f"<!-- kinesis-efo: plans of {tmp_path.name} -->\n## What this does to AWS in `{tmp_path.name}`\n"
    )


def test_a_pull_request_tells_nothing_of_environments_of_other_branches(
    write: Write, tmp_path: Path, gh: Callable[[], list[Any]]
) -> None:
    write(pipeline={**PIPELINE, "branch": "release"})
    where = ["--directory", str(tmp_path)]
    comment = [*where, "github-comment", "7", "--run-id", "5", "--plans", str(tmp_path / "plans"), "--branch", "main"]
    assert main(comment) == 0
    assert "kinesis-efo-test" not in gh()[-1][1]["body"]


def test_the_commit_that_was_reviewed_is_a_step_s_output(
    write: Write, tmp_path: Path, gh: Callable[[], list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    write(pipeline=PIPELINE)
    assert main(["--directory", str(tmp_path), "github-fetch", "test", "--commit", "c0ffee"]) == 0
    assert capsys.readouterr().out == "reviewed=c0ffee\n"


def test_an_issue_says_what_the_report_says_and_none_is_opened_without_one(
    write: Write, tmp_path: Path, gh: Callable[[], list[Any]]
) -> None:
    write(pipeline=PIPELINE)
    report = tmp_path / "drift.md"
    issue = ["--directory", str(tmp_path), "github-issue", "test", str(report)]
    assert main(issue) == 0
    assert len(gh()) == 1, "only a look at what is open"
    report.write_text("a stream", encoding="utf-8")
    assert main(issue) == 0
    assert gh()[-1][1]["title"] == "Drift of kinesis-efo-test"
    assert gh()[-1][1]["body"].endswith("a stream")


def test_findings_go_where_code_scanning_takes_them(tmp_path: Path, gh: Callable[[], list[Any]]) -> None:
    sarif = tmp_path / "checkov.sarif"
    sarif.write_text("{}", encoding="utf-8")
    assert main(["github-findings", str(sarif), "--commit", "c0ffee", "--ref", "refs/heads/main"]) == 0
    ((asked, sent),) = gh()
    assert asked[3] == "repos/acme/lake/code-scanning/sarifs"
    assert sent["commit_sha"] == "c0ffee"


def test_an_error_is_one_message_and_exit_code_1(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    write(pipeline=PIPELINE)
    assert main(["--directory", str(tmp_path), "github-issue", "test", "drift.md"]) == 1
    assert "GITHUB_REPOSITORY is not set" in caplog.text
    assert main(["--directory", str(tmp_path), "jobs", "nowhere"]) == 1
    assert "there is no such environment" in caplog.text
    monkeypatch.chdir(tmp_path)
    assert main(["--directory", str(tmp_path), "github-fetch", "test"]) == 1
    assert "GITHUB_REPOSITORY is not set" in caplog.text


def test_without_git_the_commit_must_be_said(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/lake")
    monkeypatch.setenv("PATH", str(tmp_path))
    write(pipeline=PIPELINE)
    assert main(["--directory", str(tmp_path), "github-fetch", "test"]) == 1
    assert "git cannot be asked" in caplog.text
    assert "say --commit" in caplog.text


def handed_over(directory: Path) -> Path:
    stack = directory / "cdktf.out" / "stacks" / "kinesis-efo-test" / "cdk.tf.json"
    stack.parent.mkdir(parents=True)
    stack.write_text("{}", encoding="utf-8")
    return stack


def test_stacks_are_used_if_they_are_what_was_handed_over(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the account is the template's
    write(pipeline=PIPELINE)
    stack = handed_over(tmp_path)
    out = ["--synthesized", str(tmp_path / "cdktf.out")]
    assert main(["digest", *out]) == 0
    digest = capsys.readouterr().out.strip()
    stack.write_text('{"resource": {}}', encoding="utf-8")
    for step in ("plan", "apply", "drift"):
        caplog.clear()
        assert main(["--directory", str(tmp_path), step, "test", "--commit", "one", *out, "--handed", digest]) == 1
        assert "cdktf.out is not what was handed over: its digest is " in caplog.text
    stack.write_text("{}", encoding="utf-8")
    (stack.parent / "more.tf.json").write_text("{}", encoding="utf-8")
    assert main(["digest", *out]) == 0
    assert capsys.readouterr().out.strip() != digest, "a file more"
    assert main(["digest", "--synthesized", str(tmp_path / "none")]) == 1


def test_a_plan_that_nobody_reviewed_is_told_and_ends_the_job(
    write: Write,
    tmp_path: Path,
    gh: Callable[[], list[Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "acme/lake/.github/workflows/deploy-lake.yml@refs/heads/main")
    write(pipeline=PIPELINE)
    plans, summary = tmp_path / "plans", tmp_path / "summary.md"
    asked = ["--directory", str(tmp_path), "github-approval", "test", "--commit", "c0ffee", "--plans", str(plans)]
    asked += ["--summary", str(summary)]
    assert main(asked) == 0
    assert capsys.readouterr().out == "digest=\n", "nothing is planned"
    bundle = plans / "kinesis-efo-test"
    bundle.mkdir(parents=True)
    plan = {"resource_changes": []}
    (bundle / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    write_meta(bundle, Meta("test", "c0ffee", "", "", "", 0, "", True, Changes()))
    assert main(asked) == 1
    assert capsys.readouterr().out == f"digest={comparison.digest(plan)}\n"
    assert "was not reviewed before, and nothing was applied" in summary.read_text(encoding="utf-8")
    assert "`gh workflow run deploy-lake.yml --ref main" in summary.read_text(encoding="utf-8")
    assert main([*asked, "--approved", f"0000 {comparison.digest(plan)}"]) == 0


def test_a_summary_counts_from_the_plan_and_not_from_what_is_said_of_it(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(pipeline=PIPELINE)
    bundle = tmp_path / "plans" / "kinesis-efo-test"
    bundle.mkdir(parents=True)
    gone = {"actions": ["delete"], "before": {"name": "orders"}, "after": None}
    address = {"address": "aws_kinesis_stream.orders", "type": "aws_kinesis_stream", "mode": "managed"}
    plan = {"resource_changes": [{**address, "change": gone}]}
    (bundle / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (bundle / "plan.txt").write_text("No changes.", encoding="utf-8")
    write_meta(bundle, Meta("test", "c0ffee", "", "0" * 64, "", 0, "", False, Changes()))
    # A plan of an environment whose name begins alike.
    shutil.copytree(bundle, tmp_path / "plans" / "plan-kinesis-efo-test-2-c0ffee")
    row = f"| `kinesis-efo-test` | 0 | 0 | 0 | 1 | `sha256:{comparison.digest(plan)[:12]}` |"
    for only in ([], ["--only", "test"]):
        assert main(["--directory", str(tmp_path), "comment", "--plans", str(tmp_path / "plans"), *only]) == 0
        assert capsys.readouterr().out.count(row) == 1
