"""Delivers the events of a shard to a sink, keeps how far the shard was read, and checks that no records before that were lost."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from kinesis_efo.aws_errors import describe
from kinesis_efo.kinesis.recovery import ReadContext
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.transport import Room
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind
from kinesis_efo.records.events import ChildShard, Event, EventHead

logger = logging.getLogger(__name__)

AT_HORIZON_SECONDS: Final = 600.0
"""A reader that begins at the trim horizon reads records that are about to be trimmed. While the reader is near the horizon, the horizon
may be this many seconds ahead of it, which does not count as a loss."""


class EventSink(Protocol):
    """Receives the events of a shard and grants the room for them. While the sink is full, the shard is not read."""

    @property
    def room(self) -> Room:
        """Where the transport takes room for the next event."""
        ...

    async def admit(self, event: Event) -> None:
        """Take the next event and the room that the transport took for it. If the transport took none, wait for room."""
        ...


class ShardDelivery:
    """Delivers the events of a shard, up to `position`, after the last event that the sink admitted.

    All records that arrived before `read_until`, epoch seconds, lie at or before `position`; None: not known. `heard_at` is when the last
    event came or was admitted, monotonic seconds; `closing` the last number and the children, once ListShards shows the shard as closed.
    """

    def __init__(
        self,
        context: ReadContext,
        shard_id: str,
        start: Position,
        sink: EventSink,
        stats: SubscriptionStats,
        retention: Retention | None,
        read_until: float | None,
    ) -> None:
        self.shard_id = shard_id
        self.position = start
        self.read_until = read_until
        self.heard_at: float
        self.closing: tuple[int, tuple[ChildShard, ...]] | None = None
        self._context = context
        self._sink = sink
        self._stats = stats
        self._retention = retention
        self._at_horizon = start == TRIM_HORIZON

    async def deliver(self, event: Event) -> None:
        """Deliver an event, and note the position after it."""
        stats, head, clock, limits = self._stats, event.head, self._context.clock, self._context.limits
        read_until = clock.time() - head.millis_behind / 1000
        self.heard_at = stats.last_event = clock.monotonic()
        stats.millis_behind = head.millis_behind
        await self._sink.admit(event)
        self.heard_at = clock.monotonic()
        self.read_until = read_until
        if clock.time() - read_until < limits.shortest_retention - AT_HORIZON_SECONDS:
            self._at_horizon = False
        if not head.still:
            self.position = event.through
        stats.events += 1
        stats.records += head.records
        stats.bytes += len(event.payload)

    async def deliver_known_end(self) -> bool:
        """Deliver the end of the shard if it is known to be closed and its last record was delivered. Returns whether it did."""
        if self.closing is None or self.position.kind is not PositionKind.AFTER:
            return False
        last, children = self.closing
        if self.position.value < last:
            return False
        await self.deliver(Event(b"", EventHead(None, 0, 0, children)))
        return True

    async def deliver_listed_end(self) -> bool:
        """Ask Kinesis whether the shard is closed, because no event came; then do the same as `deliver_known_end`."""
        try:
            end = await self._context.presence.end(self.shard_id)
        except Exception as error:
            logger.info("%s: whether the shard is closed cannot be asked for now: %s", self, describe(error))
            return False
        self.closing = end or self.closing
        return await self.deliver_known_end()

    async def is_passed(self) -> bool:
        """Whether the trim horizon has passed the position. Raises `DataLossError` if it has, and lost records fail the query."""
        if self._retention is None:
            return False
        grace = AT_HORIZON_SECONDS if self._at_horizon else 0.0
        passed = await self._retention.check(self.shard_id, self.position, self.read_until, grace)
        self._at_horizon = self._at_horizon or passed
        return passed

    @property
    def seconds_ahead(self) -> float:
        """How many seconds the position is in the future; 0 or less if it is not."""
        timed = self.position.kind is PositionKind.AT_TIMESTAMP
        return self.position.value / 1000 - self._context.clock.time() if timed else 0.0

    def __str__(self) -> str:
        return f"{self._context.stream.name}:{self.shard_id}"
