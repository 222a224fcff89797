"""Finds out whether the lease table is further than a query's checkpoint, as after the checkpoint was restored from a backup. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Position, PositionKind, ShardKey

_COMPARABLE = PositionKind.AFTER, PositionKind.SHARD_END


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


def restored(stream: str, rows: Mapping[ShardKey, Lease], offset: Mapping[ShardKey, Position]) -> str | None:
    """What to say where rows of a stream are further than the checkpoint that a query goes on from; None where none is.

    A run writes its rows after Spark has noted the offset in the checkpoint, so that they are never further by themselves.

    Args:
        stream: Logical name.
        rows: The rows of its shards.
        offset: Up to where the checkpoint has planned.
    """
    known = {key: offset[key] for key in rows if key.stream == stream and key in offset}
    ahead = sorted(key for key, position in known.items() if is_ahead(rows[key], position))
    if not ahead:
        return None
    first = ahead[0]
    return (
        f"stream {stream}: the lease table is further than the query's checkpoint in {len(ahead)} of {len(known)} shards "
        f"({first.shard} was read up to {rows[first].reached}, in the checkpoint up to {known[first]}). Where the checkpoint was restored "
        "from a backup, what came since is read again; but a file sink leaves out, without a word, each micro-batch whose number it has "
        "already: stop this query, and give it a new output directory. Where another query of this application, with a checkpoint of its "
        "own, has read meanwhile, all is well"
    )
