"""Creates lease table rows with which a KCL application continues exactly where a query stopped.

Tested with KCL 2.7 and 3.5. A row has a sequence number, the index of the last user record in an aggregate, parents and children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kinesis_efo.decisions.lineage import Lineage, ReadBound, Shard, beginning, read_to_end
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo.records.aggregation import deaggregate

_CONCURRENT_SHARDS: Final = 32
_ANSWERS: Final = 5
_PAUSE_SECONDS: Final = 0.25
"""Seconds to pause after a GetRecords call; AWS allows five calls per second and shard."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How a KCL application names the shards of a stream.

    `stream` is `<account>:<stream name>:<creation time, whole seconds>` if the KCL application reads several streams, else None.
    """

    stream: str | None

    def key(self, shard_id: str) -> str:
        """Return the lease key of a shard."""
        return shard_id if self.stream is None else f"{self.stream}:{shard_id}"

    def owns(self, key: str) -> bool:
        """Whether a lease key belongs to this stream."""
        return ":" not in key if self.stream is None else key.startswith(f"{self.stream}:")


def stream_id(ref: StreamRef, created: int) -> str:
    """Return a stream's identifier in a multi-stream KCL application. `created` is in epoch seconds."""
    return f"{ref.stream_arn.split(':')[4]}:{ref.stream_name}:{created}"


def require_all(table: str, stream: str, rows: Mapping[str, Lease], shards: Sequence[Shard]) -> None:
    """Raise ConfigurationError if a shard has no row: KCL would start it at its configured initial position and might skip or repeat records."""
    lineage = Lineage(shards)
    positions = {ShardKey(stream, shard): row.position or TRIM_HORIZON for shard, row in rows.items()}
    parents = {ShardKey(stream, shard): row.parents for shard, row in rows.items()}
    positions |= dict.fromkeys(read_to_end(positions, {stream: lineage}, parents), SHARD_END)
    named = {key.shard: position for key, position in positions.items()}
    if missing := beginning(lineage, ReadBound(TRIM_HORIZON, named, ())).left_out:
        raise ConfigurationError(
            f"{table} has no row for {', '.join(missing)} of stream {stream}, nor for a parent or child: a run has ended before it had "
            "written the rows of all shards. Start the query, wait a minute, stop it, and export again"
        )


async def kcl_rows(
    kinesis: Any, stream_arn: str, rows: Mapping[str, Lease], shards: Mapping[str, Shard], naming: Naming
) -> tuple[list[Lease], list[str]]:
    """Return the KCL rows of one stream, without owners, and messages for the user who starts the KCL application.

    Reads the last processed record of each shard again, to find out whether it is an aggregate. Raises ConfigurationError if Kinesis does
    not list a shard yet and the shard's row lacks attributes of a KCL row, and botocore's ClientError if Kinesis rejects a call.
    """
    slots = asyncio.Semaphore(_CONCURRENT_SHARDS)
    unknown = {shard_id for shard_id, row in rows.items() if shard_id not in shards and row.starting_hash_key is None}
    if new := sorted(shard_id for shard_id in unknown if shard_id > max(shards, default="")):
        # Without the ids of a shard's parents, KCL could read the shard before the last records of its parents.
        raise ConfigurationError(
            f"{stream_arn} does not list shard {new[0]} yet, whose parents and hash keys a KCL row needs: nothing was written; "
            "try again in a minute"
        )

    async def make(shard_id: str, row: Lease) -> tuple[Lease, str | None]:
        async with slots:
            position, sub, remark = await _position(kinesis, stream_arn, shard_id, row)
        row = row if shard_id not in shards else row.completed(LeaseInfo.of(shards[shard_id]))
        made = Lease(
            naming.key(shard_id),
            checkpoint=position,
            sub=sub,
            parents=row.parents,
            children=row.children,
            starting_hash_key=row.starting_hash_key,
            ending_hash_key=row.ending_hash_key,
        )
        if naming.stream is not None:
            made = replace(made, also=(("streamName", naming.stream), ("shardId", shard_id)))
        return made, remark

    made = await asyncio.gather(
        *(make(shard_id, row) for shard_id, row in sorted(rows.items()) if shard_id not in unknown)
    )
    gone = [
        f"{shard_id} is left out: the stream does not list it any more, so nothing of it is left"
        for shard_id in sorted(unknown)
    ]
    return [row for row, _ in made], [*(remark for _, remark in made if remark is not None), *gone]


async def _position(kinesis: Any, stream_arn: str, shard_id: str, row: Lease) -> tuple[Position, int, str | None]:
    """Return the checkpoint and sub-sequence number for the KCL row, and a message for the user if the position is not exact."""
    reached = row.reached
    if reached is not None and reached.kind in (PositionKind.SHARD_END, PositionKind.TRIM_HORIZON):
        return reached, 0, None
    if row.record is None:
        remark = (
            f"{shard_id} begins at TRIM_HORIZON: the query has read no record of it, and a KCL row can only name a record. "
            "Records from before the query's start are delivered, too"
        )
        return TRIM_HORIZON, 0, remark
    position = Position.after(row.record)
    if row.continuation is None or row.sub:
        return position, row.sub, None
    last = await _last_index(kinesis, stream_arn, shard_id, row.record)
    if last is None:
        aggregate = "if it is a KPL aggregate, all but its first record is delivered again"
        return position, 0, f"{shard_id}: record {row.record} cannot be read any more; {aggregate}"
    return position, last, None


async def _last_index(kinesis: Any, stream_arn: str, shard_id: str, number: int) -> int | None:
    """Return the sub-sequence number of an aggregate's last user record, 0 for any other record; None if the record has expired."""
    answer = await kinesis.get_shard_iterator(
        StreamARN=stream_arn,
        ShardId=shard_id,
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        StartingSequenceNumber=str(number),
    )
    iterator, empty = answer["ShardIterator"], 0
    # Repeat: a single empty response does not prove that the record has expired.
    while iterator and empty < _ANSWERS:
        page = await kinesis.get_records(StreamARN=stream_arn, ShardIterator=iterator, Limit=1)
        for record in page["Records"]:
            if int(record["SequenceNumber"]) != number:
                return None
            users = deaggregate(record["Data"], None)
            return max(len(users) - 1, 0) if users else 0
        iterator, empty = page.get("NextShardIterator"), empty + 1
        await asyncio.sleep(_PAUSE_SECONDS)
    return None
