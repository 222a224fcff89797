"""Decides whether a plan may be deployed.

A plan may be deployed if it was reviewed, if its digest was approved, or if a CI job waits for approval before it applies the plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kinesis_efo_infra.pipeline import comparison
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment
from kinesis_efo_infra.pipeline.limits import Plan


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a deployment may continue.

    Attributes:
        may_go_on: Whether the plan was approved, or will have to be approved by the reviewers of the job that applies it.
        digest: Digest of the plan.
        told: The reason, as Markdown.
    """

    may_go_on: bool
    digest: str
    told: str


def decide(
    deployment: Deployment,
    plan: Plan,
    reviewed: Plan | None,
    *,
    approved: Collection[str],
    approvers: bool,
    repair: bool = False,
    workflow: str = WORKFLOW,
) -> Decision:
    """Decide whether a plan may be deployed. A plan that differs from the reviewed one is never applied without approval.

    Args:
        deployment: The deployment.
        plan: The plan that was made for the deployment.
        reviewed: The plan that was reviewed with the merged pull request; None if there is none.
        approved: Digests of plans that someone has read and approved.
        approvers: Whether the job that applies the plan waits for an approval, which is given after the plan is shown.
        repair: Whether the plan undoes drift.
        workflow: File name of the workflow that deploys.
    """
    digest = comparison.digest(plan)
    named = f"The plan of `{deployment.stack}` (`sha256:{digest}`)"
    differing = None if reviewed is None else comparison.differences(reviewed, plan)
    if differing == []:
        return Decision(True, digest, f"{named} does what was reviewed.")
    if digest in approved:
        return Decision(True, digest, f"{named} was approved by its digest.")
    why = "was not reviewed before" if differing is None else "is not what was reviewed"
    listing = "".join(f"\n- `{each}`" for each in differing or [])
    if approvers:
        return Decision(True, digest, f"{named} {why}: whoever approves this deployment approves this plan.{listing}")
    branch = deployment.branch
    also = " -f repair=true" if repair else ""
    return Decision(
        False,
        digest,
        f"{named} {why}, and nothing was applied. Read it above; to approve it: "
        f"`gh workflow run {workflow} --ref {branch} -f approved={digest}{also}`{listing}",
    )
