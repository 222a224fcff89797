"""The shards of a run, fetched in the planner's own process: `fetchers=driver`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kinesis_efo.clock import Clock
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.coordinator import Coordinator
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.micro_batches import MicroBatchPlanner
from kinesis_efo.fetcher.progress import ShardProgress
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.positions import LastRecord, Offset, Position, ShardKey, ShardRange


class LocalFetching:
    """One fetcher, in the same event loop.

    Args:
        fetcher: The fetcher; not started yet.
        clock: Time.
        max_skew: See `MicroBatchPlanner`.
    """

    def __init__(self, fetcher: Fetcher, clock: Clock, max_skew: float | None = None) -> None:
        self._fetcher = fetcher
        self._micro_batches = MicroBatchPlanner(self, clock, fetcher.check, max_skew)

    def start(self, coordinator: Coordinator) -> None:
        """See `Fetching`."""
        self._fetcher.start(coordinator, self._micro_batches)

    async def stop(self) -> None:
        """See `Fetching`."""
        await self._fetcher.stop()

    def expect(self, offset: Offset) -> None:
        """See `Fetching`."""
        for key, position in offset.items():
            if not position.is_end:
                self._fetcher.buffered(key, position)

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> list[ShardProgress]:
        """See `Fetching`."""
        if offset is not self._micro_batches.offset:
            self._fetcher.follow(offset)
        return await self._micro_batches.poll(offset, max_bytes, max_records, at_most)

    async def commit(self, offset: Offset) -> Mapping[ShardKey, LastRecord]:
        """See `Fetching`."""
        return await self._fetcher.commit(offset)

    def begin(self, stream: str) -> None:
        """See `Fetching`."""
        shards = {key: position for key, position in (self._micro_batches.offset or {}).items() if key.stream == stream}
        for key, position in shards.items():
            if not position.is_end:
                self._fetcher.buffered(key, position)
        self._fetcher.allowed()
        self._micro_batches.touch(shards)
        self._micro_batches.wake()

    def end(self, stream: str) -> None:
        """See `Fetching`."""
        self._fetcher.let_go([feed.key for feed in self._fetcher.feeds if feed.key.stream == stream])
        self._micro_batches.wake()

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """See `Fetching`."""
        self._fetcher.let_go(shards)
        self._micro_batches.touch(shards)

    def fetcher_of(self, key: ShardKey) -> str | None:  # noqa: ARG002
        """See `Fetching`."""
        return None

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """See `Fetching`."""
        return self._fetcher.statuses(stream)

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        """See `Fetching`."""
        return self._fetcher.read_until(key, position)

    def tip(self, key: ShardKey) -> Position | None:
        """See `Fetching`."""
        return self._fetcher.tip(key)

    def last_record(self, wanted: ShardRange) -> int | None:
        """See `Fetching`."""
        buffer = self._fetcher.buffered(wanted.key, wanted.after)
        return None if buffer is None else buffer.last_up_to(wanted.through, wanted.after)

    # -- what the micro-batch planner asks

    def buffered(self, key: ShardKey, position: Position) -> ShardBuffer | None:
        """See `Buffers`."""
        return self._fetcher.buffered(key, position)

    def millis_behind(self, key: ShardKey) -> int | None:
        """See `Buffers`."""
        return self._fetcher.millis_behind(key)

    def quiet(self, key: ShardKey) -> float:
        """See `Buffers`."""
        return self._fetcher.quiet(key)

    def budgets(self, keys: Collection[ShardKey]) -> list[tuple[Collection[ShardKey], int]]:
        """See `Buffers`."""
        return [(keys, self._fetcher.budget.limit)]
