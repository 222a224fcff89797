"""The steps of a pipeline, for any CI system and for any app whose stacks contain only what is on the allowlist.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 drift was found.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from urllib.parse import urlsplit

from kinesis_efo_infra.errors import InfraError, PipelineError, StalePlanError
from kinesis_efo_infra.gate import extra
from kinesis_efo_infra.gate.files import place
from kinesis_efo_infra.gate.scan import Accepted
from kinesis_efo_infra.pipeline import approval, comparison
from kinesis_efo_infra.pipeline.aws import client
from kinesis_efo_infra.pipeline.bundle import CONFIGURATION, Changes, read_meta, read_plan, read_text, tree_digest
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment, deployment_order, job_parameters
from kinesis_efo_infra.pipeline.drift import look_for_drift
from kinesis_efo_infra.pipeline.foreign import Foreign, as_planned, beyond_quota, foreign_consumers
from kinesis_efo_infra.pipeline.github import (
    Gh,
    fetch_plan,
    fetch_plans,
    put_comment,
    put_findings,
    put_issue,
    removed_environments,
    reviewers_of,
    running,
)
from kinesis_efo_infra.pipeline.limits import Plan, notes
from kinesis_efo_infra.pipeline.plans import PROVIDERS, Planner, checkov_beside, scan_shown
from kinesis_efo_infra.pipeline.record import Records
from kinesis_efo_infra.pipeline.report import Planned, comment

logger = logging.getLogger(__name__)
DRIFT = 3


class Project(Protocol):
    """A repository with environment files: the interface that the pipeline's steps use."""

    @property
    def directory(self) -> Path:
        """Directory of the environment files, which also has the team's own checks, excuses and resource types."""

    @property
    def accepted(self) -> Accepted:
        """Failures that the gate accepts in the repository's stacks."""

    def deployments(self) -> Sequence[Deployment]:
        """Return the deployments of all environments."""

    def deployment(self, environment: str) -> Deployment:
        """Return the deployment of one environment."""

    def refuse(self, environment: str) -> None:
        """Reject an environment file that still contains placeholder values of the template. Called before any call to AWS."""

    def prepare(self, environment: str) -> Callable[[Plan], None]:
        """Return a function that is called with each plan of an environment before it is applied."""


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, and return its exit code."""
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        return int(options.run(options))
    except InfraError as error:
        logger.error("error: %s", error)
        return 1


def _environments(options: argparse.Namespace) -> int:
    ordered = deployment_order(_project(options).deployments(), options.branch)
    say(json.dumps([job_parameters(each) for each in ordered]))
    return 0


def _plan(options: argparse.Namespace) -> int:
    deployment, planner = _one(options)
    if planner.is_deployed(deployment) and not options.repair:
        logger.info("%s: deployed as it is here; nothing to plan", deployment.stack)
        return 0
    if options.unscanned:
        planner = replace(planner, gate=lambda _: ())
    planner.plan(deployment, _commit(options), options.plans, repair=options.repair)
    return 0


def _scan(options: argparse.Namespace) -> int:
    project = _project(options)
    deployment = project.deployment(options.environment)
    check_handed(options)
    bundle = options.plans / deployment.stack
    if not bundle.exists():
        logger.info("%s: there is no plan to scan", deployment.stack)
        return 0
    gate = checkov_beside(project.directory, deployment.environment, project.accepted)
    scan_shown(bundle, options.synthesized / "stacks" / deployment.stack / CONFIGURATION, gate, options.approved)
    return 0


def _comment(options: argparse.Namespace) -> int:
    say(_markdown(options, all_planned=options.only is not None, only=options.only))
    return 0


def _markdown(options: argparse.Namespace, *, all_planned: bool, only: str | None = None) -> str:
    plans: Path = options.plans
    project = _project(options)
    deployments = [project.deployment(only)] if only else project.deployments()
    stacks = [each.stack for each in deployment_order(deployments, options.branch)]
    planned = []
    for stack in stacks:
        # The step `plan` creates the directory <stack>. On GitHub, it is inside plan-<stack>-<commit>; <commit> contains no hyphen.
        artifacts = [each for each in plans.glob(f"plan-{stack}-*") if f"plan-{stack}" == each.name.rpartition("-")[0]]
        planned += [_planned(stack, each) for each in sorted([*plans.glob(stack), *artifacts])]
    shown = {each.stack for each in planned}
    others = [stack for stack in stacks if stack not in shown]
    added = extra.types(options.directory)
    return comment(planned, others, all_planned=all_planned, extra=added, deploying=only is not None, place=place())


def _planned(stack: str, bundle: Path) -> Planned:
    """Read a stack's plan for a report. Recomputes the changes, digest and notes instead of trusting the bundle's metadata."""
    plan = read_plan(bundle)
    meta = replace(read_meta(bundle), changes=Changes.of(plan), plan=comparison.digest(plan), notes=tuple(notes(plan)))
    return Planned(stack, meta, read_text(bundle), plan)


def _digest(options: argparse.Namespace) -> int:
    say(tree_digest(options.synthesized))
    return 0


def _apply(options: argparse.Namespace) -> int:
    deployment, planner = _one(options)
    commits = [_commit(options), *options.reviewed]
    try:
        planner.apply(deployment, commits, options.plans, options.approved or None)
    except StalePlanError:
        if options.outputs:
            with options.outputs.open("a", encoding="utf-8") as outputs:
                outputs.write("stale=true\n")
        raise
    return 0


def _providers(options: argparse.Namespace) -> int:
    deployment, planner = _one(options)
    planner.lock(deployment)
    return 0


def _drift(options: argparse.Namespace) -> int:
    deployment, planner = _one(options)
    links = {"The run that found it": options.link} if options.link else {}
    kinesis = client("kinesis", deployment.region, deployment.account_id)

    def foreign(plan: Plan) -> Sequence[Foreign]:
        return foreign_consumers(kinesis, deployment if deployment.streams else as_planned(deployment, plan))

    body = look_for_drift(planner, deployment, _commit(options), options.plans, links, foreign, workflow=options.deploy)
    if options.report:
        _write(options.report, body)
        return 0
    say(body or "no drift")
    return DRIFT if body else 0


def _github_comment(options: argparse.Namespace) -> int:
    github = _github()
    fetch_plans(github, options.run_id, options.plans)
    text = _markdown(options, all_planned=True)
    directory = os.path.relpath(options.directory.resolve(), os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    put_comment(
        github, options.pull_request, removed_environments(github, options.pull_request, directory) + text, place()
    )
    return 0


def _github_fetch(options: argparse.Namespace) -> int:
    deployment = _project(options).deployment(options.environment)
    reviewed = fetch_plan(_github(), deployment, _commit(options), options.plans)
    # GitHub's format for the outputs of a step.
    say(f"reviewed={reviewed}")
    return 0


def _github_approval(options: argparse.Namespace) -> int:
    deployment = _project(options).deployment(options.environment)
    stack = deployment.stack
    if not (options.plans / stack).exists():
        say("digest=")
        return 0
    github = _github()
    with TemporaryDirectory(prefix="kinesis-efo-reviewed-") as scratch:
        fetch_plan(github, deployment, _commit(options), Path(scratch))
        reviewed = Path(scratch) / stack
        decided = approval.decide(
            deployment,
            read_plan(options.plans / stack),
            read_plan(reviewed) if reviewed.exists() else None,
            approved=options.approved.split(),
            approvers=reviewers_of(github, deployment.github_environment),
            repair=read_meta(options.plans / stack).repair,
            workflow=running(os.environ.get("GITHUB_WORKFLOW_REF", "")),
        )
    if options.summary:
        with options.summary.open("a", encoding="utf-8") as summary:
            summary.write(decided.told + "\n")
    logger.info("%s", decided.told)
    say(f"digest={decided.digest}")
    return 0 if decided.may_go_on else 1


def _github_issue(options: argparse.Namespace) -> int:
    deployment = _project(options).deployment(options.environment)
    report = options.report.read_text(encoding="utf-8") if options.report.exists() else None
    put_issue(_github(), deployment.stack, report)
    return 0


def _github_findings(options: argparse.Namespace) -> int:
    put_findings(_github(), options.sarif.read_text(encoding="utf-8"), _commit(options), options.ref)
    return 0


def _github() -> Gh:
    repository = os.environ.get("GITHUB_REPOSITORY")
    if not repository:
        raise PipelineError("GITHUB_REPOSITORY is not set; set it to owner/name, as GitHub's workflows do")
    return Gh(repository, urlsplit(os.environ.get("GITHUB_SERVER_URL", "https://github.com")).netloc)


def _write(path: Path, text: str | None) -> None:
    """Write a report, or remove the file if there is nothing to report."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text, encoding="utf-8")


def _project(options: argparse.Namespace) -> Project:
    project: Project = options.open(options.directory)
    return project


def _one(options: argparse.Namespace) -> tuple[Deployment, Planner]:
    project = _project(options)
    deployment = project.deployment(options.environment)
    check_handed(options)
    project.refuse(options.environment)
    return deployment, Planner(
        options.synthesized,
        Records(client("s3", deployment.state_region or deployment.region, deployment.account_id)),
        project.directory.parent / PROVIDERS,
        gate=checkov_beside(project.directory, deployment.environment, project.accepted),
        extra=extra.types(project.directory),
        prepare=project.prepare(options.environment),
        asks=lambda plan: beyond_quota(client("kinesis", deployment.region, deployment.account_id), deployment, plan),
        is_before=is_before,
    )


def check_handed(options: argparse.Namespace) -> None:
    """Reject the synthesized files if they changed after synthesis: their digest must equal `--handed`, if given.

    Raises:
        PipelineError: The digest differs.
    """
    if options.handed and (found := tree_digest(options.synthesized)) != options.handed:
        raise PipelineError(
            f"{options.synthesized} is not what was handed over: its digest is {found}, and not {options.handed}; start again"
        )


def _commit(options: argparse.Namespace) -> str:
    if options.commit:
        return str(options.commit)
    ran = _git("--commit is missing", "rev-parse", "HEAD")
    if ran.returncode:
        raise PipelineError(f"--commit is missing, and git does not tell it: {ran.stderr.strip()}; say --commit")
    return ran.stdout.strip()


def is_before(commit: str, other: str) -> bool:
    """Whether a commit is an ancestor of another, in the clone in the working directory.

    Raises:
        PipelineError: The clone lacks one of the commits, or a part of the history between them.
    """
    why = f"whether {commit} is older than {other}, which was deployed, cannot be told"
    after, before = (_git(why, "merge-base", "--is-ancestor", *pair) for pair in ((other, commit), (commit, other)))
    if after.returncode == 0:
        return False
    shallow = _git(why, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    if before.returncode > 1 or (before.returncode and shallow):
        raise PipelineError(
            f"{why}: {before.stderr.strip() or 'this clone is shallow'}; fetch the whole history (`git fetch --unshallow`; on "
            "GitHub, `fetch-depth: 0`). If the branch was rewritten, delete the record of what is deployed (docs/pipeline.md)"
        )
    return before.returncode == 0


def _git(why: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PipelineError(f"{why}, and git cannot be asked: {error}; say --commit, or install git") from None


def say(text: str) -> None:
    """Print a text, followed by exactly one newline."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def add_steps(parser: argparse.ArgumentParser, open_project: Callable[[Path], Project], directory: Path) -> Any:
    """Add the steps to a parser, and return its subparsers, so that further commands can be added.

    Args:
        parser: The parser.
        open_project: Returns the project of a directory of environment files.
        directory: Default directory of the environment files.
    """
    parser.add_argument("--directory", type=Path, default=directory, help="environment files (default: %(default)s)")
    parser.set_defaults(open=open_project)
    steps = parser.add_subparsers(required=True, metavar="STEP")

    branched = argparse.ArgumentParser(add_help=False)
    branched.add_argument("--branch", help="only environments that are deployed from this branch (default: all)")
    everything = steps.add_parser(
        "environments", parents=[branched], help="list environments in the order of deployment, as JSON for a CI matrix"
    )
    everything.set_defaults(run=_environments)

    plans = argparse.ArgumentParser(add_help=False)
    plans.add_argument("--plans", type=Path, default=Path("plans"), help="where plans are (default: %(default)s)")
    shared = argparse.ArgumentParser(add_help=False, parents=[plans])
    shared.add_argument("environment")
    shared.add_argument("--commit", help="default: the one checked out")
    synthesized = argparse.ArgumentParser(add_help=False)
    synthesized.add_argument("--synthesized", type=Path, default=Path("cdktf.out"), help="default: %(default)s")
    stacks = argparse.ArgumentParser(add_help=False, parents=[shared, synthesized])
    stacks.add_argument(
        "--handed", metavar="DIGEST", help="what `digest` said of the stacks where they were synthesized"
    )

    told = steps.add_parser("digest", parents=[synthesized], help="print the digest of what was synthesized")
    told.set_defaults(run=_digest)

    plan = steps.add_parser("plan", parents=[stacks], help="plan a stack if it is not deployed as it is here")
    plan.add_argument("--repair", action="store_true", help="plan it in any case, to undo what was changed by hand")
    plan.add_argument("--unscanned", action="store_true", help="leave checkov to the step `scan`, which needs no keys")
    # Makefiles of earlier versions pass this option.
    plan.add_argument("--base", help=argparse.SUPPRESS)
    plan.set_defaults(run=_plan)

    scanned = steps.add_parser("scan", parents=[stacks], help="scan the plan that was shown with checkov")
    scanned.add_argument("--approved", metavar="DIGEST", help="the digest that the plan must have")
    scanned.set_defaults(run=_scan)

    summary = steps.add_parser("comment", parents=[plans, branched], help="print what the plans do, as Markdown")
    summary.add_argument("--only", metavar="ENVIRONMENT", help="the environment that is about to be deployed")
    summary.set_defaults(run=_comment)

    applied = steps.add_parser("apply", parents=[stacks], help="plan, and apply that if it does what was shown")
    applied.add_argument(
        "--reviewed", action="append", default=[], metavar="COMMIT", help="what was shown may also be of this commit"
    )
    applied.add_argument("--approved", metavar="DIGEST", help="digest of the plan that was approved")
    applied.add_argument("--outputs", type=Path, help="file that gets `stale=true` if the plan is not what was shown")
    applied.set_defaults(run=_apply)

    locked = steps.add_parser(
        "providers", parents=[stacks], help=f"write {PROVIDERS}, which says by hashes which provider may run"
    )
    locked.set_defaults(run=_providers)

    drift = steps.add_parser(
        "drift", parents=[stacks], help=f"compare AWS with what is deployed; exit code {DRIFT}: drift"
    )
    drift.add_argument("--link", help="URL of this run's log, for the report")
    drift.add_argument("--report", type=Path, help="write the report there, if there is drift, and exit with code 0")
    drift.add_argument(
        "--deploy", default=WORKFLOW, metavar="FILE", help="GitHub's workflow that deploys (default: %(default)s)"
    )
    drift.set_defaults(run=_drift)

    posted = steps.add_parser(
        "github-comment", parents=[plans, branched], help="comment on a pull request what its plans do"
    )
    posted.add_argument("pull_request", type=int)
    posted.add_argument("--run-id", type=int, required=True, help="the workflow run that planned")
    posted.set_defaults(run=_github_comment)

    fetched = steps.add_parser("github-fetch", parents=[shared], help="fetch the plan that was made for a commit")
    fetched.set_defaults(run=_github_fetch)

    approved = steps.add_parser(
        "github-approval",
        parents=[shared],
        help="whether a plan is the reviewed one, was approved by its digest, or waits for the environment's reviewers",
    )
    approved.add_argument("--approved", default="", metavar="DIGESTS", help="digests of plans that somebody approved")
    approved.add_argument("--summary", type=Path, help="file that the answer is added to, as Markdown")
    approved.set_defaults(run=_github_approval)

    issue = steps.add_parser("github-issue", help="open, change or close the issue about drift")
    issue.add_argument("environment")
    issue.add_argument("report", type=Path, help="the report about drift; no such file: no drift")
    issue.set_defaults(run=_github_issue)

    found = steps.add_parser("github-findings", help="hand findings to code scanning")
    found.add_argument("sarif", type=Path)
    found.add_argument("--commit", help="default: the one checked out")
    found.add_argument("--ref", required=True, help="branch or pull request, as refs/...")
    found.set_defaults(run=_github_findings)
    return steps
