"""Divides the trigger's limits of a micro-batch among the shards' buffers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Protocol

from kinesis_efo.fetcher.event_index import Portion
from kinesis_efo.positions import Position, ShardKey


class ShardEvents(Protocol):
    """The events of a shard: an `EventIndex`, or a part of one."""

    def news_since(self, after: Position) -> float | None:
        """When the first event after a position that has records or ends the shard was received; None if there is none."""

    def portion(self, after: Position, max_bytes: int, max_records: int, *, some: bool = False) -> Portion:
        """As many whole events after a position as fit into both limits."""


def plan(
    buffers: Mapping[ShardKey, ShardEvents], positions: Mapping[ShardKey, Position], max_bytes: int, max_records: int
) -> dict[ShardKey, Portion]:
    """Divide the limits of one micro-batch among the shards.

    Every shard gets an even share. What some shards do not need goes to the rest, in the order of their waiting time. The shard that
    has waited longest gets at least one event, so that no limit, however small, stops a query.

    Args:
        buffers: The shards' buffers; each covers its position.
        positions: Where each shard's range starts.
        max_bytes: Most bytes in the micro-batch.
        max_records: Most records in it.

    Returns:
        How far each shard may be read; `Portion(position, 0, 0)` if it stays where it is.
    """
    since = {key: buffer.news_since(positions[key]) for key, buffer in buffers.items()}

    def age(key: ShardKey) -> float:
        arrived = since[key]
        return inf if arrived is None else arrived

    by_age = sorted(buffers, key=age)
    if not by_age:
        return {}
    first, *others = by_age
    share_bytes, share_records = max_bytes // len(by_age), max_records // len(by_age)
    portions = {first: buffers[first].portion(positions[first], share_bytes, share_records, some=True)}
    if others:
        # Less is left if the first event of the first shard was larger than its share.
        share_bytes = min(share_bytes, max(0, max_bytes - portions[first].bytes) // len(others))
        share_records = min(share_records, max(0, max_records - portions[first].records) // len(others))
    for key in others:
        portions[key] = buffers[key].portion(positions[key], share_bytes, share_records)
    spare_bytes = max_bytes - sum(portion.bytes for portion in portions.values())
    spare_records = max_records - sum(portion.records for portion in portions.values())
    for key in by_age:
        before = portions[key]
        if spare_bytes <= 0 or spare_records <= 0:
            break
        after = buffers[key].portion(positions[key], before.bytes + spare_bytes, before.records + spare_records)
        if after.bytes > before.bytes:
            portions[key] = after
            spare_bytes -= after.bytes - before.bytes
            spare_records -= after.records - before.records
    return portions
