"""The steps for GitHub: comment on a pull request, fetch the reviewed plan, maintain an issue about drift, upload findings.

They need the `gh` command line with its credentials (`GH_TOKEN`), and `GITHUB_REPOSITORY`. They change only comments and issues that
a bot wrote and that begin with the marker of these steps.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import quote

from kinesis_efo_infra.errors import PipelineError
from kinesis_efo_infra.gate.excuses import FILE as EXCUSES
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment

logger = logging.getLogger(__name__)

_COMMENT = "<!-- kinesis-efo: plans{of} -->"
_DRIFT = "<!-- kinesis-efo: drift of {stack} -->"
_LABEL = "drift"
_PLANNED_BY = ".github/workflows/pull-request.yml"
_BASE_CHANGED = ("automatic_base_change_succeeded", "base_ref_changed")
"""GitHub's events for a pull request whose base branch was changed (docs.github.com, "Issue event types")."""
_NO_CODE_SCANNING = (403, 404)
"""GitHub's response statuses if a repository lacks code scanning, such as a private one without GitHub's paid Code Security."""


class RefusedError(PipelineError):
    """GitHub refused a call.

    Args:
        message: The call, and GitHub's response.
        status: HTTP status of the response; None if there is none.
    """

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class Api(Protocol):
    """Interface to GitHub's REST API and to the artifacts of workflow runs; `Gh` implements it."""

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make one call; `path` is relative to the repository."""

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        """Yield all entries of a paginated list."""

    def download(self, run: int, artifact: str, to: Path) -> None:
        """Download and unpack an artifact of a workflow run."""


class Gh:
    """GitHub's API through the `gh` command line.

    Args:
        repository: The repository, as `owner/name`.
        host: `github.com` or `<name>.ghe.com`. Passed to `gh` explicitly: in a workflow, `gh` calls github.com by default.
        binary: Name or path of the `gh` command.
    """

    def __init__(self, repository: str, host: str = "github.com", binary: str = "gh") -> None:
        self._repository, self._host, self._binary = repository, host, binary

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make one call of the REST API.

        Raises:
            PipelineError: The call fails or is refused.
        """
        where = f"repos/{self._repository}/{path}".rstrip("/")
        sent = [] if body is None else ["--input", "-"]
        answer = self._run("api", "--method", method, where, *sent, text=None if body is None else json.dumps(body))
        return json.loads(answer) if answer.strip() else None

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        """Yield all entries of a paginated list.

        Raises:
            PipelineError: The call fails or is refused.
        """
        for page in json.loads(self._run("api", "--paginate", "--slurp", f"repos/{self._repository}/{path}")):
            yield from page

    def download(self, run: int, artifact: str, to: Path) -> None:
        """Download and unpack an artifact of a workflow run.

        Raises:
            PipelineError: The artifact does not exist, or cannot be downloaded.
        """
        self._run("run", "download", str(run), "--repo", self._repository, "--name", artifact, "--dir", str(to))

    def _run(self, *arguments: str, text: str | None = None) -> str:
        try:
            ran = subprocess.run(
                [self._binary, *arguments],
                env={**os.environ, "GH_HOST": self._host},
                input=text or "",
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise PipelineError(f"the GitHub command line cannot be run: {error}; install gh") from None
        if ran.returncode:
            said = (ran.stderr or ran.stdout).strip()
            status = re.search(r"\(HTTP (\d{3})\)", said)
            raise RefusedError(f"gh {' '.join(arguments[:4])} failed: {said}", int(status[1]) if status else None)
        return ran.stdout


def running(workflow_ref: str) -> str:
    """Return the file name of the running workflow (not of a reusable workflow that it calls) from `GITHUB_WORKFLOW_REF`.

    >>> running("acme/lake/.github/workflows/deploy-lake.yml@refs/heads/main"), running("")
    ('deploy-lake.yml', 'deploy.yml')
    """
    return Path(workflow_ref.partition("@refs/")[0]).name or WORKFLOW


def put_comment(api: Api, pull_request: int, body: str, place: str = "") -> None:
    """Write a comment on a pull request, or replace the one written before.

    Args:
        api: GitHub's API.
        pull_request: Number of the pull request.
        body: The comment, as Markdown.
        place: Directory of the project in the repository; empty for the root. The pull request has one comment for each project.
    """
    marker = _COMMENT.format(of=f" of {place}" if place else "")
    text = f"{marker}\n{body}"
    for comment in api.pages(f"issues/{pull_request}/comments?per_page=100"):
        if comment["body"].startswith(marker) and _is_bot(comment):
            api.call("PATCH", f"issues/comments/{comment['id']}", {"body": text})
            return
    api.call("POST", f"issues/{pull_request}/comments", {"body": text})


def removed_environments(api: Api, pull_request: int, directory: str) -> str:
    """Return a warning about environment files that a pull request removes or renames, as Markdown; empty if there are none.

    Args:
        api: GitHub's API.
        pull_request: Number of the pull request.
        directory: Directory of the environment files, as a path in the repository.
    """
    removed = [
        before
        for each in api.pages(f"pulls/{pull_request}/files?per_page=100")
        if each["status"] in ("removed", "renamed")
        and PurePosixPath(before := each.get("previous_filename") or each["filename"]).parent
        == PurePosixPath(directory)
        and before.endswith(".yaml")
        and PurePosixPath(before).name != EXCUSES
    ]
    return "".join(
        f"**Removing `{each}` destroys nothing**: what it declares stays and is billed, and no deployment or nightly check looks at "
        "it any more. Destroy it first (docs/pipeline.md, *Remove an environment*).\n\n"
        for each in removed
    )


def fetch_plans(api: Api, run: int, plans: Path) -> None:
    """Download all plans that a workflow run made, each into a directory with the name of its artifact."""
    for artifact in api.call("GET", f"actions/runs/{run}/artifacts?per_page=100")["artifacts"]:
        if artifact["name"].startswith("plan-"):
            api.download(run, artifact["name"], plans / artifact["name"])


def fetch_plan(api: Api, deployment: Deployment, commit: str, plans: Path) -> str:
    """Download the plan that was reviewed with a pull request, given the commit that merged it.

    A plan that was made by hand for the merge commit itself does not count as reviewed.

    Args:
        api: GitHub's API.
        deployment: The deployment.
        commit: The merge commit to deploy.
        plans: Directory for bundles.

    Returns:
        The commit that the plan was made for; `commit` if there is no plan, such as when none is needed.
    """
    stack, branch = deployment.stack, deployment.branch
    candidates: list[_Planned] = []
    for each in api.pages(f"commits/{commit}/pulls?per_page=100"):
        if each.get("merged_at") and each.get("merge_commit_sha") == commit and each["base"]["ref"] == branch:
            candidates += _planned_for(api, each)
    for candidate in candidates:
        artifact = f"plan-{stack}-{candidate.commit}"
        if (run := _run_that_planned(api, artifact, candidate)) is None:
            continue
        api.download(run, artifact, plans / stack)
        logger.info("%s: the plan of %s, made by run %s", stack, candidate.commit, run)
        return candidate.commit
    wanted = " or ".join(each.commit for each in candidates) or f"a pull request that {commit} merged"
    logger.info("%s: no plan was made for %s", stack, wanted)
    return commit


@dataclass(frozen=True, slots=True)
class _Planned:
    """The properties that a workflow run must have for its plan to count as the reviewed one.

    Attributes:
        commit: Head commit of the pull request.
        branch: Head branch of the pull request.
        since: When the base of the pull request was last changed; empty if never. An earlier run executed the workflow and code
            of another base, so its plan cannot be trusted.
    """

    commit: str
    branch: str
    since: str


def _planned_for(api: Api, pull: Mapping[str, Any]) -> Iterator[_Planned]:
    """Yield the properties by which the workflow runs of a merged pull request are found.

    After the merge, GitHub's API returns a run's head commit, but no longer its pull request (github.com/con/tinuous/issues/28). Nothing
    is yielded for a pull request from a fork, or if another pull request has the same head commit.
    """
    head = pull["head"]
    # GitHub returns no head repository if it was deleted.
    if head.get("repo") is None or head["repo"]["full_name"] != pull["base"]["repo"]["full_name"]:
        logger.warning("warning: pull request %s is from a fork, whose plans are not taken", pull["number"])
        return
    owner = pull["base"]["repo"]["owner"]["login"]
    same = api.pages(f"pulls?head={owner}:{quote(head['ref'], safe='')}&state=all&per_page=100")
    others = [
        each["number"] for each in same if each["head"]["sha"] == head["sha"] and each["number"] != pull["number"]
    ]
    if others:
        logger.warning(
            "warning: pull request %s has the same head as %s, so that their plans cannot be told apart; none is taken",
            ", ".join(map(str, others)),
            pull["number"],
        )
        return
    events = api.pages(f"issues/{pull['number']}/events?per_page=100")
    since = max((str(each["created_at"]) for each in events if each["event"] in _BASE_CHANGED), default="")
    yield _Planned(str(head["sha"]), str(head["ref"]), since)


def _run_that_planned(api: Api, artifact: str, wanted: _Planned) -> int | None:
    """Return the id of the newest run of this repository's planning workflow with the wanted properties; None if there is none."""
    listed = api.call("GET", f"actions/artifacts?name={artifact}&per_page=100")["artifacts"]
    for each in sorted(listed, key=lambda each: str(each["created_at"]), reverse=True):
        if each["expired"] or each["workflow_run"]["head_sha"] != wanted.commit:
            continue
        run = api.call("GET", f"actions/runs/{each['workflow_run']['id']}")
        ours = run["head_repository"]["full_name"] == run["repository"]["full_name"]
        if (
            ours
            and run["path"].partition("@")[0] == _PLANNED_BY
            and run["conclusion"] == "success"
            and (run["event"], run["head_branch"]) == ("pull_request", wanted.branch)
        ):
            # A rerun keeps the creation time of the run's first attempt, and also uses the base that the pull request had then.
            if str(run["created_at"]) > wanted.since:
                return int(run["id"])
            logger.warning("warning: run %s planned before the pull request's base was changed", run["id"])
            continue
        logger.warning("warning: an artifact called %s of run %s is no plan of ours", artifact, run["id"])
    return None


def reviewers_of(api: Api, environment: str) -> bool:
    """Whether jobs in a GitHub environment wait for an approval.

    Source: docs.github.com, REST API, "Get an environment".

    Raises:
        PipelineError: There is no such environment, or GitHub rejects the call.
    """
    rules = api.call("GET", f"environments/{quote(environment, safe='')}").get("protection_rules") or []
    return any(each["type"] == "required_reviewers" and each.get("reviewers") for each in rules)


def put_issue(api: Api, stack: str, report: str | None) -> None:
    """Open or update the issue about the drift of a stack, or close it if the drift is gone.

    Args:
        api: GitHub's API.
        stack: Name of the stack.
        report: The report about drift; None if there is no drift.
    """
    marker = _DRIFT.format(stack=stack)
    known = [
        each
        for each in api.pages(f"issues?state=open&labels={_LABEL}&per_page=100")
        if (each.get("body") or "").startswith(marker) and _is_bot(each)
    ]
    if report is None:
        for issue in known:
            api.call("POST", f"issues/{issue['number']}/comments", {"body": "The drift is gone."})
            api.call("PATCH", f"issues/{issue['number']}", {"state": "closed", "state_reason": "completed"})
        return
    body = f"{marker}\n{report}"
    if known:
        api.call("PATCH", f"issues/{known[0]['number']}", {"body": body})
    else:
        api.call("POST", "issues", {"title": f"Drift of {stack}", "body": body, "labels": [_LABEL]})


def put_findings(api: Api, sarif: str, commit: str, ref: str) -> None:
    """Upload findings to GitHub code scanning, if the repository has it. They are only displayed there, and do not affect the gate.

    Args:
        api: GitHub's API.
        sarif: A SARIF document.
        commit: The commit that was scanned.
        ref: Branch or pull request of the commit, as `refs/...`.

    Raises:
        PipelineError: The upload failed, although the repository has code scanning.
    """
    packed = base64.b64encode(gzip.compress(sarif.encode())).decode()
    body = {"commit_sha": commit, "ref": ref, "sarif": packed, "tool_name": "checkov"}
    try:
        api.call("POST", "code-scanning/sarifs", body)
    except RefusedError as error:
        if error.status not in _NO_CODE_SCANNING:
            raise
        logger.warning(
            "warning: findings are in this log only: code scanning is not enabled in this repository, or the workflow "
            "lacks `security-events: write`: %s",
            error,
        )


def _is_bot(written: Mapping[str, Any]) -> bool:
    return bool(written["user"]["type"] == "Bot")
