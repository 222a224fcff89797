"""Decides whether a plan that was made for a deployment has been approved: by a review, by its digest, or soon by reviewers."""

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
        may_go_on: Whether the plan was approved, or must be approved by the reviewers of the job that applies.
        digest: Digest of the plan.
        told: Why, as Markdown.
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
    """Decide on a plan that was made for a deployment. A plan that differs from the reviewed one is never applied without approval.

    Args:
        deployment: What is deployed.
        plan: The plan.
        reviewed: The plan that was reviewed with the merged pull request; None if there is none.
        approved: Digests of plans that someone has read and approved.
        approvers: Whether the job that applies needs an approval, which is given after this plan is shown.
        repair: Whether the plan undoes drift.
        workflow: The workflow that deploys.
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
