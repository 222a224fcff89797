"""Changes leases safely: rejects a change if a live worker owns the leases, shows the change, and asks for confirmation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import LeaseStore, Scan
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.change_mode import ChangeMode
from kinesis_efo_tools.cli.failing import CommandExit, confirm
from kinesis_efo_tools.operate import lease_edits
from kinesis_efo_tools.operate.lease_edits import Edit
from kinesis_efo_tools.operate.watch import WatchResult, watch


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned changes to leases. `remarks` are messages for the user who confirms the changes."""

    edits: Sequence[Edit]
    remarks: Sequence[str] = ()


async def change(
    table: LeaseStore,
    plan: Callable[[Scan, Scan], Awaitable[Plan]],
    guarded: Callable[[Lease], bool],
    mode: ChangeMode,
    source: LeaseStore | None = None,
    clock: Clock | None = None,
) -> None:
    """Change leases: watch for live owners, plan the changes, show them, ask for confirmation, and write them.

    Args:
        plan: Plans the changes from a scan of the table and a scan of `source`, both made after watching for live owners.
        guarded: Selects leases of the table. If a live worker owns one of them, the change is rejected.
        source: The table from which leases are copied, if any. If a live worker owns one of its leases, the change is rejected.

    Raises CommandExit if the change is rejected or declined, if another process writes a guarded lease, or if a lease was not written.
    """
    clock = clock or SystemClock()
    seen = await _watch(table, mode.lease_timeout, guarded, clock)
    seen_in_source = await _watch(source, mode.lease_timeout, _every, clock) if source else None
    planned = await plan(seen.scan, seen_in_source.scan if seen_in_source else Scan())
    edits = planned.edits
    data = {"changes": [_data(edit) for edit in edits], "written": False}
    # Reject the change if an owner is alive, even if the plan is empty: a live run may change its rows at any time.
    _refuse_live(table, seen, mode.force)
    if source is not None and seen_in_source is not None:
        _refuse_live(source, seen_in_source, mode.force)
    if not edits or mode.dry_run:
        output.answer(mode.as_json, data, lambda: _view(edits))
        _print_remarks(planned.remarks)
        output.remark("nothing was changed: --dry-run" if edits else "nothing to change")
        return
    if not mode.as_json:
        output.terminal().print(_view(edits))
    _print_remarks(planned.remarks)
    confirm(f"Change {output.count(len(edits), 'lease')} in {table.label}", yes=mode.yes)
    watched = [
        (table, seen.scan, guarded),
        *([(source, seen_in_source.scan, _every)] if source and seen_in_source else []),
    ]
    if began := [] if mode.force else await _written(watched):
        raise CommandExit(
            output.ExitCode.REFUSED,
            f"nothing was changed: {', '.join(began)} changed after the check for owners. Stop that query (or KCL application), and try again",
        )
    unwritten = await lease_edits.apply(table, edits, force=mode.force)
    if mode.as_json:
        output.answer(True, {**data, "written": not unwritten}, lambda: "")
    output.remark(f"{output.count(len(edits) - len(unwritten), 'lease')} changed")
    if unwritten:
        keys = ", ".join(edit.key for edit in unwritten)
        raise CommandExit(
            output.ExitCode.FAILED,
            f"not changed, because another process wrote meanwhile: {keys}. "
            "See who with `kinesis-efo leases list`, and try again",
        )
    if began := [] if mode.force else await _written(watched, {edit.key for edit in edits}):
        raise CommandExit(
            output.ExitCode.FAILED,
            f"{', '.join(began)} changed while leases were written: a query (or KCL application) has started, perhaps at the positions "
            "from before. Stop it, and try again",
        )


def _every(_: Lease) -> bool:
    return True


async def _written(
    watched: Sequence[tuple[LeaseStore, Scan, Callable[[Lease], bool]]], by_us: Collection[str] = ()
) -> list[str]:
    """Return the guarded rows that another process has written since the scan. `by_us` has the keys of rows that this process wrote."""
    found = []
    for number, (table, scan, guarded) in enumerate(watched):
        now, ours = (await table.scan()).leases, by_us if number == 0 else ()
        found += [
            f"{key} of {table.label}"
            for key, row in sorted({**scan.leases, **now}.items())
            if guarded(row) and key not in ours and _version(scan.leases.get(key)) != _version(now.get(key))
        ]
    return found


def _version(row: Lease | None) -> tuple[str | None, int] | None:
    return None if row is None else (row.owner, row.counter)


async def _watch(
    table: LeaseStore, lease_timeout: float, guarded: Callable[[Lease], bool], clock: Clock
) -> WatchResult:
    def waiting() -> None:
        output.remark(f"watching {table.label} for up to {lease_timeout:g} s: is an owner alive?")

    return await watch(table, clock, lease_timeout, guarded, waiting)


def _refuse_live(table: LeaseStore, seen: WatchResult, force: bool) -> None:
    if seen.scan.unreadable and not force:
        raise CommandExit(
            output.ExitCode.REFUSED,
            f"{'; '.join(seen.scan.unreadable.values())}. A live worker may hold it, so nothing was changed. "
            "Correct or delete the row first; --force changes the others",
        )
    if not seen.live:
        return
    workers = "; ".join(
        f"{readable(owner)} renews {', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for owner, keys in seen.live_owners.items()
    )
    if force:
        output.remark(
            f"kinesis-efo: {workers}. Changing them anyway (--force): the worker will take them again, at its own position"
        )
        return
    raise CommandExit(
        output.ExitCode.REFUSED,
        f"{table.label} is in use: {workers}. Nothing was changed. "
        "Stop that query (or KCL application) first; --force changes its leases while it runs",
    )


def _print_remarks(remarks: Sequence[str]) -> None:
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
                readable(edit.before.owner) if edit.before and edit.before.owner else None,
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
    return "LATEST" if lease.reached is None else str(lease.reached)
