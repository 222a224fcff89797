"""Declares the options and the help text of ``kinesis-efo doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from kinesis_efo_tools.cli import arguments, output
from kinesis_efo_tools.cli.declaring import command
from kinesis_efo_tools.cli.measuring_options import MeasuringOption

app = typer.Typer(add_completion=False)


@command(app.command(epilog="Example: kinesis-efo doctor -m ssm:///kinesis-efo/dev/lake"))
class Doctor:
    """Check everything a query needs: credentials, manifest, streams, consumers, leases, quotas, clock, Spark and Java.

    The result of each check is passed, failed or unknown; a failed check shows the fix. Does not register or write anything. Run it where
    the job runs, or with its role. Exit code 1 if a check failed; an unknown result is not a failure.

    With --checkpoint, it also compares a query's checkpoint with the manifest, the streams and the leases. It reports streams that are new,
    missing, renamed or replaced, records that have expired, and whether a micro-batch will be repeated.

    With --subscribe, it also reads one shard of the first stream for some seconds over HTTP/2, then over HTTP/1.1, and shows the HTTP/2
    limits that Kinesis announced. Without it, no check subscribes.
    """

    wanted: MeasuringOption
    aws: arguments.Aws
    manifest: arguments.ManifestOption
    stream: arguments.StreamsOption = None
    polling: Annotated[bool, typer.Option("--polling", help="Check for a query with readMode=polling.")] = False
    subscribe_anyway: Annotated[
        bool,
        typer.Option(
            "--subscribe-anyway",
            help="Try a dry-run subscription even with a live query, at an endpoint that is not AWS' own.",
        ),
    ] = False
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="LOCATION",
            help="Also show what the next start on this checkpointLocation would do: a path, or s3://bucket/prefix.",
        ),
    ] = None
    as_json: output.JsonFlag = False

    def __call__(self) -> None:
        from kinesis_efo_tools.cli.doctor import doctor

        doctor(self)
