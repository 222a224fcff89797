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

    Attributes:
        lease_timeout: Seconds without a renewal after which a lease owner counts as dead.
        dry_run: Only show the changes.
        force: Change leases even if a live worker owns them.
        yes: Do not ask for confirmation.
        as_json: Print the result as JSON.
    """

    lease_timeout: float
    dry_run: bool
    force: bool
    yes: bool
    as_json: bool


def change_mode(
    *,
    # A KCL application with a failover time of one minute renews its leases every 20 s, so 30 s is enough to observe a renewal.
    lease_timeout: arguments.TimeoutOption = "30s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Change leases even if a live worker holds them: it loses them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Change leases without asking.")] = False,
    as_json: output.JsonFlag = False,
) -> ChangeMode:
    """Return the options for changing leases."""
    return ChangeMode(arguments.seconds("--lease-timeout", lease_timeout), dry_run, force, yes, as_json)


Mode: TypeAlias = Annotated[ChangeMode, Group(change_mode)]
