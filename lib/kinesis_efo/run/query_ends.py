"""Finds where a query ends: at the tips of its streams, or before them, at `endingPosition`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.losses import written_at
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.ends import End
from kinesis_efo.options import Bounds
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, PositionKind, ShardKey

_FUTURE_SECONDS: Final = 5.0
_MARGIN_SECONDS: Final = 60.0
"""Assumed maximum difference between the time in a sequence number and the arrival of its record."""


class EndPositions(NamedTuple):
    """The positions at which a query ends, shard by shard. `complete`: whether all are known and final.

    `ends` has each shard that the query may reach, with None if its end can only be found by reading the shard. An end from the option
    `endingPosition` moves back to the shard's tip, if the tip turns out to be before it. `lasts` has the sequence number of the last record
    up to an end, if known without reading.
    """

    ends: Mapping[ShardKey, Position | None]
    complete: bool
    lasts: Mapping[ShardKey, int] = {}


class Ends:
    """Finds the ends of one query that has come to `offset`, as of the time when this object is made.

    The shards of `streams` have just been listed. `apart`: whether to ask with GetRecords; see `Stream.tip`. The attribute `open` has the
    open shards whose tips are still to be found, with their start positions. Raises ConfigurationError if the option `endingPosition` names
    a stream or shard that does not exist, or a time in the future.
    """

    def __init__(
        self,
        bounds: Bounds,
        streams: Streams,
        offset: Mapping[ShardKey, Position],
        clock: Clock,
        *,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self._bounds = bounds
        self._streams = streams
        self._clock = clock
        self._offset = offset
        self._check()
        self._ends: dict[ShardKey, Position | None] = {}
        self._lasts: dict[ShardKey, int] = {}
        self._timed: list[ShardKey] = []
        self.open: dict[ShardKey, Position] = {}
        for key, end in streams.ends(offset).items():
            bound = self._bound(key)
            if bound is not None and bound.kind is PositionKind.AT_TIMESTAMP:
                self._timed.append(key)
            elif end is None:
                begin = offset.get(key, TRIM_HORIZON)
                self._ends[key] = bound
                if begin.kind is PositionKind.AT_TIMESTAMP and begin.value / 1000 > clock.time():
                    self._ends[key] = begin  # the query starts at a time in the future
                else:
                    self.open[key] = begin
            else:
                self._ends[key] = self._of_closed(key, bound)

    @property
    def asked(self) -> list[ShardKey]:
        """The shards whose ends only Kinesis knows."""
        return [*self._timed, *self.open]

    async def ask(self) -> None:
        """Ask Kinesis for the position of each end that is given as a time. Raises `StreamError` if it cannot be found."""
        found = await all_of(*(self._at_time(key) for key in self._timed))
        for key, end in zip(self._timed, found, strict=True):
            self._set(key, end)

    async def probe(self, keys: Iterable[ShardKey]) -> None:
        """Ask Kinesis for the tips of shards that cannot be read up to them, because the buffers are full. Raises `StreamError`."""
        asked = list(keys)
        tips = await all_of(
            *(self._streams.stream(key.stream).tip(key.shard, self.open[key], apart=self._apart) for key in asked)
        )
        for key, tip in zip(asked, tips, strict=True):
            if key in self.open:
                self._note(key, tip.position)
                if self._ends[key] == tip.position:
                    self._set(key, tip)

    def found(self, tip: Callable[[ShardKey], Position | None]) -> EndPositions:
        """The ends that are known by now. `tip` returns the tip that a shard had when the search for the ends began, if known."""
        for key in list(self.open):
            if (at := tip(key)) is not None:
                self._note(key, at)
        ends = self._reachable()
        return EndPositions(
            ends, self.open.keys().isdisjoint(ends), {key: self._lasts[key] for key in self._lasts.keys() & ends}
        )

    def numbers_of_records(self, ends: Mapping[ShardKey, Position]) -> dict[ShardKey, int]:
        """Those `ends` that GetRecords has found, because they are the sequence numbers of records."""
        return {
            key: end.value
            for key, end in ends.items()
            if end.kind is PositionKind.AFTER
            and self._streams.stream(key.stream).ref.polled
            and end not in (self._bound(key), self._offset.get(key))
        }

    def fetched(self, key: ShardKey, position: Position) -> None:
        """Note how far a shard was read. If it was read up to its end from the option, its tip need not be found."""
        bound = self._ends[key]
        if position.is_end or (bound is not None and position.reaches(bound)):
            self._note(key, position)

    def _set(self, key: ShardKey, end: End) -> None:
        self._ends[key] = end.position
        if end.record is not None:
            self._lasts[key] = end.record

    def _note(self, key: ShardKey, tip: Position) -> None:
        del self.open[key]
        bound = self._ends[key]
        self._ends[key] = tip if bound is None or (not tip.is_end and bound.reaches(tip)) else bound

    def _bound(self, key: ShardKey) -> Position | None:
        return self._bounds.shards[key] if key in self._bounds.shards else self._bounds.of(key.stream)

    def _of_closed(self, key: ShardKey, bound: Position | None) -> Position:
        if bound is None or bound.is_end:
            return SHARD_END
        shard = self._streams.stream(key.stream).shard(key.shard)
        whole = shard is not None and shard.last is not None and bound.value >= shard.last
        return SHARD_END if whole else bound

    async def _at_time(self, key: ShardKey) -> End:
        bound, position, stream = (
            self._bound(key),
            self._offset.get(key, TRIM_HORIZON),
            self._streams.stream(key.stream),
        )
        assert bound is not None
        if (known := self._without_asking(key, position, bound.value / 1000)) is not None:
            return End(known)
        return await stream.end_before(key.shard, bound.value, position, apart=self._apart)

    def _without_asking(self, key: ShardKey, position: Position, time: float) -> Position | None:
        """The end of a shard at a time, if the shard was certainly closed before that time or opened after it; else None."""
        if (shard := self._streams.stream(key.stream).shard(key.shard)) is None:
            return None
        if shard.last is not None:
            closed = written_at(shard.last, key.shard, self._clock.time())
            if closed is not None and closed < time - _MARGIN_SECONDS:
                return SHARD_END
        opened = written_at(shard.first, key.shard, self._clock.time())
        return position if opened is not None and opened > time + _MARGIN_SECONDS else None

    def _reachable(self) -> dict[ShardKey, Position | None]:
        """The ends of all shards that the query reads. The query starts no shard whose parents it does not read to their end."""
        kept: dict[ShardKey, Position | None] = {}
        for key in sorted(self._ends):  # ids grow, so parents come first
            shard = self._streams.stream(key.stream).shard(key.shard)
            parents = [ShardKey(key.stream, parent) for parent in (shard.parents if shard is not None else ())]
            # A parent that the query has already read is not among the ends.
            read = [each not in self._ends or kept.get(each) == SHARD_END for each in parents]
            if key in self._offset or all(read):
                kept[key] = self._ends[key]
        return kept

    def _check(self) -> None:
        streams = self._streams.streams
        if unknown := sorted(self._bounds.names - streams.keys()):
            raise ConfigurationError(
                f"kinesis-efo option 'endingPosition' names {', '.join(map(repr, unknown))}, but the query reads "
                f"{', '.join(map(repr, sorted(streams)))}"
            )
        for key, bound in self._bounds.shards.items():
            shard = self._streams.stream(key.stream).shard(key.shard)
            if shard is None:
                raise ConfigurationError(
                    f"kinesis-efo option 'endingPosition' names shard {key.shard} of stream {key.stream!r}, which Kinesis does not list "
                    "(any more)"
                )
            if bound is not None and bound.is_end and shard.last is None:
                raise ConfigurationError(
                    f"kinesis-efo option 'endingPosition' names the end of shard {key.shard} of stream {key.stream!r}, which is still "
                    "open: LATEST is its tip"
                )
        now = self._clock.time()
        for bound in (self._bounds.everywhere, *self._bounds.streams.values(), *self._bounds.shards.values()):
            if (
                bound is not None
                and bound.kind is PositionKind.AT_TIMESTAMP
                and bound.value / 1000 > now + _FUTURE_SECONDS
            ):
                raise ConfigurationError(
                    f"kinesis-efo option 'endingPosition' must not lie in the future: it is {_time(bound.value / 1000)}, and now is "
                    f"{_time(now)}. A query that ends does not wait for records; leave the option out to read up to the tips"
                )


def _time(epoch: float) -> str:
    try:
        return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{epoch:.0f} s"
