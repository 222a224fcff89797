"""Detects that a query's checkpoint went back (for example, it was restored from a backup) or was deleted.

A checkpoint's mark is certain evidence. A checkpoint that an earlier version of the library wrote has no mark; then the rows of the
shards are the evidence, unless another query has moved them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import floor
from typing import Final

from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.notes import furthest
from kinesis_efo.leases.row import Lease
from kinesis_efo.marks import Mark
from kinesis_efo.positions import SHARD_END, Offset, Position, PositionKind, ShardKey

LEFT_OUT: Final = "a file sink silently skips each micro-batch whose number it already has"
"""The part of all messages about a checkpoint that went back which says what is lost."""

CAUSES: Final = (
    "it was restored from a backup, is a copy of another query's, or Spark has left offsets out of it (option "
    "asyncProgressTrackingEnabled)"
)
"""Why a checkpoint can be behind its furthest noted mark. Spark refuses the named option with sinks that skip micro-batches."""


def gone_back(reached: tuple[CheckpointMark, ...], mark: Mark) -> str | None:
    """Describe how far the checkpoint with the newest mark `mark` is behind its furthest mark in `reached`; None if it is not behind.

    A run notes a mark only after Spark has written it into the checkpoint, so a checkpoint that is behind went back. The exception is
    Spark's option `asyncProgressTrackingEnabled`: with it, Spark leaves offsets out of the checkpoint. A run does not learn of the option.
    """
    before = furthest(reached, mark.checkpoint)
    if before is None or before.mark.moved <= mark.moved:
        return None
    missing = before.mark.moved - mark.moved
    at = datetime.fromtimestamp(before.at / 1000, UTC)
    return f"by {missing} {'micro-batch' if missing == 1 else 'micro-batches'}, at {at:%Y-%m-%d %H:%M:%S} UTC"


def restored(
    offset: Offset, stream: str, rows: Mapping[ShardKey, Lease], reached: tuple[CheckpointMark, ...]
) -> str | None:
    """Return the warning for a query whose checkpoint went back; None if its last offset shows no evidence of that.

    The evidence is in `reached`, the furthest marks in the run's row; for an offset without a mark, in the rows of the stream's shards.
    """
    if offset.mark is not None:
        if (said := gone_back(reached, offset.mark)) is None:
            return None
        return (
            f"the query's checkpoint had been further {said}: {CAUSES}. The records since then are read again; but {LEFT_OUT}: "
            "stop this query, and give it a new output directory. If the output was restored together with the checkpoint, or the sink "
            "accepts repeated records, nothing needs to be done"
        )
    known = {key: offset[key] for key in rows if key.stream == stream and key in offset}
    ahead = sorted(key for key, position in known.items() if is_ahead(rows[key], position))
    if not ahead:
        return None
    first = ahead[0]
    return (
        f"stream {stream}: the lease table is further than the query's checkpoint in {len(ahead)} of {len(known)} shards "
        f"({first.shard} was read up to {rows[first].reached}, in the checkpoint up to {known[first]}). If the checkpoint was restored "
        f"from a backup, the records since then are read again; but {LEFT_OUT}: stop this query, and give it a new output directory. If "
        "another query of this application, with a checkpoint of its own, has read meanwhile, nothing needs to be done"
    )


def begun_anew(stream: str, rows: Mapping[ShardKey, Lease]) -> str | None:
    """Return the warning for a new query if the shards' rows show that the application has read the stream before; None if they do not."""
    read = {key: row for key, row in sorted(rows.items()) if row.has_begun}
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
        f"of the stream's shards before ({key.shard} up to {read[key].reached}). If the checkpoint was deleted or moved, the records "
        f"between there and this query's start are skipped or repeated, and {LEFT_OUT} (in the _spark_metadata of its output): stop this "
        f"query, delete its new checkpoint, and start with a new output directory and startingPosition={since}. With "
        "startingPosition=LEASES, a new query continues there by itself, if no other query has moved the lease table on. If this query "
        "has an output of its own, nothing needs to be done"
    )


def is_ahead(row: Lease, position: Position) -> bool:
    """Whether a shard's row is further than a position. False if one of the two is only a start position."""
    reached = row.reached
    if reached is None or not row.has_begun or position.kind not in (PositionKind.AFTER, PositionKind.SHARD_END):
        return False
    return reached != position and reached.reaches(position)
