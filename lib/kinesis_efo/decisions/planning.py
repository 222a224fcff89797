"""Plans a micro-batch: how the shards share its limits, and whether it waits for more records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

import msgspec

from kinesis_efo.decisions.event_index import EventIndex, Portion
from kinesis_efo.positions import Position, ShardKey

NO_LIMIT: Final = 1 << 62
BEHIND_MILLIS: Final = 1000
"""A shard with a greater lag counts as behind its tip. Filling the micro-batch then matters more than reducing latency."""


class ShardProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far one shard may be read in the next micro-batch."""

    key: ShardKey
    through: Position  # Records up to here are buffered and fit within the limits
    records: int  # The number of records up to `through`
    bytes: int  # The bytes of these records in the buffer
    millis_behind: int | None  # The lag reported by the last event; None before the first event
    last: int | None = None  # The sequence number of the last record; None if unknown or without records
    # For how many seconds the shard has apparently been read to its tip; 0 if it may have more records, or if unknown
    quiet: float = 0.0
    data: int = 0  # Estimated bytes of the records' data
    more: bool = False  # Whether the limits of the micro-batch exclude buffered events
    left: int | None = None  # Age in milliseconds of the oldest event that the limits exclude, if any


class PollReply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a poll: how a query's offset can advance."""

    shards: list[ShardProgress]  # How far each shard can advance
    starting: list[ShardKey] = []  # Children that start at the trim horizon, after the end of their parents
    finished: list[ShardKey] = []  # Ended shards to remove from the offset, since all their children are in it
    undecided: bool = False  # Children could start, but it is unknown whether their ancestors had lost records


def is_behind(millis: int | None) -> bool:
    """Whether a shard with this lag (milliseconds) counts as behind its tip. False if the lag is unknown."""
    return (millis or 0) > BEHIND_MILLIS


def may_wait(shards: Iterable[ShardProgress], least_bytes: int | None) -> bool:
    """Whether a micro-batch that would read `shards` may wait for more records.

    It does not wait if the limits exclude events, if a shard ends, or if there is nothing to read. Otherwise, it waits until all shards
    together have `least_bytes` of data. If `least_bytes` is None, it waits while every shard with new records is behind its tip.
    """
    size = 0
    for shard in shards:
        at_tip = bool(shard.records) and not is_behind(shard.millis_behind)
        if shard.more or shard.through.is_end or (at_tip and least_bytes is None):
            return False
        size += shard.data
    return 0 < size < (inf if least_bytes is None else least_bytes)


def plan(
    buffers: Mapping[ShardKey, EventIndex],
    positions: Mapping[ShardKey, Position],
    max_bytes: int,
    max_records: int,
    horizon: float | None = None,
) -> dict[ShardKey, Portion]:
    """Divide the limits of one micro-batch among the shards.

    Every shard gets an even share. Unused shares go to the other shards, longest-waiting first. The shard that has waited longest gets at
    least one event, so that even the smallest limits cannot stop a query.
    Each buffer must cover the shard's position. A shard that does not advance gets `Portion(position, 0, 0)`. With a `horizon` (epoch
    milliseconds), only records that arrived up to then are planned, and the shard with the oldest unread record counts as longest-waiting.
    """
    # Usually, everything fits, and shares are not needed.
    portions = {key: buffer.portion(positions[key], NO_LIMIT, NO_LIMIT, horizon) for key, buffer in buffers.items()}
    size = sum(portion.bytes for portion in portions.values())
    if size <= max_bytes and sum(portion.records for portion in portions.values()) <= max_records:
        return portions

    def waiting_since(key: ShardKey) -> float:
        since = buffers[key].news_since(positions[key])
        if since is None or horizon is None:
            return inf if since is None else since
        # If only the shard's end is unread, plan the shard first, even beyond the limits: the other shards wait until its end is read.
        arrived = buffers[key].arrival_after(positions[key])
        return -inf if arrived is None else arrived

    by_age = sorted(buffers, key=waiting_since)
    first, *others = by_age
    share_bytes, share_records = max_bytes // len(by_age), max_records // len(by_age)
    portions = {first: buffers[first].portion(positions[first], share_bytes, share_records, horizon, some=True)}
    if others:
        # Reduce the other shards' shares if the first shard's first event is larger than the first shard's share.
        share_bytes = min(share_bytes, max(0, max_bytes - portions[first].bytes) // len(others))
        share_records = min(share_records, max(0, max_records - portions[first].records) // len(others))
    for key in others:
        portions[key] = buffers[key].portion(positions[key], share_bytes, share_records, horizon)
    spare_bytes = max_bytes - sum(portion.bytes for portion in portions.values())
    spare_records = max_records - sum(portion.records for portion in portions.values())
    for key in by_age:
        before = portions[key]
        if spare_bytes <= 0 or spare_records <= 0:
            break
        most_bytes, most_records = before.bytes + spare_bytes, before.records + spare_records
        after = buffers[key].portion(positions[key], most_bytes, most_records, horizon)
        if after.bytes > before.bytes:
            portions[key] = after
            spare_bytes -= after.bytes - before.bytes
            spare_records -= after.records - before.records
    return portions
