"""Predicts what the next start of a query will do, from its checkpoint, the manifest, the streams and the lease table. Read-only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from aiobotocore.config import AioConfig

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.losses import Facts, written_at
from kinesis_efo.errors import DataLossError
from kinesis_efo.kinesis.faults import LossErrors
from kinesis_efo.kinesis.polling import CALL_SECONDS, POLLING_CONFIG, PollingTransport
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import SKEW_SECONDS, Topology
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.notes import CAUSES, LEFT_OUT, describe_reset, is_ahead, strays
from kinesis_efo.leases.row import Lease
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.planner.stream_set import StreamSet
from kinesis_efo.positions import Offset, Position, PositionKind, ShardKey
from kinesis_efo_tools.operate.access import Access
from kinesis_efo_tools.operate.findings import CheckFailed, CheckUnknown, Finding, Status, finding, what_and_fix
from kinesis_efo_tools.operate.lease_checkup import open_table
from kinesis_efo_tools.operate.spark_checkpoint import PlannedBatch, SourceEnd, folder_at, planned

SUBJECT = "checkpoint"
"""Subject of the check that reads the checkpoint."""


async def restart(access: Access, manifest: Manifest, location: str, clock: Clock) -> list[Finding]:
    """Check what the next start of a query would do."""
    leases: Mapping[ShardKey, Lease] = {}
    found: tuple[PlannedBatch, SourceEnd] | None = None

    async def look() -> str:
        nonlocal leases, found
        # Scan the table first. A live query writes its checkpoint before the rows, so rows read after the checkpoint could be ahead of it.
        scan = await (await open_table(access, manifest)).scan()
        leases = LeaseKeys(manifest.stream_names).by_shard(scan.leases)
        last = await planned(folder_at(location, access))
        if last is None:
            raise CheckUnknown(
                f"{location} has no micro-batch: the next start is that of a new query, which begins at 'startingPosition'",
                "if the query has run before, correct the location: it is the one given as checkpointLocation",
            )
        end = _of_manifest(last, manifest, location)
        found = last, end
        for name in sorted(end.streams):
            run = scan.leases.get(run_key(name))
            if run is not None and end.offset.mark is not None and (said := describe_reset(run.marks, end.offset.mark)):
                raise CheckUnknown(
                    f"{location}: {_said(last)}. But this checkpoint had been further {said}: {CAUSES}",
                    "restore the output of the query together with it, or give the query a new output directory: the next start reads the "
                    f"records since then again, but {LEFT_OUT}",
                )
        return f"{location}: {_said(last)}"

    findings = [await finding(SUBJECT, look(), action="s3:ListBucket, s3:GetObject and dynamodb:Scan")]
    if found is None:
        return findings
    last, end = found
    faults = StreamSet(manifest, drop=False).faults(end.offset, end.sources, finished=last.finished)
    findings += [Finding("streams of the checkpoint", Status.FAILED, *what_and_fix(fault)) for fault in faults]
    kinesis = await access.client("kinesis")
    async with await access.open("kinesis", AioConfig(**POLLING_CONFIG)) as unused:
        # `Stream` requires a transport, which is not used here: the checks list shards and detect losses, but do not read records.
        transport = PollingTransport(unused, clock, CALL_SECONDS)
        for name, ref in manifest.streams.items():
            if _replaced(ref, end) or _renamed(ref, end, manifest):
                continue  # `faults` already contains this stream
            rows = {key.shard: row for key, row in leases.items() if key.stream == name}
            stream = Stream(ref, transport, Topology(kinesis, clock), RetrySettings(), manifest.source, clock)
            work = _goes_on(stream, name, end, rows, clock) if name in end.streams else _begins(stream)
            findings.append(await finding(f"restart of {name}", work, action="kinesis:ListShards"))
    return findings


def _replaced(ref: StreamRef, end: SourceEnd) -> bool:
    return ref.name in end.streams and _stream_of(end.sources.get(ref.name, ref.stream_arn)) != ref.stream_arn


def _renamed(ref: StreamRef, end: SourceEnd, manifest: Manifest) -> bool:
    gone = {_stream_of(arn) for name, arn in end.sources.items() if name not in manifest.streams}
    return ref.name not in end.streams and ref.stream_arn in gone


async def _begins(stream: Stream) -> str:
    await stream.refresh()
    return (
        f"is new to the checkpoint: its shards ({len(stream.lineage)}) begin at 'newStreamPosition', TRIM_HORIZON unless the query says "
        "otherwise"
    )


async def _goes_on(stream: Stream, name: str, end: SourceEnd, rows: Mapping[str, Lease], clock: Clock) -> str:
    planned = _of(end.offset, name)
    # Checkpoints of old versions lack the start of a query's first micro-batch. If it is repeated, it starts where the options specify.
    positions = planned if end.begin is None else _of(end.begin, name)
    await stream.refresh()
    await stream.identify()
    if (created := end.offset.created.get(name)) is not None:
        stream.check_created(created)
    if what := strays(rows.values(), stream.identity):
        raise CheckFailed(
            f"in the lease table, {what}",
            "if the checkpoint is of that other stream, start the query with a new one, at TRIM_HORIZON to read all that the present "
            "stream has",
        )
    if end.begin is not None:
        await _check_losses(stream, positions, planned, rows, end.begin)
    # A mark was compared above. Without one, only the rows show whether the checkpoint is outdated, although other queries move them.
    unmarked = rows.items() if end.offset.mark is None else ()
    if ahead := sorted(shard for shard, row in unmarked if shard in planned and is_ahead(row, planned[shard])):
        first = ahead[0]
        raise CheckUnknown(
            f"the lease table is ahead of the checkpoint in {len(ahead)} of {len(planned)} shards ({first} is at {rows[first].reached}, "
            f"in the checkpoint at {planned[first]}): a query with another checkpoint has read further, and the next start reads that "
            "again",
            "make sure that this is the query's own checkpoint location. If it is from a backup, give the query a new output directory: "
            f"{LEFT_OUT}",
        )
    open_ones = [shard for shard, position in (positions or planned).items() if not position.is_end]
    return (
        f"goes on with {len(open_ones)} {'shard' if len(open_ones) == 1 else 'shards'}{_since(positions, clock.time())}"
    )


async def _check_losses(
    stream: Stream,
    positions: Mapping[str, Position],
    ends: Mapping[str, Position],
    rows: Mapping[str, Lease],
    begin: Offset,
) -> None:
    """Check for lost records, as a query does at its start. Raises CheckFailed with an 'acceptDataLoss' value for all losses."""

    def known(shard: str, position: Position) -> Facts:
        row, proven = rows.get(shard) or Lease(shard), begin.proof(ShardKey(stream.ref.name, shard), position)
        horizon = begin.horizons.get(stream.ref.name)
        return Facts(row.read_until_at(position), horizon, read_since=row.read_since, proven=proven)

    losses = LossErrors()
    with losses.collect():
        await stream.check_loss(positions, known, set())
    for shard, position in positions.items():
        with losses.collect():
            repeated = ends.get(shard, position) != position
            await stream.check_position(shard, position, known(shard, position), planned=repeated)
    try:
        losses.raise_if_any()
    except DataLossError as error:
        lost = error.lost[stream.ref.name]
        raise CheckFailed(
            f"the next start fails for {len(lost)} shards; {error.causes[0]}",
            "to continue without these records once, give the query the option 'acceptDataLoss' with the value "
            f"{msgspec.json.encode(error.lost, order='sorted').decode()}",
        ) from error


def _of(offset: Offset, stream: str) -> dict[str, Position]:
    return {key.shard: at for key, at in offset.items() if key.stream == stream}


def _stream_of(arn: str) -> str:
    return arn.partition("/consumer/")[0]


def _of_manifest(last: PlannedBatch, manifest: Manifest, location: str) -> SourceEnd:
    """Return the query's source that reads the manifest's streams. Raises CheckFailed unless there is exactly one."""
    ends = [end for end in last.ends if len(last.ends) == 1 or end.streams & manifest.streams.keys()]
    if len(ends) == 1:
        return ends[0]
    if not last.ends:
        raise CheckFailed(
            f"{location} is the checkpoint of a query without a kinesis-efo source: micro-batch {last.batch} names none",
            "give the checkpoint location of the query that reads these streams",
        )
    theirs = "; ".join(", ".join(sorted(end.streams)) for end in last.ends)
    raise CheckFailed(
        f"the query of {location} has {len(last.ends)} kinesis-efo sources, which read {theirs}",
        "select the streams of one source with --stream",
    )


def _said(last: PlannedBatch) -> str:
    if last.finished:
        return f"micro-batch {last.batch} is finished, and the next start continues after it"
    if last.batch == 0:
        return "micro-batch 0 is not finished: the next start repeats it, from where the query began, up to the end that was planned"
    return f"micro-batch {last.batch} is not finished: the next start repeats it, up to the same end"


def _since(positions: Mapping[str, Position], now: float) -> str:
    times = [
        time
        for shard, position in positions.items()
        if position.kind is PositionKind.AFTER
        and (time := written_at(position.value, shard, now + SKEW_SECONDS)) is not None
    ]
    return f", read up to {datetime.fromtimestamp(min(times), UTC):%Y-%m-%d %H:%M:%S} UTC at least" if times else ""
