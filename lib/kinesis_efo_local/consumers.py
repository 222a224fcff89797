"""Stream consumers and their open subscriptions. No I/O; the caller passes the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .errors import AwsError, in_use, limit_exceeded
from .limits import Bucket
from .shards import Shard
from .streams import Stream

READ_RATE = 2 * 1024 * 1024


class Subscription:
    """The state of one open SubscribeToShard response. The push loop updates it; tests read it.

    `cursor` is the index of the next record to send; `starting_position` is copied from the request.
    """

    def __init__(self, consumer: Consumer, shard: Shard, cursor: int, starting_position: dict[str, Any]) -> None:
        self.consumer = consumer
        self.shard = shard
        self.cursor = cursor
        self.starting_position = starting_position
        self.continuation: str | None = None
        self.events = 0
        self.records = 0
        self.bytes = 0
        self.error: AwsError | None = None
        self.wake: Callable[[], None] = lambda: None

    def fail(self, error: AwsError) -> None:
        """End the response with an exception inside the event stream."""
        if self.error is None:
            self.error = error
            self.wake()


class KeptConsumer(msgspec.Struct):
    """A consumer, as stored in a data directory."""

    stream: str
    name: str
    arn: str
    created_at: float
    tags: dict[str, str]
    policy: str | None = None


class Consumer:
    """A registered consumer of one stream."""

    def __init__(self, name: str, arn: str, stream: Stream, created_at: float) -> None:
        self.name = name
        self.arn = arn
        self.stream = stream
        self.created_at = created_at
        self.status = "CREATING"
        self.tags: dict[str, str] = {}
        self.policy: str | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self._succeeded: dict[str, float] = {}
        self._called: dict[str, float] = {}
        self._rates: dict[str, Bucket] = {}

    def keep(self) -> KeptConsumer:
        """Return the consumer as it is stored in a data directory."""
        return KeptConsumer(self.stream.name, self.name, self.arn, self.created_at, self.tags, self.policy)

    def admit(self, shard: Shard, now: float, resubscribe_seconds: float, interval_seconds: float) -> None:
        """Check whether SubscribeToShard for a shard is allowed at `now` (monotonic seconds).

        Raises AwsError: `ResourceInUseException` within `resubscribe_seconds` after a successful call, or while the consumer is
        not ACTIVE; `LimitExceededException` for a second call within `interval_seconds`.
        """
        account, name = self.stream.arn.split(":")[4], f"{self.stream.name}:{shard.id}:{self.name}"
        if self.status != "ACTIVE":
            raise in_use(f"Consumer {self.arn} is not ACTIVE, instead in state {self.status}")
        called = self._called.get(shard.id)
        self._called[shard.id] = now
        succeeded = self._succeeded.get(shard.id)
        if succeeded is not None and now - succeeded < resubscribe_seconds:
            raise in_use(f"Another active subscription exists for this consumer: {account}:{name}")
        if called is not None and now - called < interval_seconds:
            raise limit_exceeded(f"Rate exceeded for consumer {self.arn} and shard {shard.id}")

    def open(self, subscription: Subscription, now: float) -> None:
        """Open a subscription; an earlier one that is still open for the same shard ends with `ResourceInUseException`."""
        shard_id = subscription.shard.id
        self._succeeded[shard_id] = now
        before = self.subscriptions.pop(shard_id, None)
        if before is not None:
            before.fail(in_use(f"Another subscription has been made for consumer {self.arn} and shard {shard_id}"))
        self.subscriptions[shard_id] = subscription

    def closed(self, subscription: Subscription) -> None:
        """Remove a subscription whose response has ended."""
        subscription.shard.unlisten(subscription.wake)
        if self.subscriptions.get(subscription.shard.id) is subscription:
            del self.subscriptions[subscription.shard.id]

    def fail_all(self, error: AwsError) -> None:
        """End every open subscription with an exception inside the event stream."""
        for subscription in tuple(self.subscriptions.values()):
            subscription.fail(error)

    def rate(self, shard_id: str, now: float) -> Bucket:
        """The 2 MiB/s rate limit of this consumer for a shard, shared by successive subscriptions."""
        if shard_id not in self._rates:
            self._rates[shard_id] = Bucket(READ_RATE, now)
        return self._rates[shard_id]

    def describe(self, *, with_stream: bool) -> dict[str, Any]:
        """Describe the consumer in the format of API responses."""
        shown: dict[str, Any] = {
            "ConsumerARN": self.arn,
            "ConsumerCreationTimestamp": self.created_at,
            "ConsumerName": self.name,
            "ConsumerStatus": self.status,
        }
        if with_stream:
            shown["StreamARN"] = self.stream.arn
        return shown
