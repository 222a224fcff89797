"""Makes the subscriptions to the shards of one stream by one transport, and keeps their statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from kinesis_efo.kinesis.recovery import ReadContext
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.subscription import EventSink, ShardHistory, ShardSubscription
from kinesis_efo.positions import Position


class Subscriptions:
    """Makes the subscriptions of one stream, and remembers per shard when Kinesis allows the next call.

    Args:
        context: How the stream is read.
        retention: Checks whether records after a position may be gone.

    Attributes:
        context: How the stream is read.
        stats: Statistics of each shard's subscriptions, by shard id.
    """

    def __init__(self, context: ReadContext, retention: Retention) -> None:
        self.context: Final = context
        self.stats: dict[str, SubscriptionStats] = {}
        self._retention = retention
        self._histories: dict[str, ShardHistory] = {}

    def make(
        self,
        shard_id: str,
        start: Position,
        sink: EventSink,
        read_until: float | None,
        may_open: Callable[[], Awaitable[None]] | None,
    ) -> ShardSubscription:
        """Make a subscription to one shard. The arguments are those of `Stream.subscribe`."""
        subscription = ShardSubscription(
            self.context,
            shard_id,
            start,
            sink,
            retention=self._retention,
            read_until=read_until,
            history=self.history(shard_id),
            may_open=may_open,
        )
        self.stats[shard_id] = subscription.stats
        return subscription

    def history(self, shard_id: str) -> ShardHistory:
        """Return the state that a shard's subscriptions share."""
        if shard_id not in self._histories:
            self._histories[shard_id] = ShardHistory(self.context, shard_id)
        return self._histories[shard_id]

    def describe(self, shard_id: str) -> str:
        """Describe the subscription to a shard, for messages."""
        return self.stats.get(shard_id, SubscriptionStats()).describe(self.context.clock.monotonic())
