"""Declares the subcommands of ``kinesis-efo manifest``, with their options and help texts."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import command

STDOUT = "-"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Write an application's manifest, show it, or check it against AWS.",
)


@command(app.command(epilog="Example: kinesis-efo manifest init -a lake -s orders --table leases"))
class Init:
    """Write a manifest from the resources in an account. Does not create or register resources."""

    aws: arguments.Aws
    application: Annotated[str, typer.Option("--application", "-a", metavar="NAME", help="The application.")]
    stream: Annotated[
        list[str],
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME[=STREAM]",
            help="A stream: the name that options use for it, and its name in Kinesis, its ARN or that of its consumer. Repeat it.",
        ),
    ]
    table: Annotated[str, typer.Option("--table", metavar="NAME", help="The lease table.")]
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="The consumer on each stream; needed where there are several."),
    ] = None
    environment: Annotated[
        str, typer.Option("--environment", metavar="NAME", help="The environment, for metrics and messages.")
    ] = "default"
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Where to write it; - is standard output.")
    ] = STDOUT
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.manifest import init

        init(self)


@command(app.command(epilog="Example: kinesis-efo manifest show -m lake.json --json"))
class Show:
    """Validate a manifest, and show its contents."""

    aws: arguments.Aws
    manifest: arguments.ManifestOption
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.manifest import show

        show(self)


@command(app.command(epilog="Example: kinesis-efo manifest check -m lake.json"))
class Check:
    """Check that AWS has every stream, consumer and table that a manifest names. Exit code 1 if a check failed."""

    aws: arguments.Aws
    manifest: arguments.ManifestOption
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.manifest import check

        check(self)


@app.command(epilog="Example: kinesis-efo manifest schema > manifest.schema.json")
def schema() -> None:
    """Print the JSON Schema of manifests, for editors and validators."""
    from kinesis_efo_tools.cli.manifest import schema as run

    run()
