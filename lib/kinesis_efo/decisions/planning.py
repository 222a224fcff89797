"""Decides what a micro-batch reads: how the shards divide its limits, and whether it waits to become larger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final

import msgspec

from kinesis_efo.decisions.alignment import ShardEvents
from kinesis_efo.decisions.event_index import Portion
from kinesis_efo.positions import Position, ShardKey

BEHIND_MILLIS: Final = 1000
"""With a greater lag than this, a shard is behind its tip: a small micro-batch gains no latency worth its cost."""


class ShardProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far one shard may be read in the next micro-batch: through a position up to which records are buffered and within the limits.

    `records` and `bytes` (in the buffer) count what lies up to there; `data` is the estimated bytes of the data. `millis_behind` is the lag
    by the last event, None before the first. `last` is the number of the last record; None if there is none or it is unknown. `quiet` are
    the seconds for which the shard seems to have no more records; 0 if it may have some, or that is unknown. `more`: the limits leave out
    buffered events, of which the oldest arrived `left` milliseconds ago.
    """

    key: ShardKey
    through: Position
    records: int
    bytes: int
    millis_behind: int | None
    last: int | None = None
    quiet: float = 0.0
    data: int = 0
    more: bool = False
    left: int | None = None


class PollReply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a poll: the shards that can advance, children that start, and ended shards whose children are all in the offset.

    Children in `starting` start at the trim horizon: this micro-batch reads their parents to their end. `undecided`: more could start, but
    it is not known yet what was lost before them.
    """

    shards: list[ShardProgress]
    starting: list[ShardKey] = []
    finished: list[ShardKey] = []
    undecided: bool = False


def is_behind(millis: int | None) -> bool:
    """Whether a shard is behind its tip, by its lag in milliseconds; not if that is unknown."""
    return (millis or 0) > BEHIND_MILLIS


def may_wait(shards: Iterable[ShardProgress], least_bytes: int | None) -> bool:
    """Whether a micro-batch that would read `shards` may wait for more records.

    It may not if the limits leave something out, a shard ends, or there is nothing to read. Else it waits for `least_bytes`, wherever the
    shards are; if that is None, while each shard with records is behind.
    """
    size = 0
    for shard in shards:
        at_tip = bool(shard.records) and not is_behind(shard.millis_behind)
        if shard.more or shard.through.is_end or (at_tip and least_bytes is None):
            return False
        size += shard.bytes
    return 0 < size < (inf if least_bytes is None else least_bytes)


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
