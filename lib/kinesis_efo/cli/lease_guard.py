"""The guard in front of every change to leases: nobody alive may hold them, what changes is shown, and somebody says yes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.lease_access import TimeoutOption
from kinesis_efo.clock import SystemClock
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import LeaseStore, Scan
from kinesis_efo.operate import lease_edits
from kinesis_efo.operate.lease_edits import Edit
from kinesis_efo.operate.lease_watch import Watched, watch


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be changed.

    Attributes:
        edits: The changes.
        remarks: What there is to say about them.
    """

    edits: Sequence[Edit]
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Care:
    """How carefully leases are changed.

    Attributes:
        lease_timeout: Seconds after which a silent owner is dead.
        dry_run: Only show what would change.
        force: Go on although somebody is alive.
        yes: Do not ask.
        as_json: As `output.answer`.
    """

    lease_timeout: float
    dry_run: bool
    force: bool
    yes: bool
    as_json: bool


def care(
    *,
    lease_timeout: TimeoutOption = "10s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do it although a live worker holds the leases: it loses them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: output.JsonFlag = False,
) -> Care:
    """How carefully leases are changed, from the command line.

    Raises:
        ConfigurationError: `--lease-timeout` is not a duration.
    """
    return Care(arguments.seconds("--lease-timeout", lease_timeout), dry_run, force, yes, as_json)


guarded = arguments.grouped(care=care, aws=arguments.aws_settings)
"""A command that changes leases: its parameters `care` and `aws` are made of options."""


async def change(
    table: LeaseStore,
    plan: Callable[[Scan, Scan], Plan],
    of_interest: Callable[[Lease], bool],
    care: Care,
    *,
    source: LeaseStore | None = None,
) -> None:
    """Watch, plan, refuse, show, ask, write.

    Args:
        table: The application's leases.
        plan: Plans from a scan of the table and one of `source`.
        of_interest: Leases that nobody alive may hold.
        care: How carefully.
        source: Another table, where nobody may be alive either.

    Raises:
        typer.Exit: Refused, declined, or not all was written.
        KinesisEfoError: A table cannot be used, or the plan cannot be made.
    """
    seen = await _watch(table, care.lease_timeout, of_interest)
    other = await _watch(source, care.lease_timeout, lambda _lease: True) if source else None
    planned = plan(seen.scan, other.scan if other else Scan())
    edits = planned.edits
    data = {"changes": [_data(edit) for edit in edits], "written": False}
    if not edits or care.dry_run:
        output.answer(care.as_json, data, lambda: _view(edits))
        _say(planned.remarks)
        output.remark("nothing was changed: --dry-run" if edits else "nothing to change")
        return
    _refuse_alive(table, seen, care.force)
    if source is not None and other is not None:
        _refuse_alive(source, other, care.force)
    if not care.as_json:
        output.terminal().print(_view(edits))
    _say(planned.remarks)
    output.confirm(f"Change {output.count(len(edits), 'lease')} in {table.label}", yes=care.yes)
    left = await lease_edits.apply(table, edits, force=care.force)
    if care.as_json:
        output.answer(True, {**data, "written": not left}, lambda: "")
    output.remark(f"{output.count(len(edits) - len(left), 'lease')} changed")
    if left:
        keys = ", ".join(edit.key for edit in left)
        output.remark(
            f"kinesis-efo: not changed, because somebody else wrote meanwhile: {keys}. See who, and try again"
        )
        raise output.stop(output.ExitCode.FAILED)


async def _watch(table: LeaseStore, lease_timeout: float, of_interest: Callable[[Lease], bool]) -> Watched:
    def waiting() -> None:
        output.remark(f"watching {table.label} for up to {lease_timeout:g} s: is an owner alive?")

    return await watch(table, SystemClock(), lease_timeout, of_interest, waiting)


def _refuse_alive(table: LeaseStore, seen: Watched, force: bool) -> None:
    if not seen.live:
        return
    workers = "; ".join(
        f"{owner} renews {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for owner, keys in seen.live_owners.items()
    )
    if force:
        output.remark(
            f"kinesis-efo: {workers}. Going on, because of --force: it takes them again, and goes on where it was"
        )
        return
    output.remark(
        f"kinesis-efo: {table.label} is in use: {workers}. Nothing was changed. "
        "Stop that query (or KCL application) first; with --force its leases are written under its hands"
    )
    raise output.stop(output.ExitCode.REFUSED)


def _say(remarks: Sequence[str]) -> None:
    for remark in remarks:
        output.remark(remark)


def _view(edits: Sequence[Edit]) -> Any:
    return output.table(
        ("=lease", "", "from", "to", "owner"),
        [
            (
                edit.key,
                edit.what,
                _position(edit.before),
                _position(edit.after),
                edit.before.owner if edit.before else None,
            )
            for edit in edits
        ],
    )


def _data(edit: Edit) -> dict[str, Any]:
    return {
        "leaseKey": edit.key,
        "change": edit.what,
        "from": _position(edit.before),
        "to": _position(edit.after),
        "owner": edit.before.owner if edit.before else None,
    }


def _position(lease: Lease | None) -> str | None:
    if lease is None:
        return None
    return "LATEST" if lease.checkpoint is None else str(lease.checkpoint)
