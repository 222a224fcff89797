"""Declares the subcommands of ``kinesis-efo leases``, with their options and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.arguments import ShardsOption
from kinesis_efo_tools.cli.change_mode import Mode
from kinesis_efo_tools.cli.declaring import command

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="See an application's leases, and change them by hand."
)


@command(app.command("list", epilog="Example: kinesis-efo leases list -m lake.json"))
class List:
    """List the owner of the lease on each stream, and how far each shard was read. `kinesis-efo lag` shows whether an owner is alive."""

    aws: arguments.Aws
    manifest: arguments.ManifestOption
    stream: arguments.StreamsOption = None
    shard: ShardsOption = None
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.leases import list_leases

        list_leases(self)


@command(app.command(epilog="Example: kinesis-efo leases release -m lake.json --dry-run"))
class Release:
    """Free the leases of dead runs, so that a restart need not wait until they expire."""

    mode: Mode
    aws: arguments.Aws
    manifest: arguments.ManifestOption
    stream: arguments.StreamsOption = None

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.leases import release

        release(self)


@command(app.command(epilog="Example: kinesis-efo leases reset -m lake.json -s orders --to LATEST"))
class Reset:
    """Move leases to a position, where a new query with startingPosition=LEASES, or a KCL application, then starts.

    Without --shard, replaces all rows of a stream with a row for each shard that is open at that position; the children of these shards get
    rows once they are read. A query that has a checkpoint is not affected.
    """

    mode: Mode
    aws: arguments.Aws
    manifest: arguments.ManifestOption
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="TRIM_HORIZON, LATEST, AT_TIMESTAMP:<ISO 8601 or epoch ms>; "
            "with --shard also AFTER:<sequence number> and SHARD_END.",
        ),
    ]
    stream: arguments.StreamsOption = None
    shard: ShardsOption = None

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.leases import reset

        reset(self)


@command(app.command(epilog="Example: kinesis-efo leases export -m lake.json -o leases.json"))
class Export:
    """Export the checkpoints of all shards as JSON, in the form of `aws dynamodb scan`; `import-kcl --from-file` reads it."""

    aws: arguments.Aws
    manifest: arguments.ManifestOption
    to: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")] = None

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.lease_transfer import export

        export(self)


@command(app.command("import-kcl", epilog="Example: kinesis-efo leases import-kcl -m lake.json --from-table kcl-app"))
class ImportKcl:
    """Take over the positions of a KCL application. Stop it first; then start the query with startingPosition=LEASES."""

    mode: Mode
    aws: arguments.Aws
    manifest: arguments.ManifestOption
    from_table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="The KCL application's lease table, which has the KCL application's name."),
    ] = None
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An export, or the output of `aws dynamodb scan`.")
    ] = None
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME",
            help="Stream of the rows that name only a shard, if the application has several streams.",
        ),
    ] = None
    initial_position: Annotated[
        str | None,
        typer.Option(
            "--initial-position",
            metavar="POSITION",
            help="The KCL application's initial position, for shards that it has not begun: TRIM_HORIZON, LATEST, "
            "AT_TIMESTAMP:<ISO 8601 or epoch ms>.",
        ),
    ] = None

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.lease_transfer import import_kcl

        import_kcl(self)


@command(app.command("export-kcl", epilog="Example: kinesis-efo leases export-kcl -m lake.json --table kcl-app"))
class ExportKcl:
    """Write positions to a KCL application's table, so that it continues exactly where the query stopped. Stop the query first."""

    mode: Mode
    aws: arguments.Aws
    manifest: arguments.ManifestOption
    table: Annotated[
        str,
        typer.Option(metavar="TABLE", help="The KCL application's lease table, which has the KCL application's name."),
    ]
    multi_stream: Annotated[
        bool, typer.Option("--multi-stream", help="The KCL application reads several streams (MultiStreamTracker).")
    ] = False
    stream: arguments.StreamsOption = None

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.lease_transfer import export_kcl

        export_kcl(self)
