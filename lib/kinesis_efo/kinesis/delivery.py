"""Delivers the events of a shard to a sink, tracks how far the shard was read, and checks for lost records."""

from __future__ import annotations

import logging
from typing import Protocol

from msgspec.structs import replace

from kinesis_efo.aws_errors import describe
from kinesis_efo.decisions.losses import START_SECONDS, Facts, ReadUntil, at_horizon
from kinesis_efo.kinesis.recovery import ReadContext
from kinesis_efo.kinesis.retention import Retention
from kinesis_efo.kinesis.stats import SubscriptionStats
from kinesis_efo.kinesis.transport import Quota
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind
from kinesis_efo.records.events import ChildShard, Event, EventHead

logger = logging.getLogger(__name__)


class EventSink(Protocol):
    """Receives the events of a shard and reserves buffer space for them. While the sink is full, reading pauses."""

    @property
    def room(self) -> Quota:
        """Where the transport reserves space for the next event."""
        ...

    @property
    def committed(self) -> Position | None:
        """The position up to which all queries have committed this sink's events; None before the first commit."""
        ...

    async def admit(self, event: Event) -> None:
        """Accept the next event, using the space that the transport reserved for it. If nothing is reserved, wait for space."""
        ...


class ShardDelivery:
    """Delivers the events of a shard to a sink, one after another. `position` is the end of the last event that the sink admitted."""

    def __init__(
        self,
        context: ReadContext,
        shard_id: str,
        start: Position,
        sink: EventSink,
        stats: SubscriptionStats,
        retention: Retention | None,
        known: Facts,
        reader: str | None = None,
    ) -> None:
        self.shard_id = shard_id
        self.position = start
        # The low watermark of `position`, and which losses are accepted
        self.known = known if start != TRIM_HORIZON else at_horizon(known)
        # Whether records after `position` were trimmed, and the loss is accepted. Other readers must not use `known.read_until` then
        self.lost = False
        self._given = known.read_until
        self._read_until = ReadUntil(known.read_until)
        self.last_event_at: float  # When an event was last received or admitted, monotonic seconds
        # The last sequence number and the children, once ListShards shows the shard as closed
        self.closing: tuple[int, tuple[ChildShard, ...]] | None = None
        self._context = context
        self._sink = sink
        self._stats = stats
        self._retention = retention
        self._reader = reader
        # The position before the first event, or before the first event after a loss; None until this event. For `_begins`
        self._before: Position | None = None
        self._from_horizon = start == TRIM_HORIZON
        self._least = 0.0 if known.planned else START_SECONDS

    async def deliver(self, event: Event) -> None:
        """Deliver an event and advance the position."""
        stats, head, clock = self._stats, event.head, self._context.clock
        read_until = clock.time() - head.millis_behind / 1000
        came = self.last_event_at = stats.last_event = clock.monotonic()
        stats.millis_behind = head.millis_behind
        await self._sink.admit(event)
        self.last_event_at = clock.monotonic()
        self._read_until.observe(read_until, came)
        if self.position == TRIM_HORIZON and not head.still:
            # Discard the caller's low watermark, which is valid only at `TRIM_HORIZON`: the first records may have arrived before it.
            self._read_until.proven = None
        self.known = replace(self.known, read_until=self._read_until.proven)
        if not head.still:
            self._before = self._before or self.position
            self.position, self.lost = event.through, self.lost and not head.records
        elif self._retention is not None and self.known.read_until is not None and not self.lost:
            # Subtract the time for which an event may have waited in the socket, as in `is_passed`.
            until = self.known.read_until - self._context.limits.full
            self._retention.was_idle(self.shard_id, self.position, until, self.known.read_since)
        stats.events += 1
        stats.records += head.records
        stats.bytes += len(event.payload)

    async def deliver_known_end(self) -> bool:
        """If the shard is known to be closed and all its records were delivered, deliver its end. Return whether it was delivered."""
        if self.closing is None or self.position.kind is not PositionKind.AFTER:
            return False
        last, children = self.closing
        if self.position.value < last:
            return False
        await self.deliver(Event(b"", EventHead(None, 0, 0, children)))
        return True

    async def deliver_listed_end(self) -> bool:
        """Called when a subscription ended without an event. If ListShards shows the shard as closed, call `deliver_known_end`."""
        try:
            end = await self._context.presence.end(self.shard_id)
        except Exception as error:
            logger.info("%s: checking whether the shard is closed failed: %s", self, describe(error))
            return False
        self.closing = end or self.closing
        return await self.deliver_known_end()

    async def is_passed(self) -> bool:
        """Whether the trim horizon has passed the position and records are lost. Raises `DataLossError` if the loss is not accepted."""
        if self._retention is None:
            return False
        known = self.known
        if known.read_until is not None and known.read_until != self._given:
            # Subtract `full` seconds: while the sink was full, the event with this low watermark may have waited in the socket that long.
            known = replace(known, read_until=known.read_until - self._context.limits.full)
        logged = self._retention.log.count
        passed = await self._retention.check(
            self.shard_id, self.position, known, begins=self._begins, least=self._least, reader=self._reader
        )
        self.lost = self.lost or (passed is not None and not passed.tolerated)
        if passed is not None and not self._begins:
            # The loss up to the current horizon has been reported. From now on, treat the reader like one that starts at this horizon.
            horizon = await self._retention.horizon()
            self.known = replace(self.known, horizon=horizon, read_since=horizon)
            self._from_horizon, self._before, self._least = True, None, 0.0
        if self._retention.log.count > logged:
            await self._retention.log.write_soon()
        return passed is not None

    @property
    def _begins(self) -> bool:
        """Whether reading began at the trim horizon and no query has committed a record of the first event yet."""
        committed, before = self._sink.committed, self._before
        return self._from_horizon and (before is None or committed in (None, before) or not committed.reaches(before))

    @property
    def seconds_ahead(self) -> float:
        """By how many seconds the position's time is in the future; 0 or less if it has passed, or if the position is not a time."""
        timed = self.position.kind is PositionKind.AT_TIMESTAMP
        return self.position.value / 1000 - self._context.clock.time() if timed else 0.0

    def __str__(self) -> str:
        return f"{self._context.stream.name}:{self.shard_id}"
