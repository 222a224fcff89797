"""``kinesis-efo manifest``: shows an application's manifest, and checks that AWS has the resources that it names. Its other commands
are in modules of their own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.commands.manifest import Check, Show
from kinesis_efo.cli.findings import report
from kinesis_efo.manifest import Manifest
from kinesis_efo.manifest_schema import SCHEMA
from kinesis_efo.operate.access import Access
from kinesis_efo.operate.checkup import consumer, stream
from kinesis_efo.operate.lease_checkup import lease_table


def show(given: Show) -> None:
    """Carry out the command."""
    found = arguments.load(given.manifest, given.aws)
    output.answer(given.as_json, {**found.document(found.lease_table), "source": found.source}, lambda: _view(found))


def check(given: Check) -> None:
    """Carry out the command."""
    found = arguments.load(given.manifest, given.aws)

    async def examine() -> list[Any]:
        async with Access(given.aws, found.region) as access:
            checks = [
                check(access, ref)
                for ref in found.streams.values()
                for check in ((stream,) if ref.polled else (stream, consumer))
            ]
            return [*await asyncio.gather(*checks), await lease_table(access, found)]

    report(given.as_json, asyncio.run(examine()))


def schema() -> None:
    """Carry out the command."""
    typer.echo(json.dumps(SCHEMA, indent=2))


def _view(found: Manifest) -> RenderableType:
    head = output.table(
        ("manifest", found.source),
        [
            ("application", found.application),
            ("environment", found.environment),
            ("region", found.region),
            ("lease table", found.lease_table),
        ],
    )
    streams = output.table(
        ("stream", "name in Kinesis", "consumer"),
        [(name, ref.stream_name, ref.consumer_arn or "none: it is polled") for name, ref in found.streams.items()],
    )
    return Group(head, Text(), streams)
