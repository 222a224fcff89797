"""``kinesis-efo leases``: its commands and their options. The work is imported when it is called, so that help and completion are quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.arguments import ShardsOption
from kinesis_efo.cli.change_mode import ChangeMode, changes_leases
from kinesis_efo.options import AwsSettings

leases = typer.Typer(no_args_is_help=True, help="See an application's leases, and change them by hand.")


@leases.command("list")
@arguments.with_aws
def list_leases(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    stream: arguments.StreamsOption = None,
    shard: ShardsOption = None,
    as_json: output.JsonFlag = False,
) -> None:
    """List who holds the lease on each stream, and how far each shard was read. `lag` tells whether an owner is alive."""
    from kinesis_efo.cli.leases import list_leases as run

    run(aws=aws, manifest=manifest, stream=stream, shard=shard, as_json=as_json)


@leases.command()
@changes_leases
def release(
    aws: AwsSettings,
    mode: ChangeMode,
    manifest: arguments.ManifestOption,
    stream: arguments.StreamsOption = None,
) -> None:
    """Free the leases of runs that are dead, so that a restart need not wait until they expire."""
    from kinesis_efo.cli.leases import release as run

    run(aws=aws, mode=mode, manifest=manifest, stream=stream)


@leases.command()
@changes_leases
def reset(
    aws: AwsSettings,
    mode: ChangeMode,
    manifest: arguments.ManifestOption,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="TRIM_HORIZON, LATEST, AT_TIMESTAMP:<ISO 8601 or epoch ms> (local time without a zone); "
            "with --shard also AFTER:<sequence number> and SHARD_END.",
        ),
    ],
    stream: arguments.StreamsOption = None,
    shard: ShardsOption = None,
) -> None:
    """Move leases to a position: where a new query with startingPosition=LEASES, or a KCL application, begins.

    For a whole stream, the table then has the rows of the shards that are open at that position; the shards that continue
    them get their rows once they are read. A query that has a checkpoint is not affected.
    """
    from kinesis_efo.cli.leases import reset as run

    run(aws=aws, mode=mode, manifest=manifest, to=to, stream=stream, shard=shard)


@leases.command("export")
@arguments.with_aws
def export(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")] = None,
) -> None:
    """Export the checkpoints of all shards as JSON, in the form of `aws dynamodb scan`; `import-kcl --from-file` reads it."""
    from kinesis_efo.cli.lease_transfer import export as run

    run(aws=aws, manifest=manifest, to=to)


@leases.command("import-kcl")
@changes_leases
def import_kcl(
    aws: AwsSettings,
    mode: ChangeMode,
    manifest: arguments.ManifestOption,
    from_table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="The KCL application's lease table, which bears its application name."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An export, or the output of `aws dynamodb scan`.")
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME",
            help="Stream of the rows that name only a shard, if the application has several streams.",
        ),
    ] = None,
) -> None:
    """Take over the positions of a KCL application. Stop it first; then start the query with startingPosition=LEASES."""
    from kinesis_efo.cli.lease_transfer import import_kcl as run

    run(aws=aws, mode=mode, manifest=manifest, from_table=from_table, from_file=from_file, stream=stream)


@leases.command("export-kcl")
@changes_leases
def export_kcl(
    aws: AwsSettings,
    mode: ChangeMode,
    manifest: arguments.ManifestOption,
    table: Annotated[
        str, typer.Option(metavar="TABLE", help="The KCL application's lease table, which bears its application name.")
    ],
    multi_stream: Annotated[
        bool, typer.Option("--multi-stream", help="The KCL application reads several streams (MultiStreamTracker).")
    ] = False,
    stream: arguments.StreamsOption = None,
) -> None:
    """Write positions to a KCL application's table, so that it goes on exactly where the query stopped. Stop the query first."""
    from kinesis_efo.cli.lease_transfer import export_kcl as run

    run(aws=aws, mode=mode, manifest=manifest, table=table, multi_stream=multi_stream, stream=stream)
