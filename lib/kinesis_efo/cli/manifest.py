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
from kinesis_efo.cli.manifest_init import init
from kinesis_efo.manifest import Manifest
from kinesis_efo.manifest_schema import SCHEMA
from kinesis_efo.operate.access import Access
from kinesis_efo.operate.checkup import consumer, stream
from kinesis_efo.operate.lease_checkup import lease_table
from kinesis_efo.options import AwsSettings

manifest = typer.Typer(no_args_is_help=True, help="Write an application's manifest, show it, or check it against AWS.")
manifest.command()(init)


@manifest.command()
@arguments.with_aws
def show(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    as_json: output.JsonFlag = False,
) -> None:
    """Validate a manifest, and show what it says."""
    found = arguments.load(manifest, aws)
    output.answer(as_json, {**found.document(found.lease_table), "source": found.source}, lambda: _view(found))


@manifest.command()
@arguments.with_aws
def check(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    as_json: output.JsonFlag = False,
) -> None:
    """Check that AWS has every stream, consumer and table that a manifest names. Exit code 1 if a check failed."""
    found = arguments.load(manifest, aws)

    async def examine() -> list[Any]:
        async with Access(aws, found.region) as access:
            checks = [check(access, ref) for ref in found.streams.values() for check in (stream, consumer)]
            return [*await asyncio.gather(*checks), await lease_table(access, found)]

    report(as_json, asyncio.run(examine()))


@manifest.command()
def schema() -> None:
    """Print the JSON Schema of manifests, for editors and validators."""
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
        [(name, ref.stream_name, ref.consumer_arn) for name, ref in found.streams.items()],
    )
    return Group(head, Text(), streams)
