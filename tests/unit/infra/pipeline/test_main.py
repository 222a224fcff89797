"""The steps as a CI system calls them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.pipeline.__main__ import main
from kinesis_efo_infra.pipeline import comparison
from kinesis_efo_infra.pipeline.bundle import Changes, Meta, write_meta
from tests.unit.infra.conftest import Write
from tests.unit.infra.pipeline.conftest import Calls

Run = Callable[..., int]


@pytest.fixture
def run(write: Write, tmp_path: Path) -> Run:
    """Writes an environment file, and runs a step with words in which `$tmp` is the directory."""

    def runner(step: str, *more: str, settings: str = "PIPELINE") -> int:
        write(settings)
        return main(["--directory", str(tmp_path), *step.replace("$tmp", str(tmp_path)).split(), *more])

    return runner


def bundle(directory: Path, plan: dict[str, Any], *, any_changes: bool) -> None:
    """The plan of an environment, as the step before hands it on."""
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (directory / "plan.txt").write_text("No changes.", encoding="utf-8")
    write_meta(directory, Meta("test", "c0ffee", "", "0" * 64, "", 0, "", any_changes, Changes()))


def test_pull_request_without_plans_gets_a_comment(run: Run, gh: Calls) -> None:
    assert run("github-comment 7 --run-id 5 --plans $tmp/plans") == 0
    (_, asked, _), *_, (host, posted, sent) = gh()
    assert host == "acme.ghe.com"
    assert asked[-1] == "repos/acme/lake/actions/runs/5/artifacts?per_page=100"
    assert posted[:4] == ["api", "--method", "POST", "repos/acme/lake/issues/7/comments"]
    assert "Deployed as it is here: `kinesis-efo-test`." in sent["body"]
    assert "repos/acme/lake/pulls/7/files?per_page=100" in [each[1][-1] for each in gh()], "for environment files"
    # Nothing is told of environments of other branches.
    settings = "PIPELINE, pipeline.branch: release"
    assert run("github-comment 7 --run-id 5 --plans $tmp/plans --branch main", settings=settings) == 0
    assert "kinesis-efo-test" not in gh()[-1][2]["body"]


def test_error_is_one_message_with_exit_code_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.chdir(tmp_path)
    assert (run("github-issue test drift.md"), run("jobs nowhere")) == (1, 1)
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/lake")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("github-fetch test") == 1
    said = ("GITHUB_REPOSITORY is not set", "there is no such environment", "git cannot be asked")
    assert all(each in message for each, message in zip(said, caplog.messages, strict=True))
    assert "say --commit" in caplog.messages[-1]


def test_stacks_must_be_what_was_handed_over(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    stack = tmp_path / "cdktf.out" / "stacks" / "kinesis-efo-test" / "cdk.tf.json"
    stack.parent.mkdir(parents=True)
    stack.write_text("{}", encoding="utf-8")
    assert run("digest --synthesized $tmp/cdktf.out") == 0
    digest = capsys.readouterr().out.strip()
    stack.write_text('{"resource": {}}', encoding="utf-8")
    for step in ("plan test --commit one", "apply test --commit one", "drift test --commit one", "jobs test"):
        caplog.clear()
        given = f"{step} --synthesized $tmp/cdktf.out --handed {digest}"
        assert run(given, settings="PIPELINE, account_id: '222233334444'") == 1
        assert "cdktf.out is not what was handed over: its digest is " in caplog.text
    stack.write_text("{}", encoding="utf-8")
    (stack.parent / "more.tf.json").write_text("{}", encoding="utf-8")
    assert run("digest --synthesized $tmp/cdktf.out") == 0
    assert capsys.readouterr().out.strip() != digest, "a file more"
    assert run("digest --synthesized $tmp/none") == 1


def test_unreviewed_plan_ends_the_job(
    run: Run,
    tmp_path: Path,
    gh: Calls,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "acme/lake/.github/workflows/deploy-lake.yml@refs/heads/main")
    asked = "github-approval test --commit c0ffee --plans $tmp/plans --summary $tmp/summary.md"
    assert run(asked) == 0
    assert capsys.readouterr().out == "digest=\n", "nothing is planned"
    plan: dict[str, Any] = {"resource_changes": []}
    bundle(tmp_path / "plans" / "kinesis-efo-test", plan, any_changes=True)
    assert run(asked) == 1
    assert capsys.readouterr().out == f"digest={comparison.digest(plan)}\n"
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "was not reviewed before, and nothing was applied" in summary
    assert "`gh workflow run deploy-lake.yml --ref main" in summary
    assert run(asked, "--approved", f"0000 {comparison.digest(plan)}") == 0


def test_summary_counts_changes_of_the_plan_itself(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {"actions": ["delete"], "before": {"name": "orders"}, "after": None}
    address = {"address": "aws_kinesis_stream.orders", "type": "aws_kinesis_stream", "mode": "managed"}
    plan = {"resource_changes": [{**address, "change": gone}]}
    bundle(tmp_path / "plans" / "kinesis-efo-test", plan, any_changes=False)
    # A plan of an environment whose name begins alike.
    bundle(tmp_path / "plans" / "plan-kinesis-efo-test-2-c0ffee", plan, any_changes=False)
    row = f"| `kinesis-efo-test` | 0 | 0 | 0 | 1 | `sha256:{comparison.digest(plan)[:12]}` |"
    for only, planning in (("", "Merging plans"), (" --only test", "The deployment plans")):
        assert run(f"comment --plans $tmp/plans{only}") == 0
        told = capsys.readouterr().out
        assert told.count(row) == 1
        assert f"{planning} `c0ffee` again, and applies that if it does exactly this" in told


def test_reviewed_commit_is_an_output(run: Run, gh: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("github-fetch test --commit c0ffee") == 0
    assert capsys.readouterr().out == "reviewed=c0ffee\n"
