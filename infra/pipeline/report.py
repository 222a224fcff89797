"""Reports about plans and drift, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.pipeline.bundle import Changes, Meta

LIMIT = 60_000
"""Most characters in a comment or issue; GitHub refuses more than 65,536."""

_WHAT_TO_DO = (
    "Somebody changed it by hand, or AWS did: declare the change, or let the next deployment undo it. "
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


def comment(plans: Sequence[Planned], others: Sequence[str], *, all_planned: bool) -> str:
    """The comment that says what a pull request does to AWS.

    Args:
        plans: The plans of the stacks that changed.
        others: The stacks without a plan.
        all_planned: Whether planning was tried for all stacks: then those without a plan are deployed as they are.
    """
    lines = ["## What this does to AWS", ""]
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
            lines += ["", f"**Enhanced Fan-Out in `{each.stack}` is billed otherwise:**", "", *each.meta.cost]
    if plans:
        commit = plans[0].meta.commit
        lines += [
            "",
            f"Merging applies exactly these plans of `{commit[:12]}`. They are refused if something else comes first.",
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


def drift_body(stack: str, meta: Meta, text: str, links: Mapping[str, str]) -> str:
    """The body of an issue about drift.

    Args:
        stack: The stack.
        meta: What the plan was made of.
        text: The plan that would undo the drift.
        links: Links for further reading, by name.
    """
    lines = [
        f"AWS is not what `{stack}` declares, although commit `{meta.commit[:12]}` is deployed: {meta.changes}.",
        "",
        _WHAT_TO_DO,
        "",
        *(f"[{name}]({link})" for name, link in links.items()),
        "",
        *_details("What would put it right", text, LIMIT - 2_000),
    ]
    return "\n".join(lines) + "\n"


def _details(summary: str, text: str, share: int) -> list[str]:
    if len(text) > share:
        text = f"{text[:share]}\n... the rest is in the artifact"
    # A fence longer than any in the text, which anybody's names and descriptions may hold.
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"<details><summary>{summary}</summary>", "", f"{fence}hcl", text, fence, "", "</details>"]
