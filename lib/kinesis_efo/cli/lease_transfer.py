"""``kinesis-efo leases export`` and ``import-kcl``: write leases to a file, and take over those of a KCL application."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kinesis_efo.cli import arguments, output
from kinesis_efo.cli.lease_access import Leases, opened
from kinesis_efo.cli.lease_guard import ChangeMode, Plan, change, changes_leases
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

    async def read() -> tuple[Leases, Scan]:
        async with opened(aws, manifest) as application:
            return application, await application.table.scan()

    application, scan = asyncio.run(read())
    _require_complete("an export", scan)
    document = {
        "application": application.manifest.application,
        "leaseTable": application.manifest.lease_table,
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


@changes_leases
def import_kcl(
    aws: AwsSettings,
    mode: ChangeMode,
    manifest: arguments.ManifestOption,
    from_table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="The KCL application's lease table, which bears its application name."),
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
            help="Stream of the rows that name only a shard, if the application has several streams.",
        ),
    ] = None,
) -> None:
    """Take over the positions of a KCL application. Stop it first; then start the query with startingPosition=LEASES."""
    if (from_table is None) == (from_file is None):
        raise ConfigurationError("import-kcl needs --from-table or --from-file, one of them")
    now_ms = round(SystemClock().time() * 1000)

    async def import_leases() -> None:
        async with opened(aws, manifest) as application:
            keys = source_keys(application.manifest, stream)
            file_scan = Scan() if from_file is None else Scan(read_file(from_file))
            source = None if from_table is None else await _source_table(application, from_table)

            def plan(scan: Scan, source_scan: Scan) -> Plan:
                _require_complete("an import", source_scan)
                rows = (source_scan if source else file_scan).leases
                found = lease_edits.imported(list(rows.values()), keys, scan.leases, application.keys, now_ms)
                if len(found.skipped) == len(rows):
                    raise ConfigurationError(_no_rows(application, found.skipped, str(from_table or from_file)))
                remarks = [f"not imported, of no stream of this application: {key}" for key in found.skipped]
                remarks += [f"{key} begins now: KCL had stored no position" for key in found.begun_now]
                return Plan(found.edits, remarks)

            await change(application.table, plan, application.selects, mode, source)

    asyncio.run(import_leases())


async def _source_table(application: Leases, name: str) -> LeaseTable:
    if name == application.manifest.lease_table:
        raise ConfigurationError(
            f"{name} is the application's own lease table: --from-table must name that of the KCL application"
        )
    dynamodb = await application.access.client("dynamodb")
    table = LeaseTable(dynamodb, name, declared_by="the KCL application of that name")
    await table.check()
    return table


def _no_rows(application: Leases, skipped: list[str], source: str) -> str:
    message = f"{source} has no lease of a stream of application {application.manifest.application}: "
    if not skipped:
        return message + "it has no leases; name the table or file of the KCL application that read these streams"
    names = ", ".join(sorted(application.manifest.streams))
    message += f"its keys are such as {skipped[0]!r}, and the application reads {names}; "
    if ":" in skipped[0]:
        return message + "name the table or file of the KCL application that read these streams"
    return message + "say with --stream to which of them the shards belong"


def _require_complete(what: str, scan: Scan) -> None:
    if scan.unreadable:
        reasons = "; ".join(scan.unreadable.values())
        raise ConfigurationError(f"{what} would not be complete: {reasons}; correct or delete these rows")
