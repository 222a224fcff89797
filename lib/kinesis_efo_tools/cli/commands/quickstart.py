"""Declares the options and the help text of ``kinesis-efo quickstart``."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli.declaring import command
from kinesis_efo_tools.cli.extras import needed_by

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo quickstart --rate 100"))
class Quickstart:
    """Read a stream of flights with Spark, on this machine only: needs Java, but no AWS account.

    Starts the local AWS, creates a stream and puts flights into it. Writes first.py into this folder, unless the file exists, and runs it.
    Ctrl-C ends everything.
    """

    rate: Annotated[int, typer.Option(min=1, max=1000, help="Flights that are put each second.")] = 25
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the local AWS; 0 picks a free one.")] = 0

    def __call__(self) -> None:
        with needed_by("quickstart", "spark,local"):
            from kinesis_efo_tools.cli.quickstart import quickstart

        quickstart(self)
