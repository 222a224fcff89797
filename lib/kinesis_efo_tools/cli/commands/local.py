"""Declares the subcommands of ``kinesis-efo local``, with their options and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo_tools.cli.declaring import command
from kinesis_efo_tools.cli.extras import needed_by

app = typer.Typer(invoke_without_command=True, add_completion=False)


@command(app.callback(epilog="Example: kinesis-efo local --stream orders:2 --application lake"))
class Serve:
    """Serve Kinesis with Enhanced Fan-Out, and every other AWS service, on this machine until interrupted.

    With --stream, also creates an application's resources, and prints the next steps. Both ports support HTTP/1.1 and HTTP/2.
    """

    context: typer.Context
    host: Annotated[
        str, typer.Option(help="Address to bind. Any but loopback admits others: nothing is authenticated.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 4566
    tls_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port for TLS as well; 0 picks a free one. The certificate is made at the start."
        ),
    ] = None
    region: Annotated[
        str | None,
        typer.Option(help="Region for requests that name none.", show_default="us-east-1, or the manifest's"),
    ] = None
    stream: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME[:SHARDS]",
            help="Declare this stream, a consumer on it, a lease table and a manifest; may be repeated.",
        ),
    ] = None
    application: Annotated[
        str | None,
        typer.Option(
            "--application",
            "-a",
            metavar="NAME",
            help="The application that reads the streams; its consumers' name.",
            show_default="app",
        ),
    ] = None
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="FILE",
            help="Declare what this manifest names, with its ARNs; --stream says how many shards, else 1.",
        ),
    ] = None
    manifest_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the manifest is written.", show_default="<application>-local.json"),
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep streams, consumers and DynamoDB's tables in this directory, from its end to the next start.",
            show_default=False,
        ),
    ] = None
    ready_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write this file once everything is declared, and remove it at the end.",
            show_default=False,
        ),
    ] = None
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; return once everything is declared.")
    ] = False
    env: Annotated[
        bool,
        typer.Option("--env", help='Print nothing but `export` lines: eval "$(kinesis-efo local --detach --env)".'),
    ] = False
    max_concurrent_streams: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Most open requests of an HTTP/2 connection.", show_default="5, as the real one"
        ),
    ] = None
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of kinesis_efo_local.Settings, such as subscription_seconds=10.",
        ),
    ] = None

    def __call__(self) -> None:
        if self.context.invoked_subcommand is not None:
            return
        with needed_by("local", "local"):
            from kinesis_efo_tools.cli.local import serve

        serve(self)


@command(app.command(epilog="Example: kinesis-efo local stop --all"))
class Stop:
    """Stop a local AWS that was started in the background with --detach. Its data is lost unless it has a data directory."""

    port: Annotated[int | None, typer.Option(help="The one on this port.", show_default="the only one that runs")] = (
        None
    )
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False

    def __call__(self) -> None:
        with needed_by("local", "local"):
            from kinesis_efo_tools.cli.local import stop

        stop(self)
