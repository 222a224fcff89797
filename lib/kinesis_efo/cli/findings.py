"""Prints findings, for every command that checks something."""

from __future__ import annotations

from collections.abc import Sequence

from kinesis_efo.cli import output
from kinesis_efo.operate.findings import Finding, Status

_STYLES = {Status.PASSED: "green", Status.FAILED: "bold red", Status.UNKNOWN: "yellow"}


def report(as_json: bool, findings: Sequence[Finding]) -> None:
    """Print findings.

    Raises:
        typer.Exit: A check failed; with `ExitCode.FAILED`. Unknown is not a failure.
    """
    counts = {status.value: sum(each.status is status for each in findings) for status in Status}
    data = {
        **counts,
        "findings": [
            {"subject": each.subject, "status": each.status.value, "detail": each.detail, "fix": each.fix}
            for each in findings
        ],
    }
    rows = [
        (
            output.painted(each.status.value, _STYLES[each.status]),
            each.subject,
            f"{each.detail}\nfix: {each.fix}" if each.fix else each.detail,
        )
        for each in findings
    ]
    output.answer(as_json, data, lambda: output.table(("", "what", "found"), rows))
    if not as_json:
        output.remark(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["failed"]:
        raise output.stop(output.ExitCode.FAILED)
