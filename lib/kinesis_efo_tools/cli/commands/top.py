"""Declares the options and the help text of ``kinesis-efo top``."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import command

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo top -m lake.json --web"))
class Top:
    """Watch a live run: the lag, rates, buffers and subscriptions of each shard, worst first, and the causes of lag.

    The figures come from the run itself, which must be reachable from here, for example from the driver's host; `kinesis-efo lag` needs
    only the lease table. With --json, each observation is one line. Ctrl-C ends it.
    """

    aws: arguments.Aws
    manifest: Annotated[
        str,
        arguments.manifest_option(
            "The application's manifest: a path, ssm:///name or s3://bucket/key; or ARNs, as for `lag`."
        ),
    ]
    stream: arguments.StreamsOption = None
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between two observations.")] = "2s"
    web: Annotated[bool, typer.Option("--web", help="Show it as a page for browsers on this machine, too.")] = False
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the page; 0: any that is free.")] = 0
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.top import top

        top(self)
