"""``kinesis-efo manifest``: its commands and their options. The work is imported when it is called, so that help and completion are
quick."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.options import AwsSettings

STDOUT = "-"

manifest = typer.Typer(no_args_is_help=True, help="Write an application's manifest, show it, or check it against AWS.")


@manifest.command()
@arguments.with_aws
def init(
    aws: AwsSettings,
    app: Annotated[str, typer.Option("--app", metavar="NAME", help="The application.")],
    stream: Annotated[
        list[str],
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME[=STREAM]",
            help="A stream: the name that options use for it, and its name in Kinesis, its ARN or that of its consumer. Repeat it.",
        ),
    ],
    table: Annotated[str, typer.Option("--table", metavar="NAME", help="The lease table.")],
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="The consumer on each stream; needed where there are several."),
    ] = None,
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="The environment, for metrics and messages.")
    ] = "default",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Where to write it; - is standard output.")
    ] = STDOUT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a manifest from what exists in an account. Creates and registers nothing."""
    from kinesis_efo.cli.manifest_init import init as run

    run(
        aws=aws,
        app=app,
        stream=stream,
        table=table,
        consumer=consumer,
        environment=environment,
        out=None if out == STDOUT else out,
        force=force,
    )


@manifest.command()
@arguments.with_aws
def show(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    as_json: output.JsonFlag = False,
) -> None:
    """Validate a manifest, and show what it says."""
    from kinesis_efo.cli.manifest import show as run

    run(aws=aws, manifest=manifest, as_json=as_json)


@manifest.command()
@arguments.with_aws
def check(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    as_json: output.JsonFlag = False,
) -> None:
    """Check that AWS has every stream, consumer and table that a manifest names. Exit code 1 if a check failed."""
    from kinesis_efo.cli.manifest import check as run

    run(aws=aws, manifest=manifest, as_json=as_json)


@manifest.command()
def schema() -> None:
    """Print the JSON Schema of manifests, for editors and validators."""
    from kinesis_efo.cli.manifest import schema as run

    run()
