"""Reports about plans and drift, as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kinesis_efo_infra.pipeline.bundle import Changes, Meta
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment, consumers_at_most
from kinesis_efo_infra.pipeline.foreign import Foreign
from kinesis_efo_infra.pipeline.prices import prices_of, told

LIMIT = 60_000
"""Most characters in a comment or issue; GitHub refuses more than 65,536."""

_MOST_ROWS = 100
_ELSE = (
    "If it does anything else, because something else came first, nothing is applied until somebody has approved that."
)
_WHAT_FOREIGN_COST = "Each is billed for every hour and shard and for every GB, and takes one of the stream's places:"
_WHOSE_FOREIGN = (
    "CloudTrail says who registered it (`RegisterStreamConsumer`). If somebody answers for it, name it in the stream's "
    "`other_consumers:`; else `aws kinesis deregister-stream-consumer --consumer-arn <ARN>`."
)
_WHAT_TO_DO = (
    "Somebody changed it by hand, or AWS did: declare the change, or undo it. To undo it, plan the same configuration again, "
    "and deploy that like any plan: {undo}. "
    "The nightly check keeps this issue up to date, and closes it when the drift is gone."
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan to report on.

    Attributes:
        stack: Its stack.
        meta: What it was made of.
        text: The plan, as Terraform shows it.
    """

    stack: str
    meta: Meta
    text: str


def comment(
    plans: Sequence[Planned],
    others: Sequence[str],
    *,
    all_planned: bool,
    extra: Collection[str] = (),
    deploying: bool = False,
    place: str = "",
) -> str:
    """What a pull request, or a deployment, does to AWS.

    Args:
        plans: The plans of the stacks that changed.
        others: The stacks without a plan.
        all_planned: Whether planning was tried for all stacks: then those without a plan are deployed as they are.
        extra: Types of resources that the team has added.
        deploying: Whether a deployment is about to apply this, and not the merge of a pull request.
        place: Directory in the repository that this is about; empty: the root.
    """
    where = f" in `{place}`" if place else ""
    lines = [f"## What this does to AWS{where}", ""]
    if extra:
        listed = ", ".join(f"`{each}`" for each in sorted(extra))
        lines += [f"**`extra.py` adds types of resources to those that a stack may have: {listed}.**", ""]
    if plans:
        lines += ["| stack | create | update | replace | destroy | plan |", "|---|--:|--:|--:|--:|---|"]
        lines += [_row(each) for each in plans]
    if others:
        why = "Deployed as it is here" if all_planned else "No plan was made of"
        lines += ["", f"{why}: {', '.join(f'`{each}`' for each in others)}."]
    dangerous = [each.stack for each in plans if each.meta.changes.replace or each.meta.changes.destroy]
    if dangerous:
        lines += [
            "",
            f"**Something is destroyed or replaced in {', '.join(dangerous)}**: what is replaced gets a new ARN.",
        ]
    told = [f"- `{each.stack}`: {note}." for each in plans for note in each.meta.notes]
    if told:
        lines += ["", "**Read this before you merge:**", "", *told]
    for each in plans:
        if each.meta.cost:
            lines += ["", f"**The bill of `{each.stack}`:**", "", *each.meta.cost]
    if plans:
        commit, who = plans[0].meta.commit, "The deployment" if deploying else "Merging"
        lines += [
            "",
            f"{who} plans `{commit[:12]}` again, and applies that if it does exactly this. {_ELSE}",
        ]
    share = (LIMIT - len("\n".join(lines))) // max(len(plans), 1) - 300
    for each in plans:
        lines += ["", *_details(each.stack, each.text, share)]
    return "\n".join(lines) + "\n"


def _row(planned: Planned) -> str:
    changes = planned.meta.changes
    cells = [f"`{planned.stack}`", *map(str, _counts(changes)), f"`sha256:{planned.meta.plan[:12]}`"]
    return f"| {' | '.join(cells)} |"


def _counts(changes: Changes) -> tuple[int, int, int, int]:
    return changes.create, changes.update, changes.replace, changes.destroy


def drift_body(
    stack: str,
    meta: Meta,
    text: str,
    links: Mapping[str, str],
    foreign: Sequence[str] = (),
    *,
    branch: str = "main",
    under_way: str = "",
    workflow: str = WORKFLOW,
) -> str:
    """The body of an issue about drift.

    Args:
        stack: The stack.
        meta: What the plan was made of.
        text: The plan that would undo the drift.
        links: Links for further reading, by name.
        foreign: Lines about consumers that nobody declared.
        branch: The branch that is deployed.
        under_way: The commit whose deployment ended half way, if one has.
        workflow: The workflow that deploys.
    """
    changed = f": {meta.changes}" if meta.any_changes else ""
    deploy = f"`gh workflow run {workflow} --ref {branch}`"
    if under_way:
        why = f"because the deployment of commit `{under_way[:12]}` failed or was stopped half way"
        to_do = (
            f"What it created is there, and billed. Start *Deploy* ({deploy}): it plans what is left to do, or to undo."
        )
    else:
        why = f"although commit `{meta.commit[:12]}` is deployed"
        repair = f"`make plan ENV={meta.environment} REPAIR=1`, or on GitHub {deploy[:-1]} -f repair=true`"
        to_do = _WHAT_TO_DO.format(undo=repair)
    lines = [
        f"AWS is not what `{stack}` declares, {why}{changed}.",
        "",
        to_do,
        "",
        *foreign,
        *(["**What it costs as it is, and as it is declared:**", "", *meta.cost, ""] if meta.cost else []),
        *(f"[{name}]({link})" for name, link in links.items()),
    ]
    if meta.any_changes:
        share = LIMIT - len("\n".join(lines)) - 1_000
        lines += ["", *_details("What would put it right", text, share)]
    return "\n".join(lines) + "\n"


def foreign_section(foreign: Sequence[Foreign], deployment: Deployment) -> list[str]:
    """Lines about consumers that nobody declared; none if there is none."""
    if not foreign:
        return []
    quota = consumers_at_most(advantage=deployment.on_demand_advantage)
    rows = [
        f"| `{each.stream}` | `{each.consumer}` | {each.since} | {each.count} of {quota} | {_dollars(each.usd)} |"
        for each in foreign
    ]
    together = sum(each.usd or 0 for each in foreign)
    found = f"{len(foreign)} consumer{'s' if len(foreign) > 1 else ''}"
    return [
        (
            f"**{found} that no environment declares**, and no deployment undoes: {together:,.2f} USD a month for hours. "
            f"{_WHAT_FOREIGN_COST}"
        ),
        "",
        "| stream | consumer | since | consumers of the stream | USD a month for hours |",
        "|---|---|---|--:|--:|",
        *rows[:_MOST_ROWS],
        *(["", f"and {len(rows) - _MOST_ROWS} more."] if len(rows) > _MOST_ROWS else []),
        "",
        *([told(prices, deployment.region), ""] if (prices := prices_of(deployment.region)) else []),
        _WHOSE_FOREIGN,
        "",
    ]


def _dollars(usd: float | None) -> str:
    return "not known" if usd is None else f"{usd:,.2f}"


def _details(summary: str, text: str, share: int) -> list[str]:
    if len(text) > share:
        text = f"{text[:share]}\n... the rest is in the artifact"
    # A fence longer than any in the text, which anybody's names and descriptions may hold.
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"<details><summary>{summary}</summary>", "", f"{fence}hcl", text, fence, "", "</details>"]
