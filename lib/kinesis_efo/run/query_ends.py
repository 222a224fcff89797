"""Finds where a query ends: in each shard at its tip, or at `endingPosition` if that is earlier."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.losses import is_whole, time_of, written_at
from kinesis_efo.decisions.quiet import FUTURE_SECONDS, SETTLED_SECONDS
from kinesis_efo.errors import AccessRefusedError
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.streams import Streams, by_stream
from kinesis_efo.kinesis.bounds import check_ends, check_streams
from kinesis_efo.kinesis.ends import End
from kinesis_efo.options import Bounds
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind, ShardKey

logger = logging.getLogger(__name__)

_MARGIN_SECONDS: Final = 60.0
"""Margin for comparing `endingPosition` with sequence numbers: assumed maximum seconds between a number's time and its record's arrival."""
_OPTION: Final = "kinesis-efo option 'endingPosition'"


SuspendOthers = Callable[[Collection[ShardKey]], AbstractAsyncContextManager[Mapping[ShardKey, Position]]]


class EndPositions(NamedTuple):
    """The positions at which a query ends, for each shard that it may read."""

    ends: Mapping[ShardKey, Position]  # `endingPosition`, or the shard's tip if the tip is earlier
    lasts: Mapping[ShardKey, int] = {}  # The sequence number of the last record up to the end, if known


def seconds_left(bounds: Bounds, clock: Clock) -> float:
    """Return the seconds until the latest time in `endingPosition` has passed; 0 if that time is too far in the future to be valid."""
    given = (bounds.everywhere, *bounds.streams.values(), *bounds.shards.values())
    times = [bound.value / 1000 for bound in given if bound is not None and bound.kind is PositionKind.AT_TIMESTAMP]
    left = max(times, default=0.0) + SETTLED_SECONDS - clock.time()
    return max(0.0, left) if left <= FUTURE_SECONDS + SETTLED_SECONDS else 0.0


class Ends:
    """Finds where a query at `offset` ends. List the shards of `streams` just before creating this object.

    Raises ConfigurationError if `endingPosition` names a missing stream or shard, or a time in the future.

    Attributes:
        listed: The shards that the query may read.
        gone: The shards of `offset` that were trimmed.
    """

    def __init__(
        self,
        bounds: Bounds,
        streams: Streams,
        offset: Mapping[ShardKey, Position],
        clock: Clock,
    ) -> None:
        self._bounds = bounds
        self._streams = streams
        self._clock = clock
        self._offset = offset
        # Each shard's end time, if any: its time in `endingPosition`, or else the earliest end time of its parents
        self._times: Final[dict[ShardKey, Position]] = {}
        check_streams("endingPosition", bounds, streams.streams)
        for name, stream in streams.streams.items():
            shards = stream.lineage.shards
            check_ends(f"stream {name!r}", _OPTION, bounds, name, shards, clock.time())
            for shard in shards if bounds.shards else ():
                self._inherit(ShardKey(name, shard.shard_id), shard.parents)
        # Treat trimmed shards as finished, so that their descendants are read. `Losses` reports the loss.
        self.gone: Final = {
            ShardKey(name, shard): SHARD_END
            for name, positions in by_stream(offset).items()
            for shard in streams.stream(name).lineage.vanished(positions)
        }
        self._ends: dict[ShardKey, Position | None] = {**self.gone}
        self._lasts: dict[ShardKey, int] = {}
        self._timed: list[ShardKey] = []
        self._open: list[ShardKey] = []
        listed = streams.ends({**offset, **self.gone})
        self.listed: Final = listed.keys()
        for key, end in listed.items():
            bound, begin = self._bound(key), offset.get(key, TRIM_HORIZON)
            if begin.is_end:
                self._ends[key] = SHARD_END  # even if an outdated list shows the shard as open
            elif bound is not None and bound.kind is PositionKind.AT_TIMESTAMP:
                self._timed.append(key)
            elif end is None:
                bound = self._ends[key] = bound and self._not_before(key, bound, begin)
                if begin.kind is PositionKind.AT_TIMESTAMP and begin.value / 1000 > clock.time():
                    self._ends[key] = begin  # nothing to read: the query starts at a time in the future
                elif bound is None or not begin.reaches(bound):
                    self._open.append(key)
            elif bound is None or bound.is_end or is_whole(streams.stream(key.stream).shard(key.shard), bound):
                self._ends[key] = SHARD_END
            else:
                self._ends[key] = self._not_before(key, bound, begin)

    @property
    def pending(self) -> list[ShardKey]:
        """The shards that must be read from Kinesis to find their end."""
        return [*self._timed, *self._open]

    async def find(self, suspend_others: SuspendOthers) -> EndPositions:
        """Find the end positions with GetRecords or, if it may not be used, with subscriptions. Raises `StreamError` on failure.

        Before subscribing, enters the context of `suspend_others`, which closes other subscriptions and yields tips that are already known.
        """
        if all(self._streams.stream(key.stream).may_poll for key in self.pending):
            try:
                return await self._find({}, separate=True)
            except AccessRefusedError as error:
                logger.info("the ends of shards are found with subscriptions, which takes longer: %s", error)
        async with suspend_others(self.pending) as known:
            return await self._find(known, separate=False)

    async def _find(self, known: Mapping[ShardKey, Position], *, separate: bool) -> EndPositions:
        await all_of(*(self._at_time(key, separate=separate) for key in self._timed))
        left = set(self._open)
        # A shard that is listed as open may turn out to be closed. Then find the ends of its children, too.
        while asked := sorted(left & self._reachable().keys()):
            left.difference_update(asked)
            await all_of(*(self._tip(key, known.get(key), separate=separate) for key in asked))
        ends = {key: position for key, position in self._reachable().items() if position is not None}
        return EndPositions(ends, {key: self._lasts[key] for key in self._lasts.keys() & ends})

    def _set(self, key: ShardKey, end: End) -> None:
        self._ends[key] = end.position
        if end.record is not None:
            self._lasts[key] = end.record

    async def _tip(self, key: ShardKey, known: Position | None, *, separate: bool) -> None:
        position, bound = self._offset.get(key, TRIM_HORIZON), self._bound(key)
        stream = self._streams.stream(key.stream)
        tip = End(known) if known is not None else await stream.tip(key.shard, position, separate=separate)
        if bound is None or (not tip.position.is_end and bound.reaches(tip.position)):
            self._set(key, tip)

    def _bound(self, key: ShardKey) -> Position | None:
        if key in self._bounds.shards:
            return self._bounds.shards[key]
        return self._times.get(key) or self._bounds.of(key.stream)

    def _inherit(self, key: ShardKey, parents: Iterable[str]) -> None:
        """Set a shard's end time, from `endingPosition` or from the end times of its parents. Call this for the parents first."""
        named = self._bounds.shards.get(key)
        inherited = [self._times.get(ShardKey(key.stream, parent)) for parent in parents] if named is None else [named]
        times = [each for each in inherited if each is not None and each.kind is PositionKind.AT_TIMESTAMP]
        if times:
            self._times[key] = min(times, key=lambda time: time.value)

    def _not_before(self, key: ShardKey, bound: Position, begin: Position) -> Position:
        """Return the end `bound`, or the start `begin` if that is a later time: the next run must not read records from before `begin`."""
        written = time_of(key.shard, bound, self._clock.time())
        start = begin.value / 1000 if begin.kind is PositionKind.AT_TIMESTAMP else 0.0
        return begin if written is not None and written + 1 <= start else bound  # `written` is in whole seconds

    async def _at_time(self, key: ShardKey, *, separate: bool) -> None:
        position, bound = self._offset.get(key, TRIM_HORIZON), self._bound(key)
        stream = self._streams.stream(key.stream)
        assert bound is not None
        end = self._known_end(key, position, bound.value / 1000)
        self._set(key, end or await stream.end_before(key.shard, bound.value, position, separate=separate))

    def _known_end(self, key: ShardKey, position: Position, time: float) -> End | None:
        """Return a shard's end position for `time` without calling Kinesis: only if it was certainly not open at that time, else None."""
        if (shard := self._streams.stream(key.stream).shard(key.shard)) is None:
            return None
        if shard.last is not None:
            closed = written_at(shard.last, key.shard, self._clock.time())
            if closed is not None and closed < time - _MARGIN_SECONDS:
                return End(SHARD_END)
        opened = written_at(shard.first, key.shard, self._clock.time())
        return End(position) if opened is not None and opened > time + _MARGIN_SECONDS else None

    def _reachable(self) -> dict[ShardKey, Position | None]:
        """Return the end of each shard that the query reads (None if not found yet). Only children of finished parents are read."""
        kept: dict[ShardKey, Position | None] = {}
        for key in sorted(self._ends):  # shard ids increase, so parents come first
            shard = self._streams.stream(key.stream).shard(key.shard)
            parents = [ShardKey(key.stream, parent) for parent in (shard.parents if shard is not None else ())]
            # A parent that is not in `_ends` is not read by this query, so its children do not wait for it.
            read = [each not in self._ends or kept.get(each) == SHARD_END for each in parents]
            if key in self._offset or all(read):
                kept[key] = self._ends[key]
        return kept
