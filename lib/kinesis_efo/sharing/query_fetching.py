"""Fetches for one query of a run: from the shared buffers, or by catching up.

If the run has one query, a shard's subscription restarts wherever the query needs it. With several, it never goes back for a query while
another one uses it: a query that is behind catches up with GetRecords until it reaches the shared buffer. Its claim on that starts
shortly before.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.planning import ShardProgress
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.buffer import STARVING_SECONDS
from kinesis_efo.fetcher.feed import FetchCounts
from kinesis_efo.fetcher.micro_batches import MicroBatchPlanner
from kinesis_efo.positions import TRIM_HORIZON, LastRecord, Offset, Position, PositionKind, ShardKey, ShardRange
from kinesis_efo.sharing.apart_reading import ApartReading, QueryTasks
from kinesis_efo.sharing.query_buffers import QueryBuffers
from kinesis_efo.sharing.standing import Reads

if TYPE_CHECKING:
    from kinesis_efo.sharing.sharing import Sharing

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.2
_TIP_SECONDS: Final = 60.0
"""In this time, an idle shard's subscription gets the events that prove where its tip is."""

_SENT_SECONDS: Final = 2.0
"""An event that arrives this long after a moment was sent by Kinesis after that moment."""
_FRONT_SECONDS: Final = 15.0
"""In this time, the events of an idle shard prove that it is read at its tip."""

_TOGETHER_MILLIS: Final = 60_000
"""Queries at LATEST whose starts are further apart do not begin at the same record."""


class QueryFetching:
    """Fetches for one query. `failure` ends this query only; `offset` is how far it has planned, None before its first poll."""

    def __init__(self, group: Sharing, name: str = "", max_skew: float | None = None) -> None:
        self.name: Final = name
        self.failure = Failure()
        self.offset: Offset | None = None
        self.left: frozenset[ShardKey] = frozenset()
        self._group = group
        self._shared = group.shared
        self._clock = group.clock
        self._committed: Mapping[ShardKey, Position] = {}
        self._latest: Mapping[ShardKey, Position] = {}
        self._nothing_since: float | None = None
        self.buffers: Final = QueryBuffers(self, group)
        self._micro_batches = MicroBatchPlanner(self.buffers, self._clock, self._check, max_skew)
        self._apart = self.buffers.apart = ApartReading(group, self._micro_batches, self._apart_failed)
        self.tasks: Final = QueryTasks(self, group, self._apart)

    async def leave(self) -> None:
        """Stop reading, and withdraw all claims."""
        await self._group.leave(self)

    async def stop(self) -> None:
        """Stop catching up. Waiting calls fail."""
        self.failure.stop()
        await self._apart.stop()

    # -- what the query asks

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> list[ShardProgress]:
        """How far the next micro-batch may go; see `MicroBatchPlanner.poll`."""
        self.follow(offset)
        if ahead := self.buffers.ahead:
            # These shards may stay without events while the subscription serves a query behind this one.
            self._micro_batches.touch(ahead)
        poll = partial(self._micro_batches.poll, offset, max_bytes, max_records)
        first = at_most if self._group.alone else min(at_most, STARVING_SECONDS)
        self._nothing_since = self._clock.monotonic() if self._nothing_since is None else self._nothing_since
        shards = await poll(first)
        if any(shard.records or shard.through.is_end for shard in shards):
            self._nothing_since = None
        elif not self._group.alone:
            now = self._clock.monotonic()
            if now - self._nothing_since >= STARVING_SECONDS:
                self._nothing_since = now
                self._group.make_room(self)
            if first < at_most:
                # Positions of idle shards come only once.
                shards = list({each.key: each for each in (*shards, *await poll(at_most - first))}.values())
                if any(shard.records or shard.through.is_end for shard in shards):
                    self._nothing_since = None
        for shard in shards if self._apart.claims else ():
            self.buffers.planned(shard.key, shard.through)
        return shards

    async def until_tip(self, at_most: float) -> None:
        """See `MicroBatchPlanner.until_tip`."""
        await self._micro_batches.until_tip(at_most)

    def follow(self, offset: Offset) -> None:
        """Note where the query is."""
        if offset is not self.offset:
            before, self.offset = self.offset, offset
            if before is None or offset.has_ends or before.has_ends or before.keys() != offset.keys():
                for key in self.buffers.ahead.keys() - offset.keys():
                    del self.buffers.ahead[key]
                self._group.follow()
        if self._shared.withholds:
            self._group.follow()

    def leave_shards(self, shards: frozenset[ShardKey]) -> None:
        """Stop reading shards that the query has read to its end. What they would receive fills the buffers, and nothing would drop it."""
        if shards != self.left:
            self.left = shards
            self._apart.end(shards & self._apart.claims.keys())
            self._group.follow()
            if not self._group.alone:
                # What was kept for this query may fill the buffers, so that no other query gets further and drops it.
                self._group.commit(shards)

    def commit(self, offset: Offset) -> Mapping[ShardKey, LastRecord]:
        """Drop everything up to `offset` that no other query needs. Returns the last record up to each position that was reached, if known."""
        self._check()
        self._committed = offset
        own = self._apart.commit(offset)
        return {**own, **(self._shared.commit(offset) if self._group.alone else self._group.commit_to(offset))}

    def expect(self, offset: Mapping[ShardKey, Position]) -> None:
        """Begin to read shards from these positions on."""
        self._shared.expect(offset)
        self._begin(offset)

    def last_record(self, wanted: ShardRange) -> int | None:
        """The number of the last record of a range; None if the range has none or is not buffered."""
        last = self._shared.last_record(wanted)
        if (
            last is None
            and (own := self._apart.found(wanted.key)) is not None
            and own.covers(wanted.after) is not False
        ):
            return own.last_up_to(wanted.through, wanted.after)
        return last

    def begin_stream(self, stream: str) -> None:
        """Begin to read a stream whose lease is now held."""
        shards = {key: position for key, position in (self.offset or {}).items() if key.stream == stream}
        self._begin(shards)
        self._micro_batches.touch(shards)
        self._apart.allowed()

    def end_stream(self, stream: str) -> None:
        """Stop reading a stream whose lease is lost."""
        self._apart.let_go(stream)

    def touch(self, shards: Iterable[ShardKey]) -> None:
        self._micro_batches.touch(shards)

    def wake(self) -> None:
        self._micro_batches.wake()

    async def at_front(self, offset: Offset) -> Offset:
        """The start of a new query at LATEST: in shards that other queries read at the tip, the end of the shared buffer.

        So queries that are started together begin at the same record. A time in `offset` means now. Waits some seconds until it is certain
        that a buffer ends no more than a minute ago; if it is not, the query begins at its own time.
        """
        give_up_at = self._clock.monotonic() + _FRONT_SECONDS
        while not all((fronts := self._fronts(offset)).values()) and self._clock.monotonic() < give_up_at:
            await self._clock.sleep(1.0)
        if moved := {key: end for key, end in fronts.items() if end is not None}:
            offset = Offset({**offset, **moved}, offset.lasts, offset.mark, offset.horizons, offset.created)
        self._latest = found = offset
        if len(self._group.queries) > 1:
            self.follow(found)
        return found

    def _fronts(self, offset: Offset) -> dict[ShardKey, Position | None]:
        """The ends of the shared buffers that are at the tip by their last events, which may be wrong; None if that is not certain."""
        fronts: dict[ShardKey, Position | None] = {}
        for key, now in offset.items():
            buffer = self._shared.found(key)
            # The horizon is another one by now.
            if buffer is None or buffer.end == TRIM_HORIZON or now.kind is not PositionKind.AT_TIMESTAMP:
                continue
            if not self._group.others_at(self, key):
                continue
            at_tip = self._shared.millis_behind(key) == 0
            is_certain = now.value - self._certainly_since(key, buffer) <= _TOGETHER_MILLIS
            if is_certain and (at_tip or buffer.end.kind is PositionKind.AT_TIMESTAMP):
                fronts[key] = buffer.end
            elif at_tip:
                fronts[key] = None
        return fronts

    def _certainly_since(self, key: ShardKey, buffer: EventIndex) -> float:
        """A time, epoch milliseconds, before which a shared buffer certainly does not end: proven, or the LATEST of a query that it serves.

        Another time at which the buffer begins is from that query's options, and may be any time.
        """
        read_until = self._shared.read_until(key, buffer.end)
        times = [-inf if read_until is None else read_until * 1000]
        for query in self._group.queries:
            latest, claim = query._latest.get(key), query.claim(key)
            serves = claim is not None and buffer.covers(claim) and not buffer.ends_before(claim)
            if serves and latest is not None and latest.kind is PositionKind.AT_TIMESTAMP:
                times.append(latest.value)
        return max(times)

    # -- where the shards end

    async def make_way(self, shards: Collection[ShardKey]) -> dict[ShardKey, Position]:
        """Prepare for subscriptions to shards that find their tips: close the query's own.

        If other queries share the shards, return the present tips of those that the shared subscriptions read to the tip within some seconds.
        """
        if self._group.alone:
            await self._shared.let_go(shards)
            return {}
        found: dict[ShardKey, Position] = {}
        since = self._clock.monotonic() + _SENT_SECONDS
        while len(found) < len(shards) and self._clock.monotonic() < since + _TIP_SECONDS:
            await self._clock.sleep(_LOOK_SECONDS)
            tips = {key: self._shared.tip_since(key, since) for key in shards if key not in found}
            found |= {key: tip for key, tip in tips.items() if tip is not None}
        return found

    # -- what the group asks

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range from the query's own fetcher."""
        return self._apart.reading

    def claim(self, key: ShardKey) -> Position | None:
        """From where on the query needs a shard's shared buffer; None if it does not use it."""
        if key in self.left:
            return None
        if key in self._apart.claims:
            return self._apart.claims[key]
        if (position := self._committed.get(key)) is not None:
            return position
        return None if self.offset is None else self.offset.get(key)

    def lag_behind(self, other: QueryFetching) -> dict[ShardKey, int]:
        """Bytes by shard that are buffered for this query, and that another query sharing the shard has already read."""
        lags = {}
        for key in self.offset or ():
            mine, theirs = self.claim(key), other.claim(key)
            if mine is None or theirs is None or mine == theirs or not theirs.reaches(mine):
                continue
            if (buffer := self._shared.found(key)) is not None and buffer.covers(mine) is not False:
                left = 0 if theirs.is_end else buffer.held_behind(theirs)
                if (size := buffer.held_behind(mine) - left) > 0:
                    lags[key] = size
        return lags

    def holds_beside(self, other: QueryFetching) -> list[ShardKey]:
        """The shards with buffered records that this query claims and another query does not read."""
        return [
            key
            for key in self.offset or ()
            if other.claim(key) is None
            and self.claim(key) is not None
            and (buffer := self._shared.found(key)) is not None
            and buffer.records
        ]

    def withdraw(self, shards: Collection[ShardKey]) -> None:
        """Withdraw the claims on the buffers of some shards, because they starve another query."""
        self._apart.claims.update(dict.fromkeys(shards))
        self._micro_batches.touch(shards)

    def stop_catching_up(self) -> None:
        """Plan from the shared buffers: Kinesis refuses GetRecords."""
        self._micro_batches.touch(self._apart.claims)
        self._apart.forbid()
        self._micro_batches.wake()

    # -- what tools ask

    @property
    def is_apart(self) -> bool:
        """Whether the query catches up in a shard. Thread-safe."""
        return bool(self._apart.claims)

    @property
    def brought(self) -> FetchCounts:
        """The number of calls and bytes of the query's own fetcher."""
        return self._apart.brought

    def reads(self, key: ShardKey) -> Reads:
        """How the query reads a shard: from which buffer, and with which claim."""
        shared, own = self._shared.found(key), self._apart.plans(key)
        claim = self.claim(key)
        if own is None:
            return Reads(self._shared, shared, shared, claim, apart=False)
        return Reads(own, self._apart.found(key), shared, claim, apart=True)

    # -- helpers

    def _begin(self, offset: Mapping[ShardKey, Position]) -> None:
        for key, position in offset.items():
            if not position.is_end:
                self.buffers.buffered(key, position)

    def _apart_failed(self, error: KinesisEfoError) -> None:
        self.failure.set(error)
        self._micro_batches.wake()

    def _check(self) -> None:
        self._group.coordinator.failure.raise_if_set()
        self.failure.raise_if_set()
