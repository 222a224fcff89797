"""Detects drift: differences between AWS and the configuration that is deployed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kinesis_efo_infra.errors import PipelineError
from kinesis_efo_infra.pipeline.bundle import read_plan, read_text
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment
from kinesis_efo_infra.pipeline.foreign import Foreign
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.plans import Planner
from kinesis_efo_infra.pipeline.report import drift_body, foreign_section

logger = logging.getLogger(__name__)


def look_for_drift(
    planner: Planner,
    deployment: Deployment,
    commit: str,
    out: Path,
    links: Mapping[str, str],
    foreign: Callable[[Plan], Sequence[Foreign]] = lambda _: (),
    *,
    workflow: str = WORKFLOW,
) -> str | None:
    """Plan the deployed configuration; if the plan would change anything, there is drift.

    A deployment that failed or was stopped midway counts as drift; the synthesized configuration may then differ from the deployed
    one. Undeclared consumers, which plans do not show, are drift, too.

    Args:
        planner: Makes the plan.
        deployment: The deployment to check.
        commit: The commit that is synthesized.
        out: Directory for the plan's bundle.
        links: Links in the report, by name.
        foreign: Given a plan, returns the undeclared consumers on the deployment's streams.
        workflow: File name of the workflow that deploys, for the report.

    Returns:
        The report, as the body of an issue; None if there is no drift.

    Raises:
        PipelineError: The synthesized configuration was not deployed, so its plan would also show undeployed changes.
    """
    stack = deployment.stack
    under_way = planner.records.load(deployment).under_way
    if not under_way and not planner.is_deployed(deployment):
        raise PipelineError(
            f"{stack} of commit {commit} is not deployed, so that nothing can be said about drift: deploy it, or "
            "find out why that failed"
        )
    meta = planner.plan(deployment, commit, out, to_apply=False)
    plan = read_plan(out / stack)
    undeclared = foreign(plan)
    if not meta.any_changes and not undeclared and not under_way:
        logger.info("%s: no drift", stack)
        return None
    text = read_text(out / stack)
    told = foreign_section(undeclared, deployment)
    return drift_body(
        stack, meta, text, links, told, plan=plan, branch=deployment.branch, under_way=under_way, workflow=workflow
    )
