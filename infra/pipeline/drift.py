"""Looks for what differs between AWS and what is deployed. Relies on `plans`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from infra import names
from infra.errors import PipelineError
from infra.pipeline.bundle import PLAN_TEXT
from infra.pipeline.plans import Planner
from infra.pipeline.report import drift_body
from infra.settings import Environment

logger = logging.getLogger(__name__)


def look_for_drift(
    planner: Planner, environment: Environment, commit: str, out: Path, links: Mapping[str, str]
) -> str | None:
    """Plan what is deployed; a plan that would change something is drift.

    Args:
        planner: Makes the plan.
        environment: Where to look.
        commit: The commit that is synthesized.
        out: Where the bundle goes.
        links: For the report.

    Returns:
        The body of an issue; None where there is no drift.

    Raises:
        PipelineError: What is synthesized is not what is deployed, so that a plan would say nothing about drift.
    """
    stack = names.stack_name(environment)
    if not planner.is_deployed(environment):
        raise PipelineError(
            f"{stack} of commit {commit} is not deployed, so that nothing can be said about drift: deploy it, or find out why "
            "that failed"
        )
    meta = planner.plan(environment, commit, out)
    if not meta.any_changes:
        logger.info("%s: no drift", stack)
        return None
    text = (out / stack / PLAN_TEXT).read_text(encoding="utf-8")
    return drift_body(stack, meta, text.strip(), links)
