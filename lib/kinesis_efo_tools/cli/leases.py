"""``kinesis-efo leases``: lists an application's leases, and changes them manually, unless a live worker owns them.

A *new* query with `startingPosition=LEASES` starts from the leases. A query that has a Spark checkpoint continues from that checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Group

from kinesis_efo.decisions.lineage import Lineage, Shard, read_to_end
from kinesis_efo.decisions.losses import names_another, predates
from kinesis_efo.errors import UsageError
from kinesis_efo.kinesis.topology import Topology, explained, identified, starting_positions
from kinesis_efo.leases.notes import strays
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import Scan
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.leases import List, Release, Reset
from kinesis_efo_tools.cli.lease_access import Leases, opened, start_position
from kinesis_efo_tools.cli.lease_guard import Plan, change
from kinesis_efo_tools.cli.lease_runs import lag_data, runs_table
from kinesis_efo_tools.cli.shapes import Shape
from kinesis_efo_tools.operate import lease_edits


def list_leases(given: List) -> None:

    async def read() -> tuple[list[tuple[ShardKey, Lease]], dict[str, Lease], list[str], float]:
        async with opened(given.aws, given.manifest, given.stream, given.shard) as application:
            scan = await application.table.scan()
            found = sorted(application.selected(scan).items())
            rows = [(application.keys.decode(key) or ShardKey("", key), lease) for key, lease in found]
            remarks = [f"not listed: {reason}" for reason in scan.unreadable.values()]
            now = application.access.table_clock.time()
            return rows, application.runs(scan), remarks + await _strays(application, rows), now

    rows, runs, remarks, now = asyncio.run(read())
    output.answer(
        given.as_json,
        {
            "runs": [_run_data(name, lease) for name, lease in runs.items()],
            "leases": [_data(key, lease, runs.get(key.stream)) for key, lease in rows],
        },
        lambda: _view(rows, runs, Shape.of(output.terminal().width), now),
    )
    for remark in remarks:
        output.remark(f"kinesis-efo: {remark}")


def _view(rows: list[tuple[ShardKey, Lease]], runs: dict[str, Lease], shape: Shape, now: float) -> Group:
    several = any(lease.fetcher for _, lease in rows)
    # Omit columns in a narrow terminal: the lease key contains stream and shard, and the runs' table has the owners.
    owners = shape.roomy or any(lease.owner for _, lease in rows)
    columns = [
        *(["stream", "=shard"] if shape.roomy else []),
        "=key" if shape.roomy else "key",
        "checkpoint",
        *(["owner"] if owners else []),
        ">counter",
        ">epoch",
        *(["fetcher"] if several else []),
    ]
    cells = []
    for key, lease in rows:
        owner = _owner(lease, runs.get(key.stream))
        cells.append(
            [
                *([key.stream, key.shard] if shape.roomy else []),
                lease.key,
                shape.position(_checkpoint(lease)),
                *([owner and readable(owner)] if owners else []),
                str(lease.counter),
                str(lease.epoch),
                *([lease.fetcher] if several else []),
            ]
        )
    shards = output.table(columns, cells)
    return Group(runs_table(runs, shape, now), "", shards) if runs else Group(shards)


async def _strays(application: Leases, rows: list[tuple[ShardKey, Lease]]) -> list[str]:
    """Return warnings about rows of another stream, such as a deleted one with the same name. Calls Kinesis only if rows name a stream."""
    remarks = []
    for name, ref in application.manifest.streams.items():
        named = [row for key, row in rows if key.stream == name and row.stream is not None]
        if not named:
            continue
        topology = Topology(await application.access.client("kinesis"))
        if what := strays(named, await identified(topology, ref.stream_arn)):
            remarks.append(f"{what}. startingPosition=LEASES refuses it; a query that reads the stream replaces it")
    return remarks


def release(given: Release) -> None:

    async def free() -> None:
        async with opened(given.aws, given.manifest, given.stream) as application:
            await release_of(application, given)

    asyncio.run(free())


async def release_of(application: Leases, given: Release) -> None:
    """Remove the owners of an application's leases, unless they are alive."""

    async def plan(scan: Scan, _: Scan) -> Plan:
        return Plan(lease_edits.releases(filter(application.guards, scan.leases.values())))

    await change(application.table, plan, application.guards, given.mode, clock=application.clock)


def reset(given: Reset) -> None:

    async def move() -> None:
        async with opened(given.aws, given.manifest, given.stream, given.shard) as application:
            await reset_of(application, given)

    start_position("--to", given.to, shards=bool(given.shard))
    asyncio.run(move())


async def reset_of(application: Leases, given: Reset) -> None:
    """Move an application's leases to the position `given.to`, unless a live worker owns them."""
    target = start_position("--to", given.to, shards=bool(given.shard))
    is_inside = target is not None and (target.is_end or target.sequence_number is not None)
    if is_inside and len(application.manifest.streams) > 1:
        raise UsageError(f"--to {given.to} is a position inside one shard, of one stream: select it with --stream")

    async def plan(scan: Scan, _: Scan) -> Plan:
        position = target or await application.now()
        rows = application.selected(scan)
        if given.shard:
            listed = await application.listed()
            known = {application.keys.encode(key): LeaseInfo.of(shard) for key, shard in listed.items()}
            edits = lease_edits.moves(rows.values(), position, known)
            _check_moves(application, scan, edits, position, given.to, listed)
        else:
            # Replace all rows of a shard: in addition to this library's row, there may be a KCL row.
            rows = {key: row for key, row in scan.leases.items() if application.selects(row)}
            edits = lease_edits.replacement(rows, await _initial_leases(application, position))
        return Plan(
            edits,
            ["A query with a checkpoint continues from it: this is for new queries, with startingPosition=LEASES."],
        )

    await change(application.table, plan, application.guards, given.mode, clock=application.clock)


def _check_moves(
    application: Leases,
    scan: Scan,
    edits: list[lease_edits.Edit],
    position: Position,
    to: str,
    listed: Mapping[ShardKey, Shard],
) -> None:
    """Raise UsageError if moves of single shards would skip records or have no effect.

    A query considers a shard fully read if it has begun to read a descendant, regardless of the position in the shard's row.
    """
    for at, each in sorted(listed.items()):
        if position.is_end and each.last is None and at.shard in application.shards:
            raise UsageError(
                f"--to SHARD_END: shard {at.shard} of stream {at.stream!r} is open, and what arrives in it would never be read; "
                "to skip what it has, give --to LATEST"
            )
        number = position.sequence_number or 0
        is_later = each.last is not None and number > each.last
        if at.shard in application.shards and (is_later or predates(position, each) or names_another(position, each)):
            raise UsageError(f"--to {to}: the number is of another shard than {at.shard}; give one of its own records")
    lineages = {
        name: Lineage(each for at, each in listed.items() if at.stream == name) for name in application.manifest.streams
    }
    rows = {key: row for key, row in application.keys.by_shard(scan.leases).items() if key.stream in lineages}
    after = rows | {key: edit.after for edit in edits if edit.after and (key := application.keys.decode(edit.key))}
    ignored_before, ignored = (
        read_to_end(
            {key: row.position or TRIM_HORIZON for key, row in each.items()},
            lineages,
            {key: row.parents for key, row in each.items()},
        )
        for each in (rows, after)
    )
    for shard, begun in sorted(ignored.items()):
        if shard.shard in application.shards:
            raise UsageError(
                f"--shard {shard.shard} --to {to}: shards that follow it have begun, so a query would count {shard.shard} as read to its "
                "end; reset those first: "
                + " ".join(f"--shard {each}" for each in sorted(begun))
                + " --to TRIM_HORIZON"
            )
        if shard not in ignored_before:
            raise UsageError(
                f"--shard {begun[0]} --to {to}: {shard.shard}, which comes before it, is not read to its end, and would count as that: "
                f"let a query read it first, or skip the rest of it with --shard {shard.shard} --to SHARD_END"
            )


async def _initial_leases(application: Leases, position: Position) -> dict[str, LeaseInfo]:
    """Return the leases with which a query starts to read the selected streams at `position`, by lease key."""
    topology = Topology(await application.access.client("kinesis"))
    wanted: dict[str, LeaseInfo] = {}
    source = application.manifest.source
    for name, ref in application.manifest.streams.items():
        # A position before the trim horizon stays as it is, so that a query reports the trimmed records as lost.
        for shard in await explained(starting_positions(topology, ref.stream_arn, position), ref, source):
            wanted[application.keys.encode(ShardKey(name, shard.shard_id))] = LeaseInfo.of(shard, position)
    return wanted


def _checkpoint(lease: Lease) -> str:
    if lease.reached is None:
        return "LATEST"
    text = str(lease.reached)
    if lease.reached.kind is PositionKind.AT_TIMESTAMP:
        moment = datetime.fromtimestamp(lease.reached.value / 1000, UTC)
        text = f"AT_TIMESTAMP:{moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
    return f"{text} (user record {lease.sub})" if lease.sub and lease.continuation is None else text


def _owner(lease: Lease, run: Lease | None) -> str | None:
    return lease.owner or (run.owner if run is not None else None)


def _run_data(stream: str, lease: Lease) -> dict[str, Any]:
    return {
        "stream": stream,
        "leaseKey": lease.key,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "endpoint": lease.endpoint,
        "counter": lease.counter,
        "lag": lag_data(lease),
    }


def _data(key: ShardKey, lease: Lease, run: Lease | None) -> dict[str, Any]:
    return {
        "stream": key.stream,
        "shardId": key.shard,
        "leaseKey": lease.key,
        "checkpoint": "LATEST" if lease.reached is None else str(lease.reached),
        "subSequenceNumber": lease.sub,
        "lastRecord": None if lease.record is None else str(lease.record),
        "owner": _owner(lease, run),
        "epoch": lease.epoch,
        "counter": lease.counter,
        "fetcher": lease.fetcher,
        "streamArn": None if lease.stream is None else lease.stream.arn,
        "streamCreated": None if lease.stream is None else lease.stream.created,
        "parents": sorted(lease.parents),
        "children": sorted(lease.children),
    }
