"""``kinesis-efo leases export`` and ``import-kcl``: leases out of the table and into it. Part of the group in `leases`."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.lease_access import Leases, opened
from kinesis_efo.cli.lease_guard import Care, Plan, change, guarded
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.store import Scan
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.operate import lease_edits
from kinesis_efo.operate.lease_source import read_file, source_keys
from kinesis_efo.options import AwsSettings


@arguments.with_aws
def export(
    aws: AwsSettings,
    manifest: arguments.ManifestOption,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")] = None,
) -> None:
    """Export all leases as JSON, in the form of `aws dynamodb scan`; `import-kcl --from-file` reads it."""

    async def look() -> tuple[Leases, Scan]:
        async with opened(aws, manifest) as here:
            return here, await here.table.scan()

    here, scan = asyncio.run(look())
    _whole("an export", scan)
    document = {
        "application": here.manifest.application,
        "leaseTable": here.manifest.lease_table,
        "exportedAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "Count": len(scan.leases),
        "Items": [lease.to_item() for _, lease in sorted(scan.leases.items())],
    }
    text = json.dumps(document, indent=2)
    if to is None:
        typer.echo(text)
        return
    try:
        to.write_text(text + "\n")
    except OSError as error:
        raise ConfigurationError(f"--output {to} cannot be written: {error.strerror}") from None
    output.remark(f"{output.count(len(scan.leases), 'lease')} written to {to}")


@guarded
def import_kcl(
    aws: AwsSettings,
    care: Care,
    manifest: arguments.ManifestOption,
    from_table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="The KCL application's lease table: it has KCL's application name."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An export, or the output of `aws dynamodb scan`.")
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            "-s",
            metavar="NAME",
            help="Stream that rows belong to which name only a shard, where the application has several.",
        ),
    ] = None,
) -> None:
    """Take over the positions of a KCL application. Stop it first; then start the query with startingPosition=LEASES."""
    if (from_table is None) == (from_file is None):
        raise ConfigurationError("import-kcl needs --from-table or --from-file, one of them")
    now = round(SystemClock().time() * 1000)

    async def take() -> None:
        async with opened(aws, manifest) as here:
            keys = source_keys(here.manifest, stream)
            on_disk = Scan() if from_file is None else Scan(read_file(from_file))
            source = None if from_table is None else await _other_table(here, from_table)

            def plan(scan: Scan, other: Scan) -> Plan:
                _whole("an import", other)
                rows = (other if source else on_disk).leases
                found = lease_edits.imported(list(rows.values()), keys, scan.leases, here.keys, now)
                if len(found.skipped) == len(rows):
                    raise ConfigurationError(_nothing_of_ours(here, found.skipped, str(from_table or from_file)))
                told = [f"not imported, of no stream of this application: {key}" for key in found.skipped]
                told += [f"{key} begins now: KCL had stored no position" for key in found.begun_now]
                return Plan(found.edits, told)

            await change(here.table, plan, here.selects, care, source=source)

    asyncio.run(take())


async def _other_table(here: Leases, name: str) -> LeaseTable:
    if name == here.manifest.lease_table:
        raise ConfigurationError(f"{name} is the application's own lease table: there is nothing to import")
    table = LeaseTable(await here.access.client("dynamodb"), name, declared_by="the KCL application of that name")
    await table.check()
    return table


def _nothing_of_ours(here: Leases, skipped: list[str], source: str) -> str:
    message = f"{source} has no lease of a stream of application {here.manifest.application}: "
    if not skipped:
        return message + "it has no leases"
    names = ", ".join(sorted(here.manifest.streams))
    message += f"its keys are such as {skipped[0]!r}, and the application reads {names}"
    return f"{message}; say with --stream to which of them the shards belong" if ":" not in skipped[0] else message


def _whole(what: str, scan: Scan) -> None:
    if scan.unreadable:
        raise ConfigurationError(f"{what} would not be complete: " + "; ".join(scan.unreadable.values()))
