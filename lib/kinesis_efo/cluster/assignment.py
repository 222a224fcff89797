"""The shards that the run has assigned to a fetcher in another process, and until when the fetcher may read them.

The time counts from before the fetcher sent its request, on the fetcher's own clock. So the fetcher stops before another run can take
the lease, however long the reply took, and even if the fetcher's process was suspended.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from kinesis_efo.clock import Clock
from kinesis_efo.errors import FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.work import Shard, Work
from kinesis_efo.positions import Position, ShardKey


class Assignment:
    """The coordinator of a fetcher outside the run's process; `failure` is the error that ended the fetcher.

    `ask` sends a report immediately, to find out whether the run still knows this fetcher; see `heard`.
    """

    def __init__(self, clock: Clock, ask: Callable[[], None]) -> None:
        self.failure = Failure()
        self.revision = 0
        self._clock = clock
        self._ask = ask
        self._shards: dict[ShardKey, Shard] = {}
        self._until: dict[str, float] = {}
        self._heard_at = -inf
        self._heard = Signal()

    def follow(self, work: Work, asked_at: float) -> tuple[dict[ShardKey, Position], frozenset[ShardKey]]:
        """Apply the run's reply to a request for work that was sent after `asked_at`, monotonic seconds.

        Returns the start positions of the shards that begin, and the shards that end.
        """
        self._until = {stream: asked_at + seconds for stream, seconds in work.seconds.items()}
        before = self._shards
        if work.shards is not None:
            self._shards, self.revision = {shard.key: shard for shard in work.shards}, work.revision
        self.heard(asked_at)
        begin = {key: shard.start for key, shard in self._shards.items() if key not in before}
        return begin, frozenset(before.keys() - self._shards.keys())

    def heard(self, asked_at: float) -> None:
        """Record that at some time after `asked_at` the run still knew this fetcher, and the fetcher had the newest list of its shards."""
        self._heard_at = max(self._heard_at, asked_at)
        self._heard.notify()

    def forget(self) -> frozenset[ShardKey]:
        """Give up all shards, because other fetchers may have them now; returns the shards to close."""
        shards = frozenset(self._shards)
        self._shards, self._until, self.revision = {}, {}, 0
        return shards

    def expired(self) -> frozenset[ShardKey]:
        """The shards that may no longer be read, because the run has not replied for too long."""
        return frozenset(key for key in self._shards if not self.may_read(key))

    @property
    def next_expiry(self) -> float:
        """The first time at which reading a stream has to stop unless the run replies, monotonic seconds; infinity if there is none."""
        return min(self._until.values(), default=inf)

    # -- what the fetcher asks

    def may_read(self, shard: ShardKey) -> bool:
        return shard in self._shards and self._clock.monotonic() < self._until.get(shard.stream, -inf)

    async def may_open(self, shard: ShardKey) -> None:
        """Wait for the reply to a new request, because a fetcher that was cut off or suspended may have lost the shard."""
        now = self._clock.monotonic()
        while self._heard_at < now or not self.may_read(shard):
            self._ask()
            await self._heard.wait()

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """The error for a task whose shard may not be read here. The task then asks the run which fetcher has the shard."""
        known = "nothing was heard of the run lately" if shard in self._shards else "another fetcher reads it"
        return FetcherUnreachableError(f"shard {shard} is not read here for {seconds:.0f} s now: {known}")

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        known = self._shards.get(shard)
        return known.read_until if known is not None and known.start == position else None
