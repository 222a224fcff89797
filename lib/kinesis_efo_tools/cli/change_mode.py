"""Options of commands that change leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import Group


@dataclass(frozen=True, slots=True)
class ChangeMode:
    """The options for changing leases.

    `lease_timeout`: seconds without a renewal after which an owner counts as dead. `force`: change leases even if a live worker owns them.
    `yes`: do not ask for confirmation.
    """

    lease_timeout: float
    dry_run: bool
    force: bool
    yes: bool
    as_json: bool


def change_mode(
    *,
    # A KCL with a failover time of a minute renews every 20 s.
    lease_timeout: arguments.TimeoutOption = "30s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Change leases even if a live worker holds them: it loses them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Change leases without asking.")] = False,
    as_json: output.JsonFlag = False,
) -> ChangeMode:
    """Create the `ChangeMode` from the options."""
    return ChangeMode(arguments.seconds("--lease-timeout", lease_timeout), dry_run, force, yes, as_json)


Mode: TypeAlias = Annotated[ChangeMode, Group(change_mode)]
