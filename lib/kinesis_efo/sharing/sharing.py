"""The queries of a run, and their claims on its shared buffers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.errors import AccessRefusedError, FetcherUnreachableError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import STARVING_SECONDS
from kinesis_efo.fetcher.fetcher import Coordinator, Fetcher
from kinesis_efo.fetcher.micro_batches import Buffers
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange, lowest
from kinesis_efo.sharing.query_fetching import QueryFetching

logger = logging.getLogger(__name__)

_APART_PART: Final = 4
"""While queries catch up, their own fetchers together get the budget divided by this number."""


class SharedBuffers(Buffers, Protocol):
    """The buffers of all shards of a run."""

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        """The buffer of a shard, as in `Buffers`. If it does not have everything after the position, read the shard again from there on."""

    def found(self, key: ShardKey) -> EventIndex | None:
        """The buffer of a shard, wherever that buffer starts; None if the shard is not read."""

    def begin_at(self, key: ShardKey, position: Position) -> EventIndex | None:
        """Read a shard again from a position on. Returns the new buffer, or None if it is not there yet."""

    @property
    def withholds(self) -> bool:
        """Whether shards that `let_go` closed have not been opened again."""

    def expect(self, positions: Mapping[ShardKey, Position]) -> None:
        """Begin to read shards from these positions on, unless they are read already."""

    def follow(self, positions: Mapping[ShardKey, Position]) -> None:
        """Set which shards are read, each with the position of one of its queries; `SHARD_END` only if all of them have reached that."""

    def commit(self, positions: Mapping[ShardKey, Position]) -> Mapping[ShardKey, LastRecord]:
        """Drop what is before `positions`, the lowest claim of each shard. Returns the last record before each changed one, if known."""

    def last_record(self, wanted: ShardRange) -> int | None:
        """The sequence number of the last record of a range; None if there is none, or if it is unknown."""

    def is_read(self, key: ShardKey) -> bool:
        """Whether a task is reading a range of a shard from the buffer."""

    def wants_room(self, seconds: float) -> bool:
        """Whether a shard has waited for room for this many seconds."""

    def tip_since(self, key: ShardKey, since: float) -> Position | None:
        """The end of a shard's buffer, if everything that arrived before `since` (monotonic seconds) is before it; else None."""

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """Close the subscriptions of shards until `expect`, `follow` or `buffered` needs them."""


class Sharing:
    """The queries of one run; tells all of them in which shards something happens.

    `apart` makes a fetcher for a query that catches up; it is None if no query can catch up. `together` is the option `slowQueries=hold`:
    whether queries stay together even if one starves. `coordinator` is the run, which decides what may be read.
    """

    def __init__(
        self,
        shared: SharedBuffers,
        clock: Clock,
        budget: Budget,
        apart: Callable[[Budget], Fetcher] | None,
        *,
        together: bool = False,
    ) -> None:
        self.shared: Final = shared
        self.clock: Final = clock
        self.together: Final = together
        self.queries: list[QueryFetching] = []
        self.coordinator: Coordinator
        self._budget = budget
        self._whole = budget.limit
        self._apart = apart
        self._apart_budgets: list[Budget] = []
        self._kept: dict[ShardKey, Position] = {}

    def join(self, name: str = "", max_skew: float | None = None) -> QueryFetching:
        """Add the query `name`. `max_skew`: seconds by which shards may be ahead of the slowest; see `MicroBatchPlanner`."""
        query = QueryFetching(self, name, max_skew)
        self.queries.append(query)
        return query

    def named(self, name: str) -> QueryFetching:
        """A query by its name. Raises `FetcherUnreachableError` if it has ended, or has not joined this run yet."""
        for query in self.queries:
            if query.name == name:
                return query
        raise FetcherUnreachableError("the run does not know the query of this task (any more)")

    async def leave(self, query: QueryFetching) -> None:
        """Remove a query and its claims."""
        if query not in self.queries:
            return
        self.queries.remove(query)
        await query.stop()
        self.follow()
        if self.queries and self.coordinator.failure.error is None:
            self.commit(query.offset or ())

    async def stop(self) -> None:
        """Stop all queries from catching up."""
        for query in self.queries:
            await query.stop()

    @property
    def alone(self) -> bool:
        """Whether there is only one query, which does not catch up."""
        return len(self.queries) == 1 and not self.queries[0].is_apart

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range from a query's own fetcher. Thread-safe."""
        return any(query.reading for query in list(self.queries))

    # -- what the run's lease calls

    def begin(self, stream: str) -> None:
        """Start reading a stream, because its lease is now held."""
        for query in self.queries:
            query.begin_stream(stream)
        self.wake()

    def end(self, stream: str) -> None:
        """Stop catching up in a stream, because its lease is lost."""
        for query in self.queries:
            query.end_stream(stream)
        self.wake()

    # -- what happens in the shards

    def touch(self, shards: Iterable[ShardKey]) -> None:
        known = list(shards)
        for query in self.queries:
            query.touch(known)

    def wake(self) -> None:
        for query in self.queries:
            query.wake()

    # -- which shards are read, and the claims on them

    def positions(self) -> dict[ShardKey, Position]:
        """The shards that are read, each with the position of one of its queries; `SHARD_END` only if all of them have reached that."""
        found: dict[ShardKey, Position] = {}
        for query in self.queries:
            for key, position in (query.offset or {}).items():
                if key not in query.left and (key not in found or found[key].is_end):
                    found[key] = position
        return found

    def follow(self) -> None:
        """Update which shards are read, after a query's shards have changed."""
        if len(self.queries) == 1 and (offset := self.queries[0].offset) is not None:
            # With one query, skip the claims, which take some milliseconds for 8,000 shards.
            self._kept.clear()
            left = self.queries[0].left
            self.shared.follow({key: at for key, at in offset.items() if key not in left} if left else offset)
            return
        positions = self.positions()
        self.shared.follow(positions)
        self._keep([*positions, *self._kept])

    def others_at(self, query: QueryFetching, key: ShardKey) -> list[Position]:
        """The claims of the other queries on a shard."""
        claims = [other.claim(key) for other in self.queries if other is not query]
        return [claim for claim in claims if claim is not None and not claim.is_end]

    def commit(self, keys: Iterable[ShardKey]) -> Mapping[ShardKey, LastRecord]:
        """Drop what no query needs any more of some shards; returns the last records before the new starts of their buffers."""
        self._keep(keys)
        return self.shared.commit(dict(self._kept))

    def commit_to(self, offset: Mapping[ShardKey, Position]) -> Mapping[ShardKey, LastRecord]:
        """Do the same for the shards of an offset; returns only records that are the last ones up to its positions.

        The buffers of shards in which a query catches up start where other queries are.
        """
        found = self.commit(offset)
        return {key: record for key, record in found.items() if self._kept.get(key) == offset.get(key)}

    def _keep(self, shards: Iterable[ShardKey]) -> None:
        for key in shards:
            claims = [claim for query in self.queries if (claim := query.claim(key)) is not None]
            if claims:
                self._kept[key] = lowest(self._covered(key, claims) or claims)
            else:
                self._kept.pop(key, None)

    def _covered(self, key: ShardKey, claims: Iterable[Position]) -> list[Position]:
        """The claims that the shard's buffer covers. A query with a claim that is not covered will catch up."""
        buffer = self.shared.found(key)
        return [claim for claim in claims if not claim.is_end and (buffer is None or buffer.covers(claim) is not False)]

    # -- catching up

    @property
    def may_read_apart(self) -> bool:
        """Whether a query may catch up with a fetcher of its own."""
        return self._apart is not None

    def fetch_apart(self) -> Fetcher:
        """Make a fetcher for a query that catches up, with a part of the memory."""
        assert self._apart is not None
        budget = Budget(1, now=self.clock.monotonic)
        self._apart_budgets.append(budget)
        self._share_budget()
        return self._apart(budget)

    def end_apart(self, fetcher: Fetcher) -> None:
        """Take back the memory of a fetcher that `fetch_apart` made."""
        self._apart_budgets.remove(fetcher.budget)
        self._share_budget()

    def forbid_apart(self, why: AccessRefusedError) -> None:
        """Stop queries from catching up by themselves, because Kinesis refuses GetRecords."""
        if self._apart is None:
            return
        self._apart = None
        logger.warning(
            "queries of one program that read the same stream wait for the slowest of them, because none may catch up by itself: %s",
            why,
        )
        for query in self.queries:
            query.stop_catching_up()

    def _share_budget(self) -> None:
        part = self._whole // _APART_PART
        for each in self._apart_budgets:
            each.limit = max(1, part // len(self._apart_budgets))
        self._budget.limit = self._whole - part if self._apart_budgets else self._whole

    # -- if a query starves

    def make_room(self, query: QueryFetching) -> None:
        """Make room for a starving query, if the claims of another one fill the buffers."""
        if self.together or self._apart is None or not self.shared.wants_room(STARVING_SECONDS):
            return
        others = [other for other in self.queries if other is not query]
        lags = {other: other.lag_behind(query) for other in others}
        slowest = max(lags, key=lambda other: sum(lags[other].values()), default=None)
        if slowest is None:
            return
        if shards := lags[slowest]:
            logger.warning(
                "%d bytes are buffered that one query of this program has not read yet, and another one finds no room: the slow one catches "
                "up with GetRecords in %d shards",
                sum(shards.values()),
                len(shards),
            )
            most = {key: slowest.claim(key) for key in shards}
            for other in others:
                other.withdraw([key for key in shards if key in lags[other] and _lags_as(other.claim(key), most[key])])
            self.commit(shards)
            return
        # If no query can continue from a buffer, restart it at the lowest claim on it.
        for key in self.positions():
            claims = [claim for each in self.queries if (claim := each.claim(key)) is not None and not claim.is_end]
            if claims and not self._covered(key, claims):
                self.shared.begin_at(key, lowest(claims))
        # The query shares no shard with others, so restart the buffers that another query fills. Then these have to wait for room, too.
        for key in max((other.holds_beside(query) for other in others), key=len):
            if (at := self._kept.get(key)) is not None:
                self.shared.begin_at(key, at)


def _lags_as(claim: Position | None, most: Position | None) -> bool:
    return claim is not None and most is not None and most.reaches(claim)
