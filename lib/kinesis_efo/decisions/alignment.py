"""Aligns the shards of a query by arrival time (option `maxShardSkew`).

Spark's watermark follows the newest event time of all shards. While a query reads a backlog, a shard with few records would move the
watermark past unread records of other shards, and stateful operators would drop these records as late. So no micro-batch reads a record
that arrived more than `maxShardSkew` after the earliest unread record of all shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import Final, NamedTuple

from kinesis_efo.decisions.event_index import EventIndex, Portion
from kinesis_efo.positions import Position, PositionKind, ShardKey

logger = logging.getLogger(__name__)

CLOCK_SECONDS: Final = 5.0
"""Assumed clock error in seconds, subtracted from low watermarks: they come from this machine's clock if Kinesis' time is unknown."""

SILENT_SECONDS: Final = 60.0
"""Maximum seconds for which a shard that receives no events holds up the other shards."""

_ROUNDS: Final = 8
_WARN_SECONDS: Final = 10.0


class _Frontier(NamedTuple):
    """How far a query has read a shard, by arrival time."""

    at: float  # All records that arrived before this time were read, epoch milliseconds
    since: float  # When `at` was last raised, monotonic seconds


class Alignment:
    """Limits how far each shard of a query may be ahead of the slowest one, in arrival time.

    Args:
        most: The largest allowed difference in seconds.
        read_until: Returns the low watermark of a position in a shard, epoch seconds by Kinesis' clock; None if unknown.
    """

    def __init__(self, most: float, read_until: Callable[[ShardKey, Position], float | None]) -> None:
        self._most = most * 1000
        self._read_until = read_until
        self._frontiers: dict[ShardKey, _Frontier] = {}
        self._silent: frozenset[ShardKey] = frozenset()
        self._held_since: float | None = None
        self._warned_at = -inf

    def follow(self, moved: Mapping[ShardKey, Position], left: Iterable[ShardKey], now: float) -> None:
        """Record the query's new positions and finished shards (`left`).

        Until a new shard has an event, it counts as read up to its start time. Without a start time, all other shards wait for it."""
        for key, position in moved.items():
            if position.is_end:
                self._frontiers.pop(key, None)
            elif key not in self._frontiers:
                begins = position.value if position.kind is PositionKind.AT_TIMESTAMP else -inf
                self._frontiers[key] = _Frontier(begins, now)
        for key in left:
            self._frontiers.pop(key, None)

    def record_position(self, key: ShardKey, buffer: EventIndex, position: Position, now: float) -> None:
        """Record that the query has read a shard up to `position`. `buffer`: the shard's buffered events, with their arrival times."""
        frontier = self._frontiers.get(key)
        found = self._frontier(key, buffer, position)
        if frontier is None or found > frontier.at:
            self._frontiers[key] = _Frontier(found, now)

    def plan_portions(
        self,
        buffers: Mapping[ShardKey, EventIndex],
        positions: Mapping[ShardKey, Position],
        plan: Callable[[float], dict[ShardKey, Portion]],
        now: float,
    ) -> dict[ShardKey, Portion]:
        """Plan a micro-batch after which no shard is too far ahead. Return how far to read each shard of `buffers`.

        Each buffer must have unread events and cover the shard's position. `plan` is called with a horizon (epoch milliseconds). It
        divides the limits of the micro-batch among the shards, and leaves out records that arrived after the horizon.
        """
        if not buffers:
            return {}
        for key, buffer in buffers.items():
            self.record_position(key, buffer, positions[key], now)
        others = self._slowest_but(buffers, now)
        slowest = min([others, *(self._frontiers[key].at for key in buffers)])

        def planned(horizon: float) -> tuple[dict[ShardKey, Portion], float]:
            portions = plan(horizon)
            return portions, self._horizon(portions, buffers, others)

        horizon = slowest + self._most
        kept, reached = planned(horizon)
        if all(buffer.newest <= horizon for buffer in buffers.values()):
            return kept
        # Start with even shares. Then give slow shards the capacity that fast shards cannot use because of `horizon`.
        _, reached = planned(inf)
        for _ in range(_ROUNDS):
            if reached <= horizon:
                break
            horizon = reached
            portions, reached = planned(horizon)
            if reached < horizon:
                break
            kept = portions
        if any(portion.records or portion.through.is_end for portion in kept.values()):
            self._held_since = None
        else:
            self._warn_waiting(len(buffers), now)
        return kept

    def _horizon(
        self, portions: Mapping[ShardKey, Portion], buffers: Mapping[ShardKey, EventIndex], others: float
    ) -> float:
        """Return the latest arrival time (epoch milliseconds) up to which any shard may be read, once these portions have been read.

        `others`: the arrival time (epoch milliseconds) up to which the slowest shard outside `buffers` was read."""
        left = (self._frontier(key, buffers[key], portion.through) for key, portion in portions.items())
        return min([others, *left]) + self._most

    def _frontier(self, key: ShardKey, buffer: EventIndex, position: Position) -> float:
        """Return the low watermark of a position (epoch milliseconds), assuming that records arrived in order."""
        known = frontier.at if (frontier := self._frontiers.get(key)) else -inf
        waiting = buffer.arrival_after(position)
        if waiting is not None:
            return max(known, waiting)
        if position.is_end:
            # All unread records are in the shard's children, so they arrived after the shard's newest record.
            return max(known, buffer.newest)
        read_until = self._read_until(key, buffer.end)
        return max(known, buffer.newest, -inf if read_until is None else (read_until - CLOCK_SECONDS) * 1000)

    def _slowest_but(self, buffers: Mapping[ShardKey, EventIndex], now: float) -> float:
        """Return the arrival time (epoch milliseconds) up to which the slowest shard outside `buffers` was read."""
        slowest = inf
        silent = set()
        for key, frontier in self._frontiers.items():
            if key in buffers:
                continue
            if now - frontier.since > SILENT_SECONDS:
                silent.add(key)
            elif frontier.at < slowest:
                slowest = frontier.at
        if new := silent - self._silent:
            logger.warning(
                "shard %s and %d others have had no event for %.0f s: other shards no longer wait for them. Their rows may be older than "
                "the watermark, and stateful operators drop such rows",
                min(new),
                len(silent) - 1,
                SILENT_SECONDS,
            )
        self._silent = frozenset(silent)
        return slowest

    def _warn_waiting(self, waiting: int, now: float) -> None:
        if self._held_since is None:
            self._held_since = self._warned_at = now
        if now - self._warned_at < _WARN_SECONDS:
            return
        self._warned_at = now
        key, frontier = min(self._frontiers.items(), key=lambda each: each[1])
        come = "has had no event yet" if frontier.at == -inf else f"was read up to {_text(frontier.at)}"
        logger.warning(
            "for %.0f s, %d shards have waited, because none may be more than maxShardSkew, %g s, ahead of the slowest: %s, which %s",
            now - self._held_since,
            waiting,
            self._most / 1000,
            key,
            come,
        )


def _text(epoch_ms: float) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
