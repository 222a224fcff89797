"""Looks for drift: differences between AWS and the configuration that is deployed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra import names
from infra.errors import PipelineError
from infra.pipeline.bundle import PLAN_TEXT
from infra.pipeline.foreign import Foreign
from infra.pipeline.plans import Planner
from infra.pipeline.report import drift_body, foreign_section
from infra.settings import Environment

logger = logging.getLogger(__name__)


def look_for_drift(
    planner: Planner,
    environment: Environment,
    commit: str,
    out: Path,
    links: Mapping[str, str],
    foreign: Sequence[Foreign] = (),
) -> str | None:
    """Plan the configuration that is deployed; if the plan would change anything, there is drift.

    After a deployment that ended half way, there is as well, whatever is synthesized.

    No plan shows consumers that nobody declared: they are drift as well.

    Args:
        planner: Makes the plan.
        environment: Where to look.
        commit: The commit that is synthesized.
        out: Directory for the plan's bundle.
        links: Links in the report, by name.
        foreign: Consumers on the environment's streams that nobody declared.

    Returns:
        The report, as the body of an issue; None where there is no drift.

    Raises:
        PipelineError: The synthesized configuration is not deployed, so a plan would say nothing about drift.
    """
    stack = names.stack_name(environment)
    under_way = planner.records.load(environment).under_way
    if not under_way and not planner.is_deployed(environment):
        raise PipelineError(
            f"{stack} of commit {commit} is not deployed, so that nothing can be said about drift: deploy it, or "
            "find out why that failed"
        )
    meta = planner.plan(environment, commit, out, to_apply=False)
    if not meta.any_changes and not foreign and not under_way:
        logger.info("%s: no drift", stack)
        return None
    text = (out / stack / PLAN_TEXT).read_text(encoding="utf-8").strip()
    told = foreign_section(foreign, environment)
    branch = environment.pipeline.branch if environment.pipeline else "main"
    return drift_body(stack, meta, text, links, told, branch=branch, under_way=under_way)
