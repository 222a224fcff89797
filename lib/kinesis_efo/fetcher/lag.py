"""Sums up how far the shards of a stream are behind, for the row of the run that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.leases.lag import Lag


def summed_up(feeds: Iterable[ShardFeed], stats: Mapping[str, SubscriptionStats], now: float) -> Lag:
    """How far one stream's shards are behind.

    Args:
        feeds: The feeds of its shards.
        stats: What happened to the subscriptions of each shard, by shard id.
        now: Monotonic time, seconds.
    """
    shards = buffered = 0
    furthest: tuple[int, str] | None = None
    for feed in feeds:
        if feed.buffer is None:
            continue
        shards += 1
        buffered += feed.buffer.held
        known = stats.get(feed.key.shard)
        behind = known.lag(now) if known is not None else None
        if behind is not None and (furthest is None or behind > furthest[0]):
            furthest = behind, feed.key.shard
    return Lag(shards, buffered, *(furthest or ()))
