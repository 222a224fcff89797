"""What the pipeline writes to GitHub, and which plans it fetches."""

import base64
import gzip
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from kinesis_efo_infra.pipeline.bundle import Changes, Meta, write_meta
from kinesis_efo_infra.pipeline.github import (
    Gh,
    fetch_plan,
    put_comment,
    put_findings,
    put_issue,
    removed_environments,
    reviewers_of,
)
from tests.unit.infra.conftest import Load, rows
from tests.unit.infra.pipeline.conftest import ENTRY, Calls

Json = dict[str, Any]
BOT, PERSON = {"type": "Bot"}, {"type": "User"}


class FakeGitHub:
    """The part of GitHub's API that the pipeline uses, in memory."""

    def __init__(self) -> None:
        self.comments: list[Json] = []
        self.issues: list[Json] = []
        self.pulls: list[Json] = []
        self.artifacts: list[Json] = []
        self.runs: dict[int, Json] = {}
        self.findings: list[Json] = []
        self.downloaded: list[tuple[int, str]] = []
        self.files: list[Json] = []
        # Of the pull request.
        self.events: list[Json] = []

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        new = {"user": BOT, **(body or {})}
        match method, path.partition("?")[0].split("/"):
            case "POST", ["issues"]:
                self.issues.append({"number": len(self.issues) + 1, "state": "open", **new})
            case "PATCH", ["issues", "comments", number]:
                self.comments[int(number)].update(body or {})
            case "PATCH", ["issues", number]:
                self.issues[int(number) - 1].update(body or {})
            case "POST", ["issues", _, "comments"]:
                self.comments.append({"id": len(self.comments), **new})
            case "POST", ["code-scanning", "sarifs"]:
                self.findings.append(dict(body or {}))
            case "GET", ["actions", "artifacts"]:
                return {"artifacts": [each for each in self.artifacts if f"name={each['name']}&" in f"{path}&"]}
            case "GET", ["actions", "runs", number]:
                return self.runs[int(number)]
            case unknown:
                raise AssertionError(unknown)
        return None

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        place = path.partition("?")[0]
        if place == "issues":
            return (each for each in self.issues if each["state"] == "open")
        if place == "pulls":
            branch = unquote(path.partition("head=acme:")[2].partition("&")[0])
            return (each for each in self.pulls if each["head"]["ref"] == branch)
        kinds = {"comments": self.comments, "events": self.events, "pulls": self.pulls, "files": self.files}
        return iter(kinds[place.rpartition("/")[2]])

    def download(self, run: int, artifact: str, to: Path) -> None:
        self.downloaded.append((run, artifact))
        to.mkdir(parents=True)
        write_meta(to, Meta("test", "head", "", "", "", 0, "", True, Changes()))

    def merged(self, head: str, *, into: str = "trunk", **changes: Any) -> Json:
        """Add a pull request that was merged, from branch `feature`."""
        repository = {"full_name": "acme/lake", "owner": {"login": "acme"}}
        ends = {
            "head": {"sha": head, "ref": "feature", "repo": repository},
            "base": {"ref": into, "repo": repository},
        }
        merged = {"number": len(self.pulls) + 1, "merged_at": "2026-01-01", "merge_commit_sha": "merge"}
        self.pulls.append({**merged, **ends, **changes})
        return self.pulls[-1]

    def planned(self, commit: str, *, expired: bool = False, **changes: Any) -> None:
        """Add a run of the workflow that plans, with its artifact."""
        number, repository = len(self.runs) + 1, {"full_name": "acme/lake"}
        run = {"id": number, "head_sha": changes.pop("head_sha", commit)}
        self.runs[number] = {
            "id": number,
            "created_at": f"2026-01-01T00:00:0{number}Z",
            "path": ".github/workflows/pull-request.yml",
            "event": "pull_request",
            "conclusion": "success",
            "head_branch": "feature",
            "head_repository": repository,
            "repository": repository,
            **changes,
        }
        artifact = {"name": f"plan-kinesis-efo-test-{commit}", "expired": expired, "created_at": f"2026-01-{number:02}"}
        self.artifacts.append({**artifact, "workflow_run": run})


@pytest.fixture
def github() -> FakeGitHub:
    return FakeGitHub()


def test_pull_request_has_one_comment_for_each_directory(github: FakeGitHub) -> None:
    github.comments = [{"id": 0, "user": PERSON, "body": "<!-- kinesis-efo: plans -->\nnot ours"}]
    for place, text in (("", "first"), ("apps/lake", "a"), ("apps/lake-2", "b"), ("apps/lake", "c"), ("", "second")):
        put_comment(github, 7, text, place)
    assert [each["body"].splitlines()[1] for each in github.comments] == ["not ours", "second", "c", "b"]


def test_drifting_stack_has_one_issue(github: FakeGitHub) -> None:
    put_issue(github, "dev", None)
    assert github.issues == []
    put_issue(github, "dev", "a bucket")
    put_issue(github, "prod", "a stream")
    put_issue(github, "dev", "a bucket and a table")
    assert [each["title"] for each in github.issues] == ["Drift of dev", "Drift of prod"]
    assert github.issues[0]["body"].endswith("a bucket and a table")
    assert github.issues[0]["labels"] == ["drift"]
    put_issue(github, "dev", None)
    assert [each["state"] for each in github.issues] == ["closed", "open"]
    put_issue(github, "dev", "again")
    assert len(github.issues) == 3


# What was merged, planned or changed, in this order; then the run whose plan is fetched, or none, and a warning.
FETCHED = r"""
merged open {merged_at: null}; merged older {merge_commit_sha: another}; merged head; planned open; planned older; planned head => 3
# One that was made by hand for the commit itself was not reviewed.
planned merge {event: workflow_dispatch, head_branch: trunk} => none
planned merge {event: workflow_dispatch, head_branch: trunk}; merged head; planned head => 2
# An artifact of that name comes from elsewhere.
merged head; planned head {head_sha: another} => none
merged head; planned head {expired: true} => none
merged head; planned head {path: .github/workflows/mine.yml} => none
merged head; planned head {conclusion: failure} => none
merged head; planned head {event: workflow_dispatch} => none
merged head; planned head {head_repository: {full_name: somebody/lake}} => none
# A pull request from the branch that is deployed into somebody's own: its head is the commit itself, and the workflow that ran is that of the other branch.
merged head; planned head {event: pull_request, head_branch: trunk} => none
# From the same branch into one of somebody's own, whose workflow and code made the newest plan.
merged head; merged head {into: mine, merged_at: null, merge_commit_sha: null}; planned head; planned head => none: pull request 2 has the same head as 1, so that their plans cannot be told apart
# A plan of the same commit was made on another branch or in a fork.
merged head; planned head; planned head {head_branch: mine} => 1
merged head; planned head; planned head {head_repository: {full_name: somebody/lake}} => 1
# A pull request of a fork, of one that is gone, or into another branch brings no plan.
merged head {into: mine}; planned head => none
merged head {fork: {full_name: somebody/lake}}; planned head => none
merged head {fork: null}; planned head => none
# The run on another base ran the workflow and the code of that branch, which wrote the artifact. One that began in the same second may be of either base.
merged head; planned head; event labeled 9; event base_ref_changed 2 => none: run 1 planned before the pull request's base was changed
merged head; planned head; event automatic_base_change_succeeded 2; planned head => none: run 1 planned before
merged head; planned head; event base_ref_changed 2; planned head; planned head => 3
"""


@pytest.mark.parametrize(("history", "fetched"), rows(FETCHED))
def test_reviewed_plan_alone_is_fetched(
    history: str, fetched: str, github: FakeGitHub, load: Load, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in history.split("; "):
        what, name, *changes = step.split(maxsplit=2)
        given = yaml.safe_load(changes[0]) if changes else {}
        if what == "event":
            github.events.append({"event": name, "created_at": f"2026-01-01T00:00:0{given}Z"})
        elif what == "planned":
            github.planned(name, **given)
        else:
            fork = {"repo": given.pop("fork")} if "fork" in given else {}
            github.merged(name, **given)["head"].update(fork)
    run, _, warning = fetched.partition(": ")
    plans = tmp_path / "plans"
    deployment = deployment_of(load("pipeline: {repository: acme/lake, branch: trunk}"))
    assert fetch_plan(github, deployment, "merge", plans) == ("merge" if run == "none" else "head")
    assert github.downloaded == ([] if run == "none" else [(int(run), "plan-kinesis-efo-test-head")])
    assert plans.exists() == (run != "none")
    assert warning in caplog.text


def test_environment_with_reviewers_waits(github: FakeGitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"type": "required_reviewers", "reviewers": [{"type": "User"}]}
    for rules, waits in (
        ([{"type": "branch_policy"}, rule], True),
        ([{"type": "x"}, {**rule, "reviewers": []}], False),
    ):
        monkeypatch.setattr(github, "call", lambda *_, given=rules: {"protection_rules": given})
        assert reviewers_of(github, "prod") is waits


def test_removed_environment_file_destroys_nothing(github: FakeGitHub) -> None:
    github.files = [
        {"status": "removed", "filename": "infra/environments/prod.yaml"},
        {"status": "renamed", "previous_filename": "infra/environments/dev.yaml", "filename": "old/dev.yaml"},
        {"status": "removed", "filename": "infra/environments/excuses.yaml"},
        {"status": "removed", "filename": "infra/environments/prod.declared"},
        {"status": "removed", "filename": "infra/environments/checks/x.yaml"},
        {"status": "modified", "filename": "infra/environments/test.yaml"},
    ]
    told = removed_environments(github, 7, "infra/environments")
    assert re.findall(r"Removing `(\S+)` destroys nothing", told) == [
        f"infra/environments/{each}.yaml" for each in ("prod", "dev")
    ]
    github.files = []
    assert removed_environments(github, 7, "infra/environments") == ""


def test_findings_are_packed_for_code_scanning(github: FakeGitHub) -> None:
    put_findings(github, '{"runs": []}', "c0ffee", "refs/pull/7/merge")
    (sent,) = github.findings
    assert gzip.decompress(base64.b64decode(sent["sarif"])) == b'{"runs": []}'
    assert (sent["commit_sha"], sent["ref"]) == ("c0ffee", "refs/pull/7/merge")


def test_gh_gets_its_own_arguments(gh: Calls) -> None:
    body = {"title": "``` $(x) \u20ac\n" * 1000}
    Gh("acme/lake", "acme.ghe.com").call("POST", "issues", body)
    assert gh() == [["acme.ghe.com", ["api", "--method", "POST", "repos/acme/lake/issues", "--input", "-"], body]]
    assert list(Gh("acme/lake").pages("issues")) == [ENTRY, ENTRY]


@pytest.mark.usefixtures("gh")
def test_refusal_by_github_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"gh api --method GET repos/acme/refuses-404/issues failed: .*HTTP 404"):
        Gh("acme/refuses-404").call("GET", "issues")
    with pytest.raises(PipelineError, match="the GitHub command line cannot be run"):
        Gh("acme/lake", binary="no-gh").call("GET", "issues")


@pytest.mark.usefixtures("gh")
@pytest.mark.parametrize("status", [400, 403, 404, 422, 503])
def test_missing_code_scanning_alone_is_a_warning(status: int, caplog: pytest.LogCaptureFixture) -> None:
    if status not in (403, 404):
        with pytest.raises(PipelineError, match=f"HTTP {status}"):
            put_findings(Gh(f"acme/refuses-{status}"), "{}", "c0ffee", "refs/heads/main")
        return
    put_findings(Gh(f"acme/refuses-{status}"), "{}", "c0ffee", "refs/heads/main")
    assert "warning: findings are in this log only: code scanning is not enabled in this repository" in caplog.text
    assert f"Code Security must be enabled (HTTP {status})" in caplog.text
