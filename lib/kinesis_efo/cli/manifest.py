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
from kinesis_efo.cli.findings import report
from kinesis_efo.manifest import Manifest
from kinesis_efo.manifest_schema import SCHEMA
from kinesis_efo.operate.access import Access
from kinesis_efo.operate.checkup import consumer, stream
from kinesis_efo.operate.lease_checkup import lease_table
from kinesis_efo.options import AwsSettings


def show(*, aws: AwsSettings, manifest: str, as_json: bool) -> None:
    """Carry out the command, with its options as `commands.manifest` declares them."""
    found = arguments.load(manifest, aws)
    output.answer(as_json, {**found.document(found.lease_table), "source": found.source}, lambda: _view(found))


def check(*, aws: AwsSettings, manifest: str, as_json: bool) -> None:
    """Carry out the command, with its options as `commands.manifest` declares them."""
    found = arguments.load(manifest, aws)

    async def examine() -> list[Any]:
        async with Access(aws, found.region) as access:
            checks = [
                check(access, ref)
                for ref in found.streams.values()
                for check in ((stream,) if ref.polled else (stream, consumer))
            ]
            return [*await asyncio.gather(*checks), await lease_table(access, found)]

    report(as_json, asyncio.run(examine()))


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
