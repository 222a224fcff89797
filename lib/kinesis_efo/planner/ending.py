"""Finds where a query ends that reads what is there: at the tips of its streams, or in front of them, as `endingPosition` says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.retention import written_at
from kinesis_efo.options import Bounds
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, PositionKind, ShardKey

_FUTURE_SECONDS: Final = 5.0
_MARGIN_SECONDS: Final = 60.0
"""Sequence numbers tell the second in which they were given out, arrivals the millisecond, and neither promises to agree."""


class Ends:
    """The ends of one query.

    Args:
        bounds: The option.
        streams: What the query reads, listed.
        clock: Time.

    Raises:
        ConfigurationError: The option names what does not exist, or a time in the future.
    """

    def __init__(self, bounds: Bounds, streams: Streams, clock: Clock) -> None:
        self._bounds = bounds
        self._streams = streams
        self._clock = clock
        self._check()

    async def find(self, offset: Mapping[ShardKey, Position], ends: Mapping[ShardKey, Position | None]) -> Offset:
        """Ask where each shard ends.

        Args:
            offset: How far the query has come.
            ends: The query's shards and their descendants: `SHARD_END` of closed ones, None of those that still grow.

        Returns:
            A position for each shard that can be reached.

        Raises:
            StreamError: A shard cannot be asked.
        """
        found = await all_of(
            *(self._end(key, offset.get(key, TRIM_HORIZON), is_open=end is None) for key, end in ends.items())
        )
        return Offset(self._reachable(dict(zip(ends, found, strict=True)), offset))

    def asks(self, key: ShardKey, *, is_open: bool) -> bool:
        """Whether a subscription tells where a shard ends."""
        bound = self._bound(key)
        return is_open if bound is None or bound.kind is not PositionKind.AT_TIMESTAMP else True

    def _bound(self, key: ShardKey) -> Position | None:
        return self._bounds.shards[key] if key in self._bounds.shards else self._bounds.of(key.stream)

    async def _end(self, key: ShardKey, position: Position, *, is_open: bool) -> Position:
        bound, stream = self._bound(key), self._streams.stream(key.stream)
        if bound is not None and bound.kind is PositionKind.AT_TIMESTAMP:
            if (known := self._without_asking(key, position, bound.value / 1000)) is not None:
                return known
            return await stream.end_before(key.shard, bound.value, position)
        end = await stream.tip(key.shard, position) if is_open else SHARD_END
        if bound is None or bound.is_end:
            return end
        shard = stream.shard(key.shard)
        whole = shard is not None and shard.last is not None and bound.value >= shard.last
        return end if whole or (not end.is_end and bound.reaches(end)) else bound

    def _without_asking(self, key: ShardKey, position: Position, time: float) -> Position | None:
        """The end of a shard that was closed long before a time, or opened long after it."""
        if (shard := self._streams.stream(key.stream).shard(key.shard)) is None:
            return None
        if shard.last is not None:
            closed = written_at(shard.last, key.shard, self._clock.time())
            if closed is not None and closed < time - _MARGIN_SECONDS:
                return SHARD_END
        opened = written_at(shard.first, key.shard, self._clock.time())
        return position if opened is not None and opened > time + _MARGIN_SECONDS else None

    def _reachable(
        self, ends: Mapping[ShardKey, Position], offset: Mapping[ShardKey, Position]
    ) -> dict[ShardKey, Position]:
        """Without the descendants of shards that are not read to their end: they are not begun."""
        kept: dict[ShardKey, Position] = {}
        for key in sorted(ends):  # ids grow, so parents come first
            shard = self._streams.stream(key.stream).shard(key.shard)
            parents = [ShardKey(key.stream, parent) for parent in (shard.parents if shard is not None else ())]
            # One that the query has left behind already is not among the ends.
            read = [each not in ends or (each in kept and kept[each].is_end) for each in parents]
            if key in offset or all(read):
                kept[key] = ends[key]
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
