"""Decides for one shard which events are retained, which queries catch up with GetRecords, and where the subscription restarts.

All queries share one buffer of a shard, which a subscription fills. A query that is behind has a separate buffer, filled with GetRecords.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.positions import Position, PositionKind, lowest, rank

# Minimum seconds before a subscription moves to another position again: Kinesis limits how often it can be reopened.
MOVE_SECONDS: Final = 5.0
SEPARATE_SECONDS: Final = 1.0
# An idle shared buffer that serves a query waits this many seconds before it moves back for another query that is behind.
IDLE_SECONDS: Final = 60.0
# A buffer that lags behind the tip by at most this many seconds will soon reach the position of any query that is ahead of it.
NEAR_SECONDS: Final = 10.0
# For this many seconds after an event with records, assume at least that event's lag: events without records may report too small a lag.
BELIEVED_SECONDS: Final = 15.0
# If a full buffer has no space for the next event for this many seconds, the query that retains the most events switches to GetRecords.
STARVING_SECONDS: Final = 2.0


class Demand(NamedTuple):
    """The positions of one query in a shard. They determine which buffered events it needs."""

    lowest: Position  # The query has finished everything up to here
    reach: Position  # The query has planned up to here
    requested: Position | None = None  # Position from which a task waits to read; None without a waiting task

    @property
    def restart_at(self) -> Position:
        """Where a new buffer for the query begins: at `requested`, or else at `lowest`, where a repeated micro-batch would begin."""
        return self.lowest if self.requested is None else self.requested

    @property
    def plans(self) -> bool:
        """Whether an unfinished micro-batch or a waiting task reads the shard."""
        return self.reach != self.lowest or self.requested is not None

    @property
    def current(self) -> Position:
        return self.reach if self.requested is None else self.requested


class BufferView(NamedTuple):
    """The state of a buffer, as input for `decide`. Times are in seconds."""

    events: EventIndex
    lag: float | None  # How far the buffer's end is behind the tip; None if unknown
    silent: float  # Time since the buffer's last event
    age: float  # Time since the buffer began or moved
    waits: bool = False  # Whether the next event is waiting for space
    quiet: bool = False  # Whether the buffer seems to be at the tip; a first event, which shows what it covers, may then never arrive
    retained_from: Position | None = None  # If set, events before this position are about to be dropped

    def has(self, position: Position) -> bool:
        """Whether the buffer has, or will receive, everything after a position."""
        if self.retained_from is not None and rank(position) < rank(self.retained_from):
            return False
        covered = self.events.covers(position)
        return not self.quiet if covered is None else covered

    def serves(self, position: Position) -> bool:
        """Whether a task can read from a position without a long wait."""
        near = self.lag is None or self.lag <= NEAR_SECONDS or not self.events.ends_before(position)
        return near and self.has(position)

    def is_within(self, demand: Demand) -> bool:
        """Whether the buffer begins before or within the micro-batches that a query has planned."""
        return self.has(demand.reach) or self.has(demand.lowest)


class Decision(NamedTuple):
    """What to do with the buffers of a shard."""

    restart_at: Position | None  # Where the subscription restarts; None if it continues
    retain_from: Position  # The lowest position in `retained`; the shared buffer drops all earlier events
    retained: Mapping[str, Position]  # From which position the shared buffer retains events, for each query
    separate: Mapping[str, Position]  # For each query with a separate buffer, where this buffer begins
    rules: tuple[str, ...] = ()  # Names of the rules that applied


def decide(
    queries: Mapping[str, Demand],
    shared: BufferView | None,
    separate: Mapping[str, BufferView],
    *,
    hold: bool,
    may_poll: bool,
) -> Decision:
    """Decide about one shard's buffers. `hold`: queries wait for the slowest one (`slowQueries`). `may_poll`: allow separate buffers."""
    restart_at, rule = None, ""
    if shared is None:
        ends = [each.lowest for each in queries.values()]
        planned = [each.lowest for each in queries.values() if each.plans]
        restart_at, rule = (max(ends, key=rank) if may_poll else lowest(planned or ends)), "open"
    elif shared.age >= MOVE_SECONDS:
        restart_at, rule = _restart(queries, shared, separate, hold=hold, may_poll=may_poll)
    if shared is None or restart_at is not None:
        assert restart_at is not None
        shared = BufferView(EventIndex(restart_at), None, 0.0, 0.0)
    kept = {name: at for name, each in queries.items() if (at := _floor(each, shared, separate.get(name))) is not None}
    keep, rules = (lowest(kept.values()) if kept else shared.events.end), [rule] if rule else []
    later = [at for at in kept.values() if shared.events.index_after(at) > shared.events.index_after(keep)]
    if later and may_poll and not hold and _starves(queries, shared):
        keep = lowest(later)  # at least one event is dropped, even if several queries need the first one
        kept = {name: at for name, at in kept.items() if rank(at) >= rank(keep)}
        shared = shared._replace(retained_from=keep)
        rules.append("full")
    reading = queries.items() if may_poll else ()
    rows = {name: at for name, each in reading if (at := _separate_start(each, shared, separate.get(name))) is not None}
    return Decision(restart_at, keep, kept, rows, tuple(rules))


def _restart(
    queries: Mapping[str, Demand], shared: BufferView, separate: Mapping[str, BufferView], *, hold: bool, may_poll: bool
) -> tuple[Position | None, str]:
    """Return where the subscription restarts, and the rule that applied; None and "" if it continues."""
    ends = [each.lowest for each in queries.values()]
    far = shared.lag is not None and shared.lag > NEAR_SECONDS
    if not may_poll:
        unserved = [
            each
            for each in queries.values()
            if not (shared.has(each.current) if each.requested is not None else shared.is_within(each))
        ]
        # Serve waiting tasks first, then planned micro-batches. Both end soon, and the other queries can wait until then.
        urgent = [each for each in unserved if each.requested is not None]
        receives = any(each.plans and shared.events.ends_before(each.reach) for each in queries.values())
        if unserved and (urgent or not receives or shared.age >= IDLE_SECONDS):
            first = urgent or [each for each in unserved if each.plans] or unserved
            heard = shared.events.end != shared.events.start and bool(urgent)
            served = len(unserved) < len(queries)
            moves = shared.events.records or heard or not served or shared.age >= IDLE_SECONDS
            return (lowest(each.restart_at for each in first), "back") if moves else (None, "")
        return (lowest(ends), "all ahead") if far and all(map(shared.events.ends_before, ends)) else (None, "")
    furthest = max(ends, key=rank)
    if far and not hold and shared.events.ends_before(furthest):
        return furthest, "forward"
    behind = [name for name, each in queries.items() if not shared.is_within(each)]
    if len(behind) == len(queries):
        return furthest, "unused"
    idle = not shared.events.records and not any(each.plans for each in queries.values())
    if behind and idle and all(_is_at_tip(queries[name], separate.get(name)) for name in behind):
        start = lowest(queries[name].reach for name in behind)
        # Without a first event, a buffer that starts at a time or at the horizon would not serve the queries that are at a number.
        return (start, "idle") if start.kind is PositionKind.AFTER else (None, "")
    return None, ""


def _is_at_tip(demand: Demand, row: BufferView | None) -> bool:
    # Do not use the lag, which is outdated if the buffer has waited for space.
    return row is not None and row.quiet and row.has(demand.reach) and row.events.news_since(demand.reach) is None


def _floor(demand: Demand, shared: BufferView, own: BufferView | None) -> Position | None:
    """Return from which position the shared buffer retains events for a query; None if it does not cover the query's positions."""
    if shared.has(demand.lowest):
        return demand.lowest
    if not shared.has(demand.reach):
        return None
    # The shared buffer has only the last events of the planned micro-batches. It need not retain events that the separate buffer also has.
    first = shared.events.start if own is None or not own.has(demand.lowest) else lowest((demand.reach, own.events.end))
    return max(shared.events.start, first, key=rank)


def _starves(queries: Mapping[str, Demand], shared: BufferView) -> bool:
    """Whether the query that is furthest ahead has planned all events of a full buffer and is waiting for the next event."""
    furthest = max((each.reach for each in queries.values()), key=rank)
    return shared.waits and shared.silent >= STARVING_SECONDS and shared.events.news_since(furthest) is None


def _separate_start(demand: Demand, shared: BufferView, row: BufferView | None) -> Position | None:
    """Return where a query's separate buffer begins; None if the shared buffer serves the query."""
    served = shared.serves(demand.current) or (demand.requested is None and shared.serves(demand.lowest))
    if row is None:
        return None if served else demand.restart_at
    if served and shared.has(demand.lowest):
        return None
    if row.events.ends_before(demand.lowest):
        return demand.restart_at
    has = row.is_within(demand) if demand.requested is None else row.has(demand.requested)
    return demand.restart_at if not (served or has) and row.age >= SEPARATE_SECONDS else row.events.start
