"""Reports about plans and drift, as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinesis_efo_infra.pipeline.bundle import Changes, Meta
from kinesis_efo_infra.pipeline.comparison import normalised
from kinesis_efo_infra.pipeline.comparison import told as actions
from kinesis_efo_infra.pipeline.deployment import WORKFLOW, Deployment, consumers_at_most
from kinesis_efo_infra.pipeline.foreign import Foreign
from kinesis_efo_infra.pipeline.prices import prices_of, told

LIMIT = 60_000
"""Maximum characters in a comment or issue; GitHub refuses more than 65,536."""

_MOST_ROWS = 100
_GRANTS = re.compile("access|grant|iam|identity|kms|permission|policy|security_group")
"""Pattern for the types of resources that define permissions."""
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
    """A stack's Terraform plan, with the data for a report.

    Attributes:
        stack: Name of the stack.
        meta: Metadata of the plan.
        text: The plan in Terraform's text format.
        plan: The plan's changes as JSON, without secrets; see `comparison.shown`.
    """

    stack: str
    meta: Meta
    text: str
    plan: Mapping[str, Any] = field(default_factory=dict)


def comment(
    plans: Sequence[Planned],
    others: Sequence[str],
    *,
    all_planned: bool,
    extra: Collection[str] = (),
    deploying: bool = False,
    place: str = "",
) -> str:
    """Describe what a pull request or a deployment changes in AWS.

    Args:
        plans: The plans of the stacks that changed.
        others: The stacks without a plan.
        all_planned: Whether all stacks were to be planned; if so, the configuration of a stack without a plan is already deployed.
        extra: Resource types that the team adds to the allowlist.
        deploying: Whether the plans are about to be deployed; otherwise, they are those of a pull request.
        place: Directory of the project in the repository; empty for the root.
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
        lines += ["", *_details(each.stack, each.plan, each.text, share)]
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
    plan: Mapping[str, Any] | None = None,
    branch: str = "main",
    under_way: str = "",
    workflow: str = WORKFLOW,
) -> str:
    """Return the body of an issue about drift.

    Args:
        stack: Name of the stack.
        meta: Metadata of the plan that would undo the drift.
        text: The plan in Terraform's text format.
        links: Links for further reading, by name.
        foreign: Lines about undeclared consumers.
        plan: The plan's changes as JSON, without secrets; see `comparison.shown`.
        branch: The branch that is deployed.
        under_way: The commit whose deployment failed or was stopped midway; empty if there is none.
        workflow: File name of the workflow that deploys.
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
        lines += ["", *_details("What would put it right", plan or {}, text, share)]
    return "\n".join(lines) + "\n"


def foreign_section(foreign: Sequence[Foreign], deployment: Deployment) -> list[str]:
    """Return lines about undeclared consumers; empty if there are none."""
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


def _details(summary: str, plan: Mapping[str, Any], text: str, share: int) -> list[str]:
    """Return a plan's addresses with their actions, then its text, in at most `share` characters. Destroyed resources come first."""
    pairs = zip(sorted(normalised(plan).items()), actions(plan), strict=True)
    changes = sorted(pairs, key=lambda each: _rank(*each[0]))
    kinds = {address: f"{' and '.join(change['actions'])} {_type(address)}" for (address, change), _ in changes}
    listed = _fitting([(line, kinds[address]) for (address, _), line in changes], "\n", share)
    head, *blocks = re.split(r"\n\n(?=  # )", text)
    last, plain, counts = (blocks or [""])[-1].partition("\n\nPlan: ")
    order = {address: number for number, address in enumerate(kinds)}
    of = {each: _address(each, order) for each in [*blocks[:-1], last] if each}
    ordered = sorted(of, key=lambda each: order.get(of[each], -1))
    room = share - len(listed)
    if len(head) > room:
        head = f"{head[: max(room, 0)]}\n... the rest is in the artifact"
    parts = [(each, kinds.get(of[each], "other")) for each in ordered]
    told = _fitting(parts, "\n\n", room - len(head) - len(plain) - len(counts))
    block = _block(f"{summary}, by address", listed, " open") if listed else []
    return [
        *block,
        *_block(summary, "\n\n".join(each for each in (head, told, plain.strip() + " " + counts) if each.strip())),
    ]


def _block(summary: str, text: str, state: str = "") -> list[str]:
    # Use a longer fence than any in the text: names and descriptions may contain fences.
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"<details{state}><summary>{summary}</summary>", "", f"{fence}hcl", text, fence, "", "</details>"]


def _rank(address: str, change: Mapping[str, Any]) -> tuple[int, str]:
    """Return a sort key: resources that are destroyed or removed from the state come first, then those that define permissions."""
    lost = {"delete", "forget"} & set(change["actions"])
    return (0 if lost else 1 if _GRANTS.search(_type(address)) else 2), address


def _type(address: str) -> str:
    return address.removeprefix("data.").partition(".")[0]


def _address(block: str, known: Collection[str]) -> str:
    """Return the address at the beginning of a block of a plan's text; it may contain spaces. Empty if it is not in `known`."""
    words = block.partition("\n")[0].removeprefix("  # ").split(" ")
    return next((each for n in range(len(words)) if (each := " ".join(words[: n + 1])) in known), "")


def _fitting(parts: Sequence[tuple[str, str]], between: str, room: int) -> str:
    """Join the texts of `parts` (text and kind) that fit into `room` characters, and add how many of each kind are left out."""
    counted = _counted(Counter(kind for _, kind in parts))
    if sum(len(text) + len(between) for text, _ in parts) > room:
        room -= len(counted)
    kept, cut = [], Counter[str]()
    for text, kind in parts:
        if len(text) + len(between) <= room:
            kept.append(text)
            room -= len(text) + len(between)
        else:
            cut[kind] += 1
    return between.join([*kept, *([_counted(cut)] if cut else [])])


def _counted(kinds: Counter[str]) -> str:
    listing = ", ".join(
        f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda each: ("delete" not in each[0], each))
    )
    return f"... {kinds.total()} more are in the artifact: {listing}"
