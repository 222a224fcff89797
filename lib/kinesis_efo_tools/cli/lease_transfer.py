"""``kinesis-efo leases export``, ``import-kcl`` and ``export-kcl``: copies leases to and from files and KCL lease tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import typer

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import ConfigurationError, StreamReplacedError, UsageError
from kinesis_efo.kinesis.topology import Topology, explained, identified, starting_positions
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.notes import strays
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Scan
from kinesis_efo.positions import Position, PositionKind, ShardKey
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.leases import Export, ExportKcl, ImportKcl
from kinesis_efo_tools.cli.lease_access import Leases, opened, start_position
from kinesis_efo_tools.cli.lease_guard import Plan, change
from kinesis_efo_tools.operate import lease_edits
from kinesis_efo_tools.operate.kcl_rows import Naming, kcl_rows, require_all, stream_id
from kinesis_efo_tools.operate.lease_edits import Edit
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
            await import_into(application, given)

    asyncio.run(import_leases())


async def import_into(application: Leases, given: ImportKcl) -> None:
    """Copy the positions of a KCL application into an application's lease table."""
    initial = None if given.initial_position is None else start_position("--initial-position", given.initial_position)
    keys = source_keys(application.manifest, given.stream)
    file_scan = Scan() if given.from_file is None else Scan(read_file(given.from_file))
    source = None if given.from_table is None else await application.other_table(given.from_table, "--from-table")
    name = str(given.from_table or given.from_file)

    async def plan(scan: Scan, source_scan: Scan) -> Plan:
        _require_complete("an import", source_scan)
        rows = (source_scan if source else file_scan).leases
        require_one_form(rows, keys, name)
        await _require_present(application, rows, keys, name)
        rows = _as_listed(rows, keys, await application.listed(), name)
        start = await application.now() if given.initial_position and initial is None else initial
        opened = await _opened(application, start) if start else []
        found = lease_edits.imported(list(rows.values()), keys, scan.leases, application.keys, start, opened)
        if len(found.skipped) == len(rows):
            raise ConfigurationError(_no_rows(application, found.skipped, name))
        if found.unknown:
            raise ConfigurationError(
                f"{name} has no position of {', '.join(map(str, found.unknown[:3]))}"
                f"{f' and {len(found.unknown) - 3} more' if len(found.unknown) > 3 else ''}: the KCL application had not begun them; "
                "give its initial position, as it is configured, with --initial-position"
            )
        remarks = [f"not imported, of no stream of this application: {key}" for key in found.skipped]
        remarks += [f"{key} begins at {at}: KCL had stored no position" for key, at in found.begun.items()]
        return Plan(found.edits, remarks)

    await change(application.table, plan, application.guards, given.mode, source, application.clock)


async def _opened(application: Leases, start: Position) -> list[ShardKey]:
    """Return the shards that were open at the time `start`. Empty for TRIM_HORIZON, because it applies to every shard alike."""
    if start.kind is not PositionKind.AT_TIMESTAMP:
        return []
    topology = Topology(await application.access.client("kinesis"), application.access.clock)
    return [
        ShardKey(name, shard.shard_id)
        for name, ref in application.manifest.streams.items()
        for shard, at in (
            await explained(starting_positions(topology, ref.stream_arn, start), ref, application.manifest.source)
        ).items()
        if at == start
    ]


def export_kcl(given: ExportKcl) -> None:

    async def export_leases() -> None:
        async with opened(given.aws, given.manifest, given.stream) as application:
            await export_from(application, given)

    asyncio.run(export_leases())


async def export_from(application: Leases, given: ExportKcl) -> None:
    """Write an application's positions into the lease table of a KCL application."""
    names = sorted(application.manifest.streams)
    if not given.multi_stream and len(names) > 1:
        raise UsageError(
            f"a KCL application without --multi-stream reads one stream, and this one reads {', '.join(names)}: "
            "say with --stream which one, or give --multi-stream"
        )
    target = await application.other_table(given.table, "--table")
    keys = source_keys(application.manifest, None if given.multi_stream else names[0])
    remedy = f", or export {'without' if given.multi_stream else 'with'} --multi-stream"

    async def plan(present: Scan, scan: Scan) -> Plan:
        for each in (present, scan):
            _require_complete("an export", each)
        others = [key for key in present.leases if (":" in key) != given.multi_stream]
        edits: list[Edit] = []
        remarks: list[str] = []
        for name in names:
            naming, rows, said = await _kcl_rows(application, scan, name, multi_stream=given.multi_stream)
            exported = [*others, *(row.key for row in rows)]
            require_one_form(exported, keys, f"{given.table} with the exported rows", remedy)
            edits += lease_edits.exact({key: row for key, row in present.leases.items() if naming.owns(key)}, rows)
            remarks += said
        return Plan(edits, remarks)

    # Pass the application's table as `source`, so that a live run prevents the export: it would read past the exported positions.
    await change(target, plan, lambda _lease: True, given.mode, application.table, application.clock)


async def _kcl_rows(
    application: Leases, scan: Scan, name: str, *, multi_stream: bool
) -> tuple[Naming, list[Lease], list[str]]:
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
            f"{application.table.label}: {what}. A KCL application would begin at a meaningless position"
        )
    shards = await explained(topology.shards(ref.stream_arn), ref, source)
    naming = Naming(
        stream_id(ref, (await explained(topology.summary(ref.stream_arn), ref, source)).created)
        if multi_stream
        else None
    )
    by_id = {shard.shard_id: shard for shard in shards}
    require_all(application.table.label, name, rows, shards)
    making = kcl_rows(kinesis, ref.stream_arn, rows, by_id, naming)
    return naming, *await explained(making, ref, source)


def _no_rows(application: Leases, skipped: list[str], source: str) -> str:
    message = f"{source} has no lease of a stream of application {application.manifest.application}: "
    if not skipped:
        return message + "it has no leases; name the table or file of the KCL application that read these streams"
    names = ", ".join(sorted(application.manifest.streams))
    message += f"its keys are such as {skipped[0]!r}, and the application reads {names}; "
    if ":" in skipped[0]:
        return message + "name the table or file of the KCL application that read these streams"
    return message + "select with --stream the one to which the shards belong"


async def _require_present(application: Leases, rows: Collection[str], keys: LeaseKeys, source: str) -> None:
    """Reject rows of another account's stream or of a deleted stream with the same name. Their positions do not apply to this stream."""
    by_stream = {shard.stream: key for key in sorted(rows) if key.count(":") == 3 and (shard := keys.decode(key))}
    for stream, key in by_stream.items():
        ref = application.manifest.streams[stream]
        now = await identified(Topology(await application.access.client("kinesis")), ref.stream_arn)
        account, _, created, _ = key.split(":")
        if account != ref.stream_arn.split(":")[4] or (now.created is not None and created != str(now.created)):
            raise ConfigurationError(
                f"{source}: row {key!r} is of another stream than {now}: import the rows of a KCL application that reads the present one, "
                "or start the query without an import"
            )


def _as_listed(
    rows: Mapping[str, Lease], keys: LeaseKeys, listed: Mapping[ShardKey, Shard], source: str
) -> dict[str, Lease]:
    """Add to each row the parents and hash keys of its shard. Raises ConfigurationError if an open shard's row is at SHARD_END."""
    found = dict(rows)
    for key, row in sorted(rows.items()):
        if (at := keys.decode(key)) is None or (shard := listed.get(at)) is None:
            continue
        if shard.last is None and row.reached is not None and row.reached.is_end:
            raise ConfigurationError(
                f"{source}: row {key!r} is at SHARD_END, but the shard is open, and what arrives in it would never be read: if it was split or "
                "merged just now, try again in a minute. Otherwise the row is of an earlier stream of that name, or the KCL application's "
                "consumer was deleted: start the query without an import, with a position for each shard"
            )
        found[key] = row.completed(LeaseInfo.of(shard))
    return found


def _require_complete(what: str, scan: Scan) -> None:
    if scan.unreadable:
        reasons = "; ".join(scan.unreadable.values())
        raise ConfigurationError(f"{what} would not be complete: {reasons}; correct or delete these rows")
