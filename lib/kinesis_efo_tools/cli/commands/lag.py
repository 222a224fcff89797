"""Declares the options and the help text of ``kinesis-efo lag``."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.arguments import TimeoutOption
from kinesis_efo_tools.cli.declaring import command

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo lag -m lake.json --watch"))
class Lag:
    """Show each shard, the slowest first: its position, whether the position advances, its unread records, and its lag in seconds.

    The positions come from the run itself if it can be reached, else from the lease table, which is some seconds old. Watches the leases
    for some seconds, to find out which owners are alive. With --json and --watch, each report is one line. Exit code 5 if some streams are
    missing because their shards could not be listed.
    """

    aws: arguments.Aws
    manifest: Annotated[
        list[str],
        arguments.manifest_option(
            "An application's manifest: a path, ssm:///name or s3://bucket/key; may be repeated. On the driver's host, for "
            "a query without a lease table: the ARNs of its consumers, or of the streams that it polls."
        ),
    ]
    stream: arguments.StreamsOption = None
    again: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until interrupted.")] = False
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between two reports, with --watch.")] = "5s"
    count: Annotated[
        int,
        typer.Option(
            min=0,
            help="Count up to this many unread records per shard, with GetRecords, which shares its limits with polling "
            "readers. 0 makes no calls: the seconds are then an upper bound.",
        ),
    ] = 100
    lease_timeout: TimeoutOption = "15s"  # Runs renew their leases at least every 10 s
    above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="DURATION",
            help=f"Exit with code {output.ExitCode.BEHIND.value} if a shard is further behind, or its lag is unknown.",
        ),
    ] = None
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.lag import show_lag

        show_lag(self)
