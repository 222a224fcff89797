"""``kinesis-efo local``: runs the local AWS as a process. Needs the extra ``local``."""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import fields
from typing import Annotated, Any

import typer

from kinesis_efo.local import LocalAws, Settings


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


def local(
    host: Annotated[
        str, typer.Option(help="Address to bind. Any but loopback admits others: nothing is authenticated.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 4566,
    region: Annotated[str, typer.Option(help="Region for requests that name none.")] = "us-east-1",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any setting of kinesis_efo.local.Settings, such as subscription_seconds=10.",
        ),
    ] = None,
) -> None:
    """Serve Kinesis with Enhanced Fan-Out, and every other AWS service, on this machine until interrupted."""
    try:
        settings = Settings(**{"region": region, **_settings(setting or [])})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    aws = LocalAws(settings=settings, host=host, port=port)
    try:
        aws.start()
    except OSError as error:
        typer.echo(
            f"kinesis-efo local cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host",
            err=True,
        )
        raise typer.Exit(1) from None
    # A shell can evaluate these lines.
    for name, value in aws.environment.items():
        typer.echo(f"export {name}={value}")
    sys.stdout.flush()
    stopping.wait()
    aws.stop()
