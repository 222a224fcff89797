"""Catching up: in shards in which a query is behind the shared buffer, it reads with GetRecords and has memory of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from kinesis_efo.errors import AccessRefusedError, KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.coordinator import Coordinator, ShardListener
from kinesis_efo.fetcher.counted_sink import FetchCounts
from kinesis_efo.fetcher.feeds import Feeds
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.positions import LastRecord, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)


class ApartRules(Protocol):
    """What the run allows queries that catch up; see `Sharing`."""

    @property
    def coordinator(self) -> Coordinator:
        """The run."""

    @property
    def may_read_apart(self) -> bool:
        """Whether a query may catch up by itself."""

    def fetch_apart(self) -> Fetcher:
        """A new fetcher for a query that catches up."""

    def end_apart(self, fetcher: Fetcher) -> None:
        """Give a fetcher back."""

    def forbid_apart(self, why: AccessRefusedError) -> None:
        """Let no query catch up: Kinesis refuses GetRecords."""


@dataclass(slots=True)
class ApartShard:
    """A shard in which a query catches up.

    Attributes:
        kept: Its claim on the shared buffer; None while it is too far behind.
        back: Whether it plans from the shared buffer again. Ranges planned before are still to be read.
        not_before: The earliest time of its next claim, monotonic seconds.
    """

    kept: Position | None = None
    back: bool = False
    not_before: float = -inf

    def is_over(self, position: Position | None) -> bool:
        """Whether the query has caught up, if everything up to a position is processed."""
        if position is None or position.is_end:
            return True
        return self.back and (self.kept is None or position.reaches(self.kept))


class ApartReading:
    """The shards in which one query catches up.

    Args:
        rules: What the run allows.
        listener: Told in which shards something happens.
        failed: Called with an error that ends this query only.

    Attributes:
        shards: The shards; one leaves when everything read this way is processed.
    """

    def __init__(self, rules: ApartRules, listener: ShardListener, failed: Callable[[KinesisEfoError], None]) -> None:
        self.shards: Final[dict[ShardKey, ApartShard]] = {}
        self._rules = rules
        self._listener = listener
        self._failed = failed
        self._fetcher: Fetcher | None = None

    async def stop(self) -> None:
        """Stop the fetcher."""
        if (fetcher := self._fetcher) is not None:
            self._fetcher = None
            self._rules.end_apart(fetcher)
            await fetcher.stop()

    @property
    def fetcher(self) -> Fetcher:
        """Reads the shards; made when it is first needed."""
        if self._fetcher is None:
            self._fetcher = self._rules.fetch_apart()
            self._fetcher.refused = self._rules.forbid_apart
            self._fetcher.start(_ApartCoordinator(self._rules.coordinator, self._failed), self._listener)
        return self._fetcher

    @property
    def brought(self) -> FetchCounts:
        """The number of calls and bytes of the fetcher."""
        return FetchCounts() if self._fetcher is None else self._fetcher.brought

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range from the fetcher."""
        return self._fetcher is not None and self._fetcher.reading

    def plans(self, key: ShardKey) -> Feeds | None:
        """The feeds from which the query plans a shard; None if it plans from the shared buffer."""
        apart = self.shards.get(key)
        return self._fetcher.feeds if apart is not None and not apart.back and self._fetcher is not None else None

    @property
    def plans_any(self) -> bool:
        """Whether the query catches up in a shard. Thread-safe."""
        return not all(apart.back for apart in list(self.shards.values()))

    def begin(self, key: ShardKey, position: Position) -> ApartShard:
        """Catch up in a shard from a position on."""
        apart = self.shards.get(key)
        if apart is None:
            apart = self.shards[key] = ApartShard()
            logger.debug(
                "shard %s: a query at %s is behind the shared buffer, and catches up with GetRecords", key, position
            )
        if apart.back:
            # The shared buffer has lost the data of its claim.
            apart.back, apart.kept = False, None
        return apart

    def go(self, key: ShardKey, not_before: float) -> None:
        """Leave the shared buffer of a shard.

        Args:
            key: The shard.
            not_before: The earliest time of the next claim, monotonic seconds.
        """
        self.shards[key] = ApartShard(not_before=not_before)

    def come_back(self, key: ShardKey, position: Position) -> None:
        """Plan from the shared buffer from a position on. Ranges planned before are still read from the fetcher."""
        apart = self.shards.get(key)
        if apart is not None and not apart.back:
            apart.back, apart.kept = True, position
            logger.debug("shard %s: a query has caught up, and shares the buffer again at %s", key, position)

    def end(self, shards: Iterable[ShardKey]) -> None:
        """Drop shards, and close their feeds."""
        ended = [key for key in shards if self.shards.pop(key, None) is not None]
        if self._fetcher is not None:
            self._fetcher.feeds.close(ended)

    def found(self, key: ShardKey) -> ShardBuffer | None:
        """The fetcher's buffer of a shard, if there is one."""
        feed = self._fetcher.feeds.feed(key) if key in self.shards and self._fetcher is not None else None
        return feed.buffer if feed is not None else None

    def tip(self, key: ShardKey) -> Position | None:
        """The tip of a shard when the fetcher began to read it; None if unknown."""
        return self._fetcher.feeds.tip(key) if key in self.shards and self._fetcher is not None else None

    def commit(self, offset: Mapping[ShardKey, Position]) -> dict[ShardKey, LastRecord]:
        """Drop what the query has processed, and the shards in which it has caught up.

        Args:
            offset: Positions up to which it has processed everything.

        Returns:
            The last records at these positions, if known.
        """
        if self._fetcher is None:
            return {}
        records = self._fetcher.feeds.commit({key: offset[key] for key in self.shards if key in offset})
        self.end([key for key, apart in self.shards.items() if apart.is_over(offset.get(key))])
        return records

    def allowed(self) -> None:
        """Wake the waiting reads: more shards may be read now."""
        if self._fetcher is not None:
            self._fetcher.allowed()

    def let_go(self, stream: str) -> None:
        """Stop reading a stream whose lease is lost."""
        if self._fetcher is not None:
            self._fetcher.feeds.close([key for key in self.shards if key.stream == stream])

    async def read(
        self, wanted: ShardRange, asked_at: float | None, kept: Position | None
    ) -> AsyncGenerator[list[bytes], None]:
        """The payloads that cover a range, with GetRecords.

        Args:
            wanted: The range.
            asked_at: When the range was requested, monotonic seconds; None: now.
            kept: The query's claim on the shared buffer, from which it may plan.

        Raises:
            DataLossError, RetriesExhaustedError, ElsewhereError: As `Fetcher.read`.
        """
        self.expect(wanted.key, kept)
        async with aclosing(self.fetcher.read(wanted, asked_at, _SingleQuery(self._rules))) as payloads:
            async for some in payloads:
                yield some

    def expect(self, key: ShardKey, kept: Position | None) -> None:
        """Add a shard of which the fetcher reads ranges, while the query may plan from the shared buffer."""
        self.shards.setdefault(key, ApartShard(kept=kept, back=True))


class _ApartCoordinator:
    """The coordinator of the fetcher. An error of the fetcher does not end the run."""

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

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        return self._run.read_until(shard, position)

    def _tell(self) -> None:
        try:
            self.failure.raise_if_set()
        except KinesisEfoError as error:
            self._failed(error)

    def _adopt(self) -> None:
        if (error := self._run.failure.error) is not None:
            self.failure.adopt(error)


class _SingleQuery:
    """Lets a fetcher read for one query, as long as catching up is allowed."""

    alone: Final = True

    def __init__(self, rules: ApartRules) -> None:
        self._rules = rules

    def reads_shared(self, key: ShardKey, position: Position) -> bool:  # noqa: ARG002
        """Whether catching up is still allowed."""
        return self._rules.may_read_apart
