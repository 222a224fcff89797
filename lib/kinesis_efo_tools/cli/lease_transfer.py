"""``kinesis-efo leases export``, ``import-kcl`` and ``export-kcl``: copies leases to files, and from and to a KCL's lease table."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from math import floor

import typer

from kinesis_efo.errors import ConfigurationError, StreamReplacedError, UsageError
from kinesis_efo.kinesis.topology import Topology, explained, identified
from kinesis_efo.leases.store import Scan
from kinesis_efo.leases.strays import strays
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.leases import Export, ExportKcl, ImportKcl
from kinesis_efo_tools.cli.lease_access import Leases, opened
from kinesis_efo_tools.cli.lease_guard import Plan, change
from kinesis_efo_tools.operate import lease_edits
from kinesis_efo_tools.operate.kcl_rows import KclRows, Naming, kcl_rows, stream_id
from kinesis_efo_tools.operate.lease_source import read_file, require_one_form, source_keys


def export(given: Export) -> None:

    async def read() -> tuple[Leases, Scan]:
        async with opened(given.aws, given.manifest) as application:
            return application, await application.table.scan()

    application, scan = asyncio.run(read())
    _require_complete("an export", scan)
    rows = [lease for _, lease in sorted(scan.leases.items()) if not lease.is_run]
    document = {
        "application": application.manifest.application,
        "leaseTable": application.manifest.lease_table,
        "exportedAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "Count": len(rows),
        "Items": [lease.to_item() for lease in rows],
    }
    text = json.dumps(document, indent=2)
    if given.to is None:
        typer.echo(text)
        return
    try:
        given.to.write_text(text + "\n")
    except OSError as error:
        raise ConfigurationError(f"--output {given.to} cannot be written: {error.strerror}") from None
    output.remark(f"{output.count(len(rows), 'lease')} written to {given.to}")


def import_kcl(given: ImportKcl) -> None:
    if (given.from_table is None) == (given.from_file is None):
        raise UsageError("import-kcl needs --from-table or --from-file, one of them")

    async def import_leases() -> None:
        async with opened(given.aws, given.manifest) as application:
            keys = source_keys(application.manifest, given.stream)
            now_ms = floor(await application.kinesis_time() * 1000)
            file_scan = Scan() if given.from_file is None else Scan(read_file(given.from_file))
            source = None if given.from_table is None else await _source_table(application, given.from_table)

            def plan(scan: Scan, source_scan: Scan) -> Plan:
                _require_complete("an import", source_scan)
                rows = (source_scan if source else file_scan).leases
                require_one_form(rows, keys, str(given.from_table or given.from_file))
                found = lease_edits.imported(list(rows.values()), keys, scan.leases, application.keys, now_ms)
                if len(found.skipped) == len(rows):
                    raise ConfigurationError(
                        _no_rows(application, found.skipped, str(given.from_table or given.from_file))
                    )
                remarks = [f"not imported, of no stream of this application: {key}" for key in found.skipped]
                remarks += [f"{key} begins now: KCL had stored no position" for key in found.begun_now]
                return Plan(found.edits, remarks)

            await change(application.table, plan, application.guards, given.mode, source)

    asyncio.run(import_leases())


def export_kcl(given: ExportKcl) -> None:

    async def export_leases() -> None:
        async with opened(given.aws, given.manifest, given.stream) as application:
            names = sorted(application.manifest.streams)
            if not given.multi_stream and len(names) > 1:
                raise UsageError(
                    f"a KCL application without --multi-stream reads one stream, and this one reads {', '.join(names)}: "
                    "say with --stream which one, or give --multi-stream"
                )
            target = await _source_table(application, given.table, "--table")
            scan = await application.table.scan()
            _require_complete("an export", scan)
            made = {name: await _kcl_rows(application, scan, name, multi_stream=given.multi_stream) for name in names}

            def plan(present: Scan, _: Scan) -> Plan:
                _require_complete("an export", present)
                edits = [
                    edit
                    for naming, found in made.values()
                    for edit in lease_edits.exact(
                        {key: row for key, row in present.leases.items() if naming.owns(key)}, found.rows
                    )
                ]
                return Plan(edits, [remark for _, found in made.values() for remark in found.remarks])

            # A live run would be ahead of the rows at once.
            await change(target, plan, lambda _lease: True, given.mode, application.table)

    asyncio.run(export_leases())


async def _kcl_rows(application: Leases, scan: Scan, name: str, *, multi_stream: bool) -> tuple[Naming, KclRows]:
    ref = application.manifest.streams[name]
    kinesis = await application.access.client("kinesis")
    rows = {key.shard: row for key, row in application.keys.by_shard(scan.leases).items() if key.stream == name}
    if not rows:
        raise ConfigurationError(
            f"{application.table.label} has no checkpoint of stream {name}: the application has not read it"
        )
    topology, source = Topology(kinesis), application.manifest.source
    if what := strays(rows.values(), await identified(topology, ref.stream_arn)):
        raise StreamReplacedError(
            f"{application.table.label}: {what}. A KCL application would begin at a place that means nothing"
        )
    shards = await explained(topology.shards(ref.stream_arn), ref, source)
    naming = Naming(
        stream_id(ref, await explained(topology.created(ref.stream_arn), ref, source)) if multi_stream else None
    )
    by_id = {shard.shard_id: shard for shard in shards}
    making = kcl_rows(kinesis, ref.stream_arn, rows, by_id, naming)
    return naming, await explained(making, ref, source)


async def _source_table(application: Leases, name: str, option: str = "--from-table") -> LeaseTable:
    if name == application.manifest.lease_table:
        raise UsageError(f"{name} is the application's own lease table: {option} must name that of the KCL application")
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
