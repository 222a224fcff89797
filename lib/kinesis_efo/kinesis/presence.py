"""Asks Kinesis which shards and which consumer of a stream exist: once for all subscriptions that miss something at a time.

A fault may hit a thousand shards at once, and Kinesis allows few such calls in a second, for all of an account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.events import ChildShard
from kinesis_efo.kinesis.lineage import Shard, announced
from kinesis_efo.kinesis.topology import ShardLister
from kinesis_efo.manifest import StreamRef

T = TypeVar("T")

FRESH_SECONDS: Final = 5.0
"""For so long an answer counts for the next one who asks. An error counts for those only who wait for it."""


class Presence:
    """What exists of one stream, by answers of the last seconds.

    Args:
        stream: The stream and its consumer.
        lister: Asks Kinesis.
        clock: Time.
    """

    def __init__(self, stream: StreamRef, lister: ShardLister, clock: Clock) -> None:
        self._shards = _Shared(lambda: lister.shards(stream.stream_arn), clock)
        self._consumer = _Shared(lambda: lister.consumer_exists(stream.consumer_arn or ""), clock)

    async def shards(self) -> list[Shard]:
        """The stream's shards.

        Raises:
            ClientError: Kinesis refused; botocore's exception.
        """
        return await self._shards.get()

    async def end(self, shard_id: str) -> tuple[int, tuple[ChildShard, ...]] | None:
        """The last number of a shard and its children; None if it is open, or not listed.

        Raises:
            ClientError: Kinesis refused; botocore's exception.
        """
        shards = await self._shards.get()
        last = next((shard.last for shard in shards if shard.shard_id == shard_id), None)
        return None if last is None else (last, announced(shard for shard in shards if shard_id in shard.parents))

    async def consumer(self) -> bool:
        """Whether the consumer with the ARN of the manifest exists.

        Raises:
            ClientError: Kinesis refused; botocore's exception.
        """
        return await self._consumer.get()


class _Shared(Generic[T]):
    """A question with one answer for all who ask at the same time, or soon after."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._asking: asyncio.Task[T] | None = None
        self._answered: tuple[float, T] | None = None

    async def get(self) -> T:
        if self._answered is not None and self._clock.monotonic() - self._answered[0] < FRESH_SECONDS:
            return self._answered[1]
        if self._asking is None:
            self._asking = asyncio.create_task(self._answer())
            self._asking.add_done_callback(self._done)
        # Who is cancelled leaves the others their answer.
        return await asyncio.shield(self._asking)

    async def _answer(self) -> T:
        answer = await self._ask()
        self._answered = self._clock.monotonic(), answer
        return answer

    def _done(self, task: asyncio.Task[T]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # whoever waits has it
