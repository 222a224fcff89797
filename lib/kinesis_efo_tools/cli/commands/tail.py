"""Declares the options and the help text of ``kinesis-efo tail``."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments
from kinesis_efo_tools.cli.arguments import ShardsOption
from kinesis_efo_tools.cli.declaring import command
from kinesis_efo_tools.operate.record_format import Format

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo tail -s orders --since 10m --grep refund"))
class Tail:
    """Print a stream's records until interrupted. On a terminal, a status line shows rate and lag.

    Without a consumer, it polls with GetRecords, whose limits (five calls and 2 MB per second and shard) all polling programs share.
    """

    aws: arguments.Aws
    stream: arguments.StreamOption
    manifest: arguments.OptionalManifestOption = None
    consumer_arn: Annotated[
        str | None,
        typer.Option(
            "--consumer-arn",
            metavar="ARN",
            help="Consumer to read with, one of your own, not an application's. Without it, tail reads with GetRecords.",
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--since",
            metavar="POSITION",
            help="LATEST, TRIM_HORIZON, a TIME (AT_TIMESTAMP:TIME as well), or a duration ago, such as 10m. A TIME is ISO 8601 "
            "with a time zone (Z is UTC), or epoch milliseconds.",
            show_default="LATEST",
        ),
    ] = None
    last: Annotated[
        int | None,
        typer.Option(min=1, metavar="NUMBER", help="Begin with this many last records of each open shard."),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop at what arrived at this time: as with --from, or now."),
    ] = None
    shard: ShardsOption = None
    key: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only partition keys like this, such as user-*.")
    ] = None
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Only data in which this matches.")] = None
    how: Annotated[Format, typer.Option("--format", help="How records are printed.")] = Format.RAW
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None
    stop_after: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="Stop after this time.")] = None
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Use the consumer even if another reader uses it: that reader is disconnected."
        ),
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Like --format json: one line per record.")] = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.tail import tail

        tail(self)
