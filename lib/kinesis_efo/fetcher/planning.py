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

    Every shard gets an even share. What some shards do not need goes to the rest, in the order of their waiting time. The shard that has
    waited longest gets at least one event, so that no limit, however small, stops a query.

    Each buffer covers its position. A shard that stays where it is gets `Portion(position, 0, 0)`.
    """
    if not buffers:
        return {}

    def waiting_since(key: ShardKey) -> float:
        since = buffers[key].news_since(positions[key])
        return inf if since is None else since

    by_age = sorted(buffers, key=waiting_since)
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
