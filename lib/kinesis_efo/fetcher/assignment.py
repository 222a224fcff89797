"""What a fetcher outside the planner's process has to read, and until when it may: as the planner has said.

It measures by its own clock, from before it asked. So it stops before the run's lease can be another's, however long the answer
was under way, and also after its process was paused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from kinesis_efo.clock import Clock
from kinesis_efo.errors import FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.work import Shard, Work
from kinesis_efo.positions import Position, ShardKey


@dataclass(frozen=True, slots=True)
class Change:
    """What an answer of the planner changes.

    Attributes:
        begin: Shards to read now, with where to begin.
        end: Shards to close.
    """

    begin: dict[ShardKey, Position] = field(default_factory=dict)
    end: frozenset[ShardKey] = frozenset()


class Assignment:
    """The coordinator of a fetcher that the planner reaches through the network.

    Args:
        clock: Time.
        ask: Makes the planner be asked at once whether it still knows this fetcher; see `heard`.

    Attributes:
        failure: What keeps the fetcher from reading.
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

    def follow(self, work: Work, asked_at: float) -> Change:
        """Take note of an answer to a request for work.

        Args:
            work: The answer.
            asked_at: Monotonic time before the request was sent, seconds.
        """
        self._until = {stream: asked_at + seconds for stream, seconds in work.seconds.items()}
        change = Change()
        if work.shards is not None:
            shards = {shard.key: shard for shard in work.shards}
            change = Change(
                {key: shard.start for key, shard in shards.items() if key not in self._shards},
                frozenset(self._shards.keys() - shards.keys()),
            )
            self._shards, self.revision = shards, work.revision
        self.heard(asked_at)
        return change

    def heard(self, asked_at: float) -> None:
        """Take note that the planner still knew this fetcher after some time, and that its shards are the newest."""
        self._heard_at = max(self._heard_at, asked_at)
        self._heard.notify()

    def forget(self) -> frozenset[ShardKey]:
        """Begin anew: the planner has given the shards to others.

        Returns:
            The shards to close.
        """
        shards = frozenset(self._shards)
        self._shards, self._until, self.revision = {}, {}, 0
        return shards

    def expired(self) -> frozenset[ShardKey]:
        """The shards that may not be read any more because nothing was heard of the planner."""
        return frozenset(key for key in self._shards if not self.may_read(key))

    @property
    def next_expiry(self) -> float:
        """When the first stream may not be read any more, seconds on the monotonic clock."""
        return min(self._until.values(), default=inf)

    # -- what the fetcher asks

    def may_read(self, shard: ShardKey) -> bool:
        return shard in self._shards and self._clock.monotonic() < self._until.get(shard.stream, -inf)

    async def may_open(self, shard: ShardKey) -> None:
        """See `Coordinator`. Who was cut off or paused may have lost the shard: only an answer to a question of now tells."""
        now = self._clock.monotonic()
        while self._heard_at < now or not self.may_read(shard):
            self._ask()
            await self._heard.wait()

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """See `Coordinator`. Who asked for it asks the planner then, which knows who reads the shard now."""
        known = "nothing was heard of the planner lately" if shard in self._shards else "another fetcher reads it"
        return FetcherUnreachableError(f"shard {shard} is not read here for {seconds:.0f} s now: {known}")

    def read_until(self, shard: ShardKey, position: Position) -> float | None:
        known = self._shards.get(shard)
        return known.read_until if known is not None and known.start == position else None
