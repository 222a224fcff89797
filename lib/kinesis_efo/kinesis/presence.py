"""Checks which shards and which consumer of a stream exist, with one call for all subscriptions that ask at the same time.

A fault may hit a thousand shards at once, and Kinesis allows an account few such calls a second.
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
"""How long a reply is reused. An error is raised only to the callers that wait for it."""


class Presence:
    """The shards and the consumer of one stream, as of the last seconds.

    Args:
        stream: The stream and its consumer.
        lister: Calls Kinesis.
        clock: Time.
    """

    def __init__(self, stream: StreamRef, lister: ShardLister, clock: Clock) -> None:
        self._shards = _SharedCall(lambda: lister.shards(stream.stream_arn), clock)
        self._consumer = _SharedCall(lambda: lister.consumer_exists(stream.consumer_arn or ""), clock)

    async def shards(self) -> list[Shard]:
        """List the stream's shards.

        Raises:
            ClientError: Kinesis refused; botocore's exception.
        """
        return await self._shards.get()

    async def end(self, shard_id: str) -> tuple[int, tuple[ChildShard, ...]] | None:
        """Return the last number of a shard and its children; None if it is open or not listed.

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


class _SharedCall(Generic[T]):
    """A call whose reply is shared by callers at the same time or soon after."""

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
        # One cancelled caller must not cancel the call of the others.
        return await asyncio.shield(self._asking)

    async def _answer(self) -> T:
        answer = await self._ask()
        self._answered = self._clock.monotonic(), answer
        return answer

    def _done(self, task: asyncio.Task[T]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the callers raise it
