"""The environments that a pipeline deploys, their order, and what a CI job needs to know of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra import names
from infra.settings import Environment


def deployment_order(environments: Iterable[Environment], branch: str | None = None) -> list[Environment]:
    """The environments that have a pipeline, each after the one that its `after` names; else in the given order.

    The settings' rules make sure that `after` names one of them, without cycles.

    Args:
        environments: The environments.
        branch: Leave out those that are deployed from another branch; None for all.
    """
    waiting = {
        each.environment: each for each in environments if each.pipeline and branch in (None, each.pipeline.branch)
    }
    ordered: list[Environment] = []

    def take(environment: Environment) -> None:
        if environment in ordered:
            return
        before = waiting.get(environment.pipeline.after or "") if environment.pipeline else None
        if before:
            take(before)
        ordered.append(environment)

    for environment in waiting.values():
        take(environment)
    return ordered


def job_parameters(environment: Environment) -> Mapping[str, str]:
    """What a CI job needs to know of an environment."""
    return {
        "environment": environment.environment,
        "github_environment": names.qualified(environment),
        "stack": names.stack_name(environment),
        "region": environment.region,
        "plan_role": names.pipeline_role_arn(environment, "plan"),
        "apply_role": names.pipeline_role_arn(environment, "apply"),
    }
