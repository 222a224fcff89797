"""Prints the outcomes of checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from kinesis_efo.errors import visible
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.operate.findings import Finding, Status

_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.UNKNOWN: "yellow"}


@dataclass(frozen=True, slots=True)
class Details:
    """Output that follows the outcomes of checks: `data` is added to the JSON document, `view` is the same content as a table."""

    data: Mapping[str, Any]
    view: RenderableType


def report(as_json: bool, findings: Sequence[Finding], details: Details | None = None) -> None:
    """Print the outcomes of checks. Raises typer.Exit with `ExitCode.FAILED` if a check failed, or if no check passed."""
    counts = {status.value: sum(each.status is status for each in findings) for status in Status}
    data = {
        **counts,
        "findings": [
            {"subject": each.subject, "status": each.status.value, "detail": each.detail, "fix": each.fix}
            for each in findings
        ],
        **(details.data if details is not None else {}),
    }
    rows = [
        (
            output.text(each.status.value, _STYLES[each.status]),
            each.subject,
            output.text(f"{visible(each.detail)}\nfix: {visible(each.fix)}" if each.fix else each.detail, keep="\n"),
        )
        for each in findings
    ]
    table = output.table(("", "what", "found"), rows)
    output.answer(as_json, data, lambda: table if details is None else Group(table, "", details.view))
    if not as_json:
        output.remark(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["failed"] or not counts["passed"]:
        raise output.stop(output.ExitCode.FAILED)
