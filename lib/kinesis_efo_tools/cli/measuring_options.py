"""Options of ``kinesis-efo doctor --subscribe``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from kinesis_efo.errors import UsageError
from kinesis_efo_tools.cli import arguments
from kinesis_efo_tools.cli.declaring import Group


@dataclass(frozen=True, slots=True)
class Measuring:
    """The options for measuring subscriptions.

    Attributes:
        seconds: How long to read over each transport.
        take_over: Whether to subscribe even if a run reads with the consumer. That run is then disconnected.
        lease_timeout: Seconds without a renewal after which a lease owner counts as dead.
    """

    seconds: float
    take_over: bool
    lease_timeout: float


def measuring(
    *,
    subscribe: Annotated[
        bool,
        typer.Option(
            "--subscribe", help="Read one shard over HTTP/2 and over HTTP/1.1, with the application's consumer."
        ),
    ] = False,
    duration: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="With --subscribe: how long to read over each.")
    ] = "10s",
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="With --subscribe: do it even while a run reads the stream: it is disconnected."
        ),
    ] = False,
    lease_timeout: arguments.TimeoutOption = "15s",  # Runs renew their leases at least every 10 s
) -> Measuring | None:
    """Return the options for measuring subscriptions; None without `--subscribe`.

    Raises UsageError if an option is not a duration, or `--take-over` is given without `--subscribe`.
    """
    wanted = Measuring(
        arguments.seconds("--for", duration), take_over, arguments.seconds("--lease-timeout", lease_timeout)
    )
    if take_over and not subscribe:
        raise UsageError("--take-over goes with --subscribe: give both")
    return wanted if subscribe else None


MeasuringOption: TypeAlias = Annotated[Measuring | None, Group(measuring)]
