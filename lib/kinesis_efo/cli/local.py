"""``kinesis-efo local``: runs the local AWS as a process. Needs the extra ``local``."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from dataclasses import fields
from typing import Annotated, Any

import typer

from kinesis_efo.local import LocalAws, Settings

TLS_URL = "KINESIS_EFO_LOCAL_TLS_URL"
"""Names the TLS port for whoever wants it; no SDK reads it."""


def _settings(pairs: list[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs into typed settings."""
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in kinds:
            raise typer.BadParameter(
                f"{pair!r} is not a setting; write NAME=VALUE with one of: {', '.join(sorted(kinds))}"
            )
        try:
            value = text if kinds[name] == "str" else json.loads(text)
        except ValueError:
            value = text
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "bool": isinstance(value, bool),
            "int": number and isinstance(value, int),
            "str": isinstance(value, str),
        }
        if not fits.get(kinds[name], number):
            wanted = {"bool": "true or false", "int": "a whole number"}.get(kinds[name], "a number")
            raise typer.BadParameter(f"setting {name} must be {wanted}; got {text!r}")
        found[name] = value
    return found


def _ports(port: int, tls_port: int | None) -> str:
    return str(port) if tls_port is None else f"{port} and {tls_port}"


def local(
    host: Annotated[
        str, typer.Option(help="Address to bind. Any but loopback admits others: nothing is authenticated.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 4566,
    tls_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port for TLS as well; 0 picks a free one. The certificate is made at the start."
        ),
    ] = None,
    region: Annotated[str, typer.Option(help="Region for requests that name none.")] = "us-east-1",
    max_concurrent_streams: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Most open requests of an HTTP/2 connection.", show_default="5, as the real one"
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of kinesis_efo.local.Settings, such as subscription_seconds=10.",
        ),
    ] = None,
) -> None:
    """Serve Kinesis with Enhanced Fan-Out, and every other AWS service, on this machine until interrupted.

    Both ports speak HTTP/1.1 and HTTP/2.
    """
    pairs = setting or []
    if max_concurrent_streams is not None:
        pairs = [*pairs, f"max_concurrent_streams={max_concurrent_streams}"]
    try:
        settings = Settings(**{"region": region, **_settings(pairs)})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    # A handler runs in the main thread, but any thread may get the signal, and the main one would not wake up.
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.set_wakeup_fd(ask)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    aws = LocalAws(settings=settings, host=host, port=port, tls_port=tls_port)
    try:
        aws.start()
    except OSError as error:
        typer.echo(
            f"kinesis-efo local cannot listen on {host}:{_ports(port, tls_port)}: {error.strerror or error}; "
            f"choose another {'--port' if tls_port is None else '--port, --tls-port'} or --host",
            err=True,
        )
        raise typer.Exit(1) from None
    # A shell can evaluate these lines. SDKs stay with the port in the clear unless they are told the other one.
    for name, value in aws.environment.items():
        typer.echo(f"export {name}={shlex.quote(value)}")
    if tls_port is not None:
        typer.echo(f"export {TLS_URL}={aws.tls_endpoint_url}")
    sys.stdout.flush()
    os.read(asked, 1)
    aws.stop()
