"""Lets a query catch up: if it is behind the shared buffer of a shard, it reads with GetRecords, into memory of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kinesis_efo.decisions.losses import Known
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.buffer import NotBufferedError, ShardBuffer
from kinesis_efo.fetcher.feed import FetchCounts, ShardListener
from kinesis_efo.fetcher.feeds import Feeds
from kinesis_efo.fetcher.fetcher import Coordinator, Fetcher
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange

if TYPE_CHECKING:
    from kinesis_efo.sharing.query_fetching import QueryFetching
    from kinesis_efo.sharing.sharing import Sharing


class ApartReading:
    """The shards in which one query catches up, and the fetcher that reads them. `failed` gets an error that ends this query only.

    `claims` has for each of these shards the position from which on the query needs the shared buffer, because its next micro-batch can be
    planned from there; None while the query is further behind.
    """

    def __init__(self, group: Sharing, listener: ShardListener, failed: Callable[[KinesisEfoError], None]) -> None:
        self.claims: Final[dict[ShardKey, Position | None]] = {}
        self._group = group
        self._listener = listener
        self._failed = failed
        self._fetcher: Fetcher | None = None

    async def stop(self) -> None:
        """Stop the query's own fetcher, if there is one."""
        if (fetcher := self._fetcher) is not None:
            self._fetcher = None
            self._group.end_apart(fetcher)
            await fetcher.stop()

    @property
    def fetcher(self) -> Fetcher:
        """The fetcher that reads the shards. It is made when it is first needed."""
        if self._fetcher is None:
            self._fetcher = self._group.fetch_apart()
            self._fetcher.refused = self._group.forbid_apart
            self._fetcher.start(_ApartCoordinator(self._group.coordinator, self._failed), self._listener)
        return self._fetcher

    @property
    def brought(self) -> FetchCounts:
        """What the query's own fetcher has received."""
        return FetchCounts() if self._fetcher is None else self._fetcher.counts

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range from the fetcher."""
        return self._fetcher is not None and self._fetcher.reading

    def plans(self, key: ShardKey) -> Feeds | None:
        """The feeds from which the query plans a shard; None if it plans from the shared buffer."""
        return self._fetcher.feeds if key in self.claims and self._fetcher is not None else None

    def end(self, shards: Iterable[ShardKey]) -> None:
        """Plan shards from the shared buffer again, and close their feeds."""
        ended = list(shards)
        for key in ended:
            self.claims.pop(key, None)
        if self._fetcher is not None:
            self._fetcher.feeds.close(ended)

    def forbid(self) -> None:
        """Plan all shards from the shared buffers again, because Kinesis refuses GetRecords. Waiting tasks continue from these buffers."""
        self.end([*self.claims, *([] if self._fetcher is None else [feed.key for feed in self._fetcher.feeds])])

    def found(self, key: ShardKey) -> ShardBuffer | None:
        """The fetcher's buffer of a shard, if there is one."""
        feed = None if self._fetcher is None else self._fetcher.feeds.known(key)
        return None if feed is None else feed.buffer

    def commit(self, offset: Mapping[ShardKey, Position]) -> dict[ShardKey, LastRecord]:
        """Drop what the query has processed. Close the feeds of shards that it plans from the shared buffer or has left.

        Everything up to `offset` is processed. Returns the last records at these positions, if known.
        """
        left = [key for key in self.claims if key not in offset or offset[key].is_end]
        self.end(left)
        if self._fetcher is None:
            return {}
        feeds = self._fetcher.feeds
        records = feeds.commit({feed.key: offset[feed.key] for feed in feeds if feed.key in offset})
        self.end([feed.key for feed in feeds if feed.key not in self.claims])
        return records

    def allowed(self) -> None:
        """Wake the waiting reads, because more shards may be read now."""
        if self._fetcher is not None:
            self._fetcher.allowed()

    def let_go(self, stream: str) -> None:
        """Stop reading a stream whose lease is lost."""
        if self._fetcher is not None:
            self._fetcher.feeds.close([feed.key for feed in self._fetcher.feeds if feed.key.stream == stream])

    def read(self, wanted: ShardRange, asked_at: float | None) -> AsyncGenerator[list[bytes], None]:
        """Read the payloads of a range with GetRecords, while Kinesis allows that. `asked_at`, monotonic seconds: None means now."""
        return self.fetcher.read(wanted, asked_at, lambda: self._group.may_read_apart, lambda: True)


class QueryTasks:
    """Serves tasks with the query's own fetcher, which `apart` has; implements `RangeSource`."""

    def __init__(self, query: QueryFetching, group: Sharing, apart: ApartReading) -> None:
        self._query = query
        self._group = group
        self._apart = apart

    def may_restart(self) -> bool:
        """Whether a task may restart the shared subscription: if the run has one query, or queries are not allowed to catch up.

        Raises KinesisEfoError if the run or the query has failed, or the query has left.
        """
        # First, because a run that fails stops its queries: a task that was only told so would look for another fetcher, for minutes.
        self._group.coordinator.failure.raise_if_set()
        self._query.failure.raise_if_set()
        return self._group.alone or not self._group.may_read_apart

    def is_alone(self) -> bool:
        """Whether the run has no other query."""
        return self._group.alone

    def are_apart(self, key: ShardKey, position: Position) -> bool:
        """Whether tasks that read a shard from `position` on use the query's own fetcher. Raises an error if the query failed or left."""
        if self.may_restart():
            return False
        own, shared = self._apart.found(key), self._group.shared.found(key)
        if own is not None and own.covers(position) is not False:
            return True
        return shared is not None and shared.covers(position) is False

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        apart = [wanted for wanted in ranges if self.are_apart(wanted.key, wanted.after)]
        return self._apart.fetcher.expect(apart) if apart else self._group.clock.monotonic()

    def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        if self.may_restart():
            raise NotBufferedError(wanted)
        return self._apart.read(wanted, asked_at)


class _ApartCoordinator:
    """The coordinator of a query's own fetcher: asks the run what may be read, but an error of the fetcher does not end the run."""

    def __init__(self, run: Coordinator, failed: Callable[[KinesisEfoError], None]) -> None:
        self.failure = Failure()
        self._run = run
        self._failed = failed
        self.failure.on_set(self._tell)
        run.failure.on_set(self._adopt)

    def may_read(self, shard: ShardKey) -> bool:
        return self._run.may_read(shard)

    async def may_open(self, shard: ShardKey) -> None:
        await self._run.may_open(shard)

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        return self._run.refusal(shard, seconds)

    def known(self, shard: ShardKey, position: Position) -> Known:
        return self._run.known(shard, position)

    def _tell(self) -> None:
        try:
            self.failure.raise_if_set()
        except KinesisEfoError as error:
            self._failed(error)

    def _adopt(self) -> None:
        if (error := self._run.failure.error) is not None:
            self.failure.adopt(error)
