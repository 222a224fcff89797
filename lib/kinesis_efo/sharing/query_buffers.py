"""Decides, whenever a micro-batch is planned, how a query reads each shard: from the buffer that queries share, or by catching up."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from kinesis_efo.decisions.choice import Choice, choose
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.fetcher.buffer import AHEAD_SECONDS
from kinesis_efo.fetcher.micro_batches import Buffers
from kinesis_efo.positions import Position, PositionKind, ShardKey
from kinesis_efo.sharing.apart_reading import ApartReading

if TYPE_CHECKING:
    from kinesis_efo.sharing.query_fetching import QueryFetching
    from kinesis_efo.sharing.sharing import Sharing

logger = logging.getLogger(__name__)


class QueryBuffers:
    """The buffers from which one query plans; implements `Buffers`.

    `ahead` has the shards in which the query is ahead of the shared buffer, each with the time when it began to wait, monotonic seconds.
    """

    def __init__(self, query: QueryFetching, group: Sharing) -> None:
        self.apart: ApartReading
        self.ahead: Final[dict[ShardKey, float]] = {}
        self._query = query
        self._group = group
        self._shared = group.shared

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        """Implements `Buffers`: the shared buffer or the query's own. May move the subscription for the query, or let it catch up."""
        shared = self._shared
        if key in self._query.left:
            return None
        if self._group.alone:
            return shared.buffered(key, position)
        if not self._group.coordinator.may_read(key):
            return None
        buffer = shared.found(key)
        choice = choose(
            position,
            buffer,
            others=bool(self._group.others_at(self._query, key)),
            apart=key in self.apart.claims,
            may_read_apart=self._group.may_read_apart,
            has_waited=self._has_waited(key, position, buffer),
            quiet=shared.quiet(key) > 0,
        )
        if buffer is not None and choice is Choice.APART:
            return self._catch_up(key, position, buffer)
        if choice is Choice.BACK:
            return self._go_back(key, position)
        if key in self.apart.claims:
            # The query's own fetcher has no more to serve: Spark has processed all earlier micro-batches before it plans this one.
            self.apart.end((key,))
            logger.debug("shard %s: a query has caught up, and shares the buffer again at %s", key, position)
        if choice is Choice.BEGIN:
            return shared.buffered(key, position)
        if choice is Choice.FORWARD:
            # If another query moves the subscription back, this query waits again, so that the two do not move it to and fro all the time.
            del self.ahead[key]
            logger.debug(
                "shard %s: a query waits at %s, ahead of the others: it gets the subscription, and they catch up",
                key,
                position,
            )
            return shared.begin_at(key, position)
        return buffer

    def millis_behind(self, key: ShardKey) -> int | None:
        return self._planned_from(key).millis_behind(key)

    def quiet(self, key: ShardKey) -> float:
        return self._planned_from(key).quiet(key)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self._planned_from(key).read_until(key, position)

    def budgets(self, keys: Collection[ShardKey]) -> Iterable[tuple[Collection[ShardKey], int]]:
        apart = {key for key in keys if self.apart.plans(key) is not None} if self.apart.claims else set()
        if apart:
            yield apart, self.apart.fetcher.budget.limit
        yield from self._shared.budgets([key for key in keys if key not in apart] if apart else keys)

    def planned(self, key: ShardKey, through: Position) -> None:
        """Note the end of a micro-batch in a shard. If the shared buffer has what follows, keep that for the query's next micro-batch.

        Otherwise a query that reads as fast as the others, but one micro-batch later, would never reach the shared buffer.
        """
        if key in self.apart.claims:
            buffer = self._shared.found(key)
            meets = buffer is not None and buffer.covers(through) is not False and not buffer.ends_before(through)
            self.apart.claims[key] = buffer.start if buffer is not None and meets else None

    # -- helpers

    def _planned_from(self, key: ShardKey) -> Buffers:
        own = self.apart.plans(key)
        return self._shared if own is None else own

    def _has_waited(self, key: ShardKey, position: Position, buffer: EventIndex | None) -> bool:
        """Whether the query has waited ahead of the buffer for so long that the subscription may move forward to the query."""
        if buffer is None or not buffer.ends_before(position):
            self.ahead.pop(key, None)
            return False
        if self._group.together or not self._group.may_read_apart:
            return False
        now = self._group.clock.monotonic()
        return now - self.ahead.setdefault(key, now) >= AHEAD_SECONDS

    def _catch_up(self, key: ShardKey, position: Position, buffer: EventIndex) -> EventIndex | None:
        if key not in self.apart.claims:
            self.apart.claims[key] = None
            logger.debug(
                "shard %s: a query at %s is behind the shared buffer, and catches up with GetRecords", key, position
            )
        feeds = self.apart.fetcher.feeds
        own = feeds.buffered(key, position)
        at_the_tip = own is not None and feeds.millis_behind(key) == 0 and own.news_since(position) is None
        if at_the_tip and not buffer.records and self._are_reached(key, position):
            # All queries are caught up and the buffer is empty, so the subscription may restart here; at worst, it repeats some records.
            self.apart.end((key,))
            return self._shared.begin_at(key, position)
        return own

    def _are_reached(self, key: ShardKey, position: Position) -> bool:
        """Whether the other queries have read everything up to a position."""
        return all(other.reaches(position) and _is_number(other) for other in self._group.others_at(self._query, key))

    def _go_back(self, key: ShardKey, position: Position) -> EventIndex | None:
        """Move the subscription back to a slow query, unless a task reads the shard. Without GetRecords, all queries wait for the slowest."""
        others = self._group.others_at(self._query, key)
        if not all(other == position or _is_number(other) for other in others) or (
            position.kind in (PositionKind.AT_TIMESTAMP, PositionKind.INSIDE)
        ):
            raise ConfigurationError(
                f"shard {key}: a query begins at {position}, and other queries of this program read elsewhere. Kinesis lets none of them "
                "catch up: grant kinesis:GetRecords and kinesis:GetShardIterator on the stream, or start it at LATEST or TRIM_HORIZON"
            )
        if self._shared.is_read(key):
            return None
        return self._shared.begin_at(key, position)


def _is_number(position: Position) -> bool:
    return position.kind is PositionKind.AFTER
