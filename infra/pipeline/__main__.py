"""`python -m infra.pipeline`: the steps of a pipeline, for any CI system. See docs/gitops.md.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 drift was found.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from infra import extra, names, template
from infra.aws import client
from infra.budget import idle
from infra.errors import InfraError, PipelineError, StalePlanError
from infra.load import DIRECTORY, load_environments
from infra.pipeline import approval, comparison
from infra.pipeline.bill import commitment, table
from infra.pipeline.bundle import PLAN_TEXT, Changes, read_meta, read_plan, tree_digest
from infra.pipeline.drift import look_for_drift
from infra.pipeline.foreign import foreign_consumers
from infra.pipeline.github import Gh, fetch_plan, fetch_plans, put_comment, put_findings, put_issue, reviewers_of
from infra.pipeline.jobs import Commands, SystemTime, keep_running
from infra.pipeline.limits import notes
from infra.pipeline.order import deployment_order, job_parameters
from infra.pipeline.pausing import Pause
from infra.pipeline.plans import Planner, checkov_beside
from infra.pipeline.prices import prices_of, told
from infra.pipeline.record import Records
from infra.pipeline.report import Planned, comment
from infra.settings import Environment

logger = logging.getLogger(__name__)
DRIFT = 3


def main(arguments: list[str] | None = None) -> int:
    """Run a step; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        return int(options.run(options))
    except InfraError as error:
        logger.error("error: %s", error)
        return 1


def _environments(options: argparse.Namespace) -> int:
    ordered = deployment_order(load_environments(options.directory), options.branch)
    _say(json.dumps([job_parameters(each) for each in ordered]))
    return 0


def _plan(options: argparse.Namespace) -> int:
    environment, planner = _one(options)
    if planner.is_deployed(environment) and not options.repair:
        logger.info("%s: deployed as it is here; nothing to plan", names.stack_name(environment))
        return 0
    planner.plan(environment, _commit(options), options.plans, repair=options.repair, base=options.base)
    return 0


def _comment(options: argparse.Namespace) -> int:
    _say(_markdown(options, all_planned=options.only is not None, only=options.only))
    return 0


def _markdown(options: argparse.Namespace, *, all_planned: bool, only: str | None = None) -> str:
    plans: Path = options.plans
    environments = load_environments(options.directory, [only] if only else [])
    stacks = [names.stack_name(each) for each in deployment_order(environments, options.branch)]
    planned = []
    for stack in stacks:
        # `plan` writes <stack>; on GitHub, an artifact is unpacked into plan-<stack>-<commit>, and a commit has no hyphen.
        artifacts = [each for each in plans.glob(f"plan-{stack}-*") if f"plan-{stack}" == each.name.rpartition("-")[0]]
        planned += [_planned(stack, each) for each in sorted([*plans.glob(stack), *artifacts])]
    shown = {each.stack for each in planned}
    others = [stack for stack in stacks if stack not in shown]
    added = extra.types(options.directory)
    return comment(planned, others, all_planned=all_planned, extra=added, deploying=only is not None)


def _planned(stack: str, bundle: Path) -> Planned:
    """A plan to report on: counted from the plan itself, and not from what is said beside it."""
    plan = read_plan(bundle)
    meta = replace(read_meta(bundle), changes=Changes.of(plan), plan=comparison.digest(plan), notes=tuple(notes(plan)))
    return Planned(stack, meta, (bundle / PLAN_TEXT).read_text(encoding="utf-8").strip())


def _digest(options: argparse.Namespace) -> int:
    _say(tree_digest(options.synthesized))
    return 0


def _apply(options: argparse.Namespace) -> int:
    environment, planner = _one(options)
    commits = [_commit(options), *options.reviewed]
    try:
        planner.apply(environment, commits, options.plans, options.approved or None)
    except StalePlanError:
        if options.outputs:
            with options.outputs.open("a", encoding="utf-8") as outputs:
                outputs.write("stale=true\n")
        raise
    return 0


def _drift(options: argparse.Namespace) -> int:
    environment, planner = _one(options)
    links = {"The run that found it": options.link} if options.link else {}
    kinesis = client("kinesis", environment.region, environment.account_id)
    foreign = foreign_consumers(kinesis, environment, load_environments(options.directory))
    body = look_for_drift(planner, environment, _commit(options), options.plans, links, foreign)
    if options.report:
        _write(options.report, body)
        return 0
    _say(body or "no drift")
    return DRIFT if body else 0


def _cost(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment])
    spent = idle(environment, options.synthesized)
    prices = prices_of(environment.region)
    if spent is None or prices is None:
        _say(f"Prices of {environment.region} are not known here: they are in another currency.")
        return 0
    lines = [
        f"What {environment.environment} costs a month, while nobody reads or writes:",
        "",
        *table(None, spent),
        "",
    ]
    if environment.on_demand_advantage and (committed := commitment(prices)):
        lines.append(committed)
    if environment.budget_usd is not None:
        lines.append(f"Its budget is {environment.budget_usd:,} USD.")
    _say("\n".join([*lines, told(prices, environment.region)]))
    return 0


def _jobs(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment], options.project)
    template.refuse(environment)
    keep_running(environment, options.project, Commands(), SystemTime(), options.patience)
    return 0


def _github_comment(options: argparse.Namespace) -> int:
    github = _github()
    fetch_plans(github, options.run_id, options.plans)
    put_comment(github, options.pull_request, _markdown(options, all_planned=True))
    return 0


def _github_fetch(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment])
    reviewed = fetch_plan(_github(), environment, _commit(options), options.plans)
    # The form in which GitHub reads a step's outputs.
    _say(f"reviewed={reviewed}")
    return 0


def _github_approval(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment])
    stack = names.stack_name(environment)
    if not (options.plans / stack).exists():
        _say("digest=")
        return 0
    github = _github()
    with TemporaryDirectory(prefix="kinesis-efo-reviewed-") as scratch:
        fetch_plan(github, environment, _commit(options), Path(scratch))
        reviewed = Path(scratch) / stack
        decided = approval.decide(
            environment,
            read_plan(options.plans / stack),
            read_plan(reviewed) if reviewed.exists() else None,
            approved=options.approved.split(),
            approvers=reviewers_of(github, names.qualified(environment)),
            repair=read_meta(options.plans / stack).repair,
        )
    if options.summary:
        with options.summary.open("a", encoding="utf-8") as summary:
            summary.write(decided.told + "\n")
    logger.info("%s", decided.told)
    _say(f"digest={decided.digest}")
    return 0 if decided.may_go_on else 1


def _github_issue(options: argparse.Namespace) -> int:
    (environment,) = load_environments(options.directory, [options.environment])
    report = options.report.read_text(encoding="utf-8") if options.report.exists() else None
    put_issue(_github(), names.stack_name(environment), report)
    return 0


def _github_findings(options: argparse.Namespace) -> int:
    put_findings(_github(), options.sarif.read_text(encoding="utf-8"), _commit(options), options.ref)
    return 0


def _github() -> Gh:
    repository = os.environ.get("GITHUB_REPOSITORY")
    if not repository:
        raise PipelineError("GITHUB_REPOSITORY is not set; set it to owner/name, as GitHub's workflows do")
    return Gh(repository)


def _write(path: Path, text: str | None) -> None:
    """Write a report, or remove the file where there is nothing to report."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(text, encoding="utf-8")


def _one(options: argparse.Namespace) -> tuple[Environment, Planner]:
    (environment,) = load_environments(options.directory, [options.environment])
    if options.handed and (found := tree_digest(options.synthesized)) != options.handed:
        raise PipelineError(
            f"{options.synthesized} is not what was handed over: its digest is {found}, and not {options.handed}; start again"
        )
    template.refuse(environment)
    region = environment.state_region or environment.region
    records = Records(client("s3", region, environment.account_id))

    def emr_serverless(place: str) -> Any:
        return client("emr-serverless", place, environment.account_id)

    return environment, Planner(
        options.synthesized,
        records,
        gate=checkov_beside(options.directory, environment.environment),
        extra=extra.types(options.directory),
        prepare=Pause(emr_serverless, Commands(), SystemTime()),
    )


def _commit(options: argparse.Namespace) -> str:
    if options.commit:
        return str(options.commit)
    try:
        ran = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PipelineError(
            f"--commit is missing, and git cannot be asked: {error}; say --commit, or install git"
        ) from None
    if ran.returncode:
        raise PipelineError(f"--commit is missing, and git does not tell it: {ran.stderr.strip()}; say --commit")
    return ran.stdout.strip()


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.pipeline", description=__doc__)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="environment files (default: %(default)s)")
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
    plan.add_argument("--base", default="", metavar="BRANCH", help="the branch that the change is merged into")
    plan.set_defaults(run=_plan)

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

    jobs = steps.add_parser("jobs", help="start the jobs that changed, one after the other, each until it is healthy")
    jobs.add_argument("environment")
    jobs.add_argument(
        "--project", type=Path, default=Path(), help="directory of the project to pack (default: %(default)s)"
    )
    jobs.add_argument(
        "--patience", type=float, default=1800, metavar="SECONDS", help="time to catch up (default: %(default)s)"
    )
    jobs.set_defaults(run=_jobs)

    spent = steps.add_parser("cost", help="what an environment costs a month while nobody reads or writes, by line")
    spent.add_argument("environment")
    spent.add_argument("--synthesized", type=Path, default=Path("cdktf.out"), help="default: %(default)s")
    spent.set_defaults(run=_cost)

    drift = steps.add_parser(
        "drift", parents=[stacks], help=f"compare AWS with what is deployed; exit code {DRIFT}: drift"
    )
    drift.add_argument("--link", help="URL of this run's log, for the report")
    drift.add_argument("--report", type=Path, help="write the report there, if there is drift, and exit with code 0")
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
