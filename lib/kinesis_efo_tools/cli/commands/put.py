"""Declares the options and the help text of ``kinesis-efo put``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import command

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo put -s orders --key-field customer orders.jsonl"))
class Put:
    """Write each line, or each file, as one record. Without a key, records are spread over the shards.

    Returns once Kinesis has acknowledged every record. After an error or Ctrl-C, prints how many were written.
    """

    aws: arguments.Aws
    stream: arguments.StreamOption
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of lines; standard input if none is given.", show_default=False),
    ] = None
    manifest: arguments.OptionalManifestOption = None
    whole: Annotated[bool, typer.Option("--whole", help="One record per file, instead of one per line.")] = False
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="Partition key of every record.")] = None
    key_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of each record, a JSON object, that is its partition key.")
    ] = None
    ordered: Annotated[bool, typer.Option("--ordered", help="Keep the order of records with the same key.")] = False
    aggregate: Annotated[
        bool, typer.Option("--aggregate", help="Pack small records into KPL aggregates; readers must unpack them.")
    ] = False
    skip_refused: Annotated[
        bool, typer.Option("--skip-refused", help="Skip records that can never be written, and exit with code 1.")
    ] = False
    retry_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="How long writing may fail, without any progress, before it ends.")
    ] = "1m"
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.put import put

        put(self)
