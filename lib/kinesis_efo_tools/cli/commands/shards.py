"""Declares the options and the help text of ``kinesis-efo shards``."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import command

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo shards -m lake.json --open"))
class Shards:
    """Show the shards of an application's streams, each below its parent.

    Exit code 5 if some streams are missing because their shards could not be listed.
    """

    aws: arguments.Aws
    manifest: arguments.ManifestOption
    stream: arguments.StreamsOption = None
    open_only: Annotated[bool, typer.Option("--open", help="Only open shards: those that take records now.")] = False
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.shards import shards

        shards(self)
