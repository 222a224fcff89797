"""``kinesis-efo top``: its options. The work is imported when it is called, so that help and completion are quick."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.options import AwsSettings


@arguments.with_aws
def top(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    stream: arguments.StreamsOption = None,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Time between two looks.")] = "2s",
    web: Annotated[bool, typer.Option("--web", help="Show it as a page for browsers on this machine, too.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the page; 0: any that is free.")] = 0,
    as_json: output.JsonFlag = False,
) -> None:
    """Watch a live run: lag, rates, buffers and subscriptions of each shard, the worst first, and what is slow.

    Asks the run itself, which must be reachable from here, as it is from the driver's host; `lag` needs only the lease table.
    With --json, each look is one line. Ctrl-C ends it.
    """
    from kinesis_efo.cli.top import top as run

    run(aws=aws, manifest=manifest, stream=stream, interval=interval, web=web, port=port, as_json=as_json)
