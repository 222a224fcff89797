"""Finds out whether a query's checkpoint had been further, as after it was restored from a backup, or is gone. Pure.

The checkpoint's own mark tells it for certain. Of a checkpoint that an earlier version wrote, which has none, the shards' rows tell it
as far as no other query has moved them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import floor
from typing import Final

from kinesis_efo.leases.reached import Reached, furthest
from kinesis_efo.leases.row import Lease
from kinesis_efo.marks import Mark
from kinesis_efo.positions import SHARD_END, Offset, Position, PositionKind, ShardKey

_COMPARABLE: Final = PositionKind.AFTER, PositionKind.SHARD_END

LEFT_OUT: Final = "a file sink leaves out, without a word, each micro-batch whose number it has already"
"""What is lost, in the words of all messages that tell of a checkpoint that had been further."""

CAUSES: Final = (
    "it was restored from a backup, is a copy of another query's, or Spark has left offsets out of it (option "
    "asyncProgressTrackingEnabled)"
)
"""How a checkpoint comes to be behind its own mark. With that option, no sink is allowed that leaves out micro-batches."""


def gone_back(reached: tuple[Reached, ...], mark: Mark) -> str | None:
    """How much further a checkpoint had been than it is; None if it was not, or if that is not known.

    A run notes a mark once Spark has written it into the checkpoint, so that this is not behind its own mark by itself. Only with
    Spark's option `asyncProgressTrackingEnabled` it may be: Spark then leaves out offsets, and a run does not learn of the option.

    Args:
        reached: How far checkpoints had come.
        mark: Up to where this one has planned.
    """
    before = furthest(reached, mark.checkpoint)
    if before is None or before.mark.moved <= mark.moved:
        return None
    missing = before.mark.moved - mark.moved
    at = datetime.fromtimestamp(before.at / 1000, UTC)
    return f"by {missing} {'micro-batch' if missing == 1 else 'micro-batches'}, at {at:%Y-%m-%d %H:%M:%S} UTC"


def restored(offset: Offset, stream: str, rows: Mapping[ShardKey, Lease], reached: tuple[Reached, ...]) -> str | None:
    """What to say if a query's checkpoint had been further than where it goes on; None if nothing tells that.

    Args:
        offset: Up to where the checkpoint has planned.
        stream: Logical name of the stream whose lease was taken.
        rows: The rows of its shards.
        reached: How far checkpoints had come, by the run's row of the stream.
    """
    if offset.mark is not None:
        if (said := gone_back(reached, offset.mark)) is None:
            return None
        return (
            f"the query's checkpoint had been further {said}: {CAUSES}. What came since is read again; but {LEFT_OUT}: "
            "stop this query, and give it a new output directory. If its output was restored together with it, or can be written "
            "twice, all is well"
        )
    known = {key: offset[key] for key in rows if key.stream == stream and key in offset}
    ahead = sorted(key for key, position in known.items() if is_ahead(rows[key], position))
    if not ahead:
        return None
    first = ahead[0]
    return (
        f"stream {stream}: the lease table is further than the query's checkpoint in {len(ahead)} of {len(known)} shards "
        f"({first.shard} was read up to {rows[first].reached}, in the checkpoint up to {known[first]}). Where the checkpoint was restored "
        f"from a backup, what came since is read again; but {LEFT_OUT}: stop this query, and give it a new output directory. Where another "
        "query of this application, with a checkpoint of its own, has read meanwhile, all is well"
    )


def begun_anew(stream: str, rows: Mapping[ShardKey, Lease]) -> str | None:
    """What to say if a query without a checkpoint reads what the application had read before; None if it had read nothing.

    Args:
        stream: Logical name of the stream.
        rows: The rows of its shards, as they were when the lease was taken.
    """
    read = {
        key: row for key, row in sorted(rows.items()) if row.reached is not None and row.reached.kind in _COMPARABLE
    }
    if not read:
        return None
    key = next(iter(read))
    open_until = [row.read_until for row in read.values() if row.reached != SHARD_END]
    times = [at for at in open_until if at is not None]
    since = "TRIM_HORIZON"
    if times and len(times) == len(open_until):
        since = f"AT_TIMESTAMP:{datetime.fromtimestamp(floor(min(times)), UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"stream {stream}: this query is new, without a checkpoint, but the lease table says that the application has read {len(read)} "
        f"of the stream's shards before ({key.shard} up to {read[key].reached}). If the checkpoint was deleted, or is elsewhere: what lies "
        f"between there and this query's start is left out or comes twice, and {LEFT_OUT} (in the _spark_metadata of its output): stop this "
        f"query, delete the checkpoint that it has begun, and start with a new output directory and startingPosition={since}. With "
        "startingPosition=LEASES, a new query goes on there by itself, as long as no other one has moved the lease table on. If this query "
        "has an output of its own, all is well"
    )


def is_ahead(row: Lease, position: Position) -> bool:
    """Whether a shard's row stands behind a position, both being behind some record."""
    reached = row.reached
    return (
        reached is not None
        and reached != position
        and reached.kind in _COMPARABLE
        and position.kind in _COMPARABLE
        and reached.reaches(position)
    )
