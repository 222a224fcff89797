"""``kinesis-efo shards``: its options. The work is imported when it is called, so that help and completion are quick."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.options import AwsSettings


@arguments.with_aws
def shards(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    stream: arguments.StreamsOption = None,
    open_only: Annotated[bool, typer.Option("--open", help="Only open shards: those that take records now.")] = False,
    as_json: output.JsonFlag = False,
) -> None:
    """Show the shards of an application's streams, each below its parent.

    Exit code 5 if some streams could not be asked for: the others are shown.
    """
    from kinesis_efo.cli.shards import shards as run

    run(aws=aws, manifest=manifest, stream=stream, open_only=open_only, as_json=as_json)
