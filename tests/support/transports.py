"""A scripted SubscribeToShard for tests in virtual time: each call plays the next script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from botocore.exceptions import ClientError, EventStreamError

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.topology import StreamSummary
from kinesis_efo.kinesis.transport import Quota, Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.records.events import Event, read_head


def payload(continuation: int | None, records: int = 0, children: Sequence[str] = (), behind: int = 0) -> bytes:
    """An event's JSON."""
    return json.dumps(
        {
            "ContinuationSequenceNumber": None if continuation is None else str(continuation),
            "MillisBehindLatest": behind,
            "Records": [{"Data": "eA==", "PartitionKey": "k", "SequenceNumber": "1"}] * records,
            "ChildShards": [
                {
                    "ShardId": child,
                    "ParentShards": ["p"],
                    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
                }
                for child in children
            ],
        }
    ).encode()


def refused(code: str, message: str = "", status: int = 400, operation: str = "SubscribeToShard") -> ClientError:
    """The error of a refused request."""
    response: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)


def broken_off(code: str, message: str = "") -> EventStreamError:
    """An error inside the stream."""
    return EventStreamError({"Error": {"Code": code, "Message": message}}, "SubscribeToShard")


@dataclass(frozen=True)
class Wait:
    """Lets time pass before the next step."""

    seconds: float


@dataclass(frozen=True)
class Trickle:
    """Lets time pass while some bytes of the next event arrive each second."""

    seconds: int


@dataclass(frozen=True)
class Large:
    """An event that is read once there is room for it."""

    payload: bytes


class Silence:
    """Sends nothing any more, and does not end."""


Step = bytes | Large | Wait | Trickle | Silence | Exception
Script = Sequence[Step]


@dataclass(frozen=True)
class Opening:
    """A SubscribeToShard that is answered late or never."""

    seconds: float
    script: Script = ()


class OpenSink(Unlimited):
    """Has room for everything; implements `EventSink` but for what becomes of the events."""

    committed: Position | None = None

    @property
    def room(self) -> Self:
        return self


class ScriptedTransport:
    """A transport that plays scripts; implements `kinesis_efo.kinesis.transport.Transport`.

    Args:
        clock: Virtual time.
        scripts: One per call: the call raises an exception, and plays a list as its stream. After the last script, streams
            are silent.

    Attributes:
        calls: Time and position of each call.
        streams: The streams of the calls that succeeded.
    """

    def __init__(self, clock: Clock, *scripts: Script | Exception | Opening) -> None:
        self._clock = clock
        self._scripts = list(scripts)
        self.calls: list[tuple[float, str]] = []
        self.streams: list[ScriptedStream] = []

    async def subscribe(
        self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota
    ) -> ScriptedStream:
        assert all(stream.closed for stream in self.streams), "two subscriptions to one shard at a time"
        self.calls.append((self._clock.monotonic(), str(position or "LATEST")))
        script = self._scripts.pop(0) if self._scripts else [Silence()]
        if isinstance(script, Opening):
            await self._clock.sleep(script.seconds)
            script = script.script
        if isinstance(script, Exception):
            raise script
        self.streams.append(ScriptedStream(self._clock, script, room))
        return self.streams[-1]

    @property
    def positions(self) -> list[str]:
        """The positions of all calls."""
        return [position for _, position in self.calls]

    @property
    def gaps(self) -> list[float]:
        """Seconds between the calls."""
        times = [time for time, _ in self.calls]
        return [round(later - earlier, 6) for earlier, later in pairwise(times)]


class ScriptedStream:
    """A stream that plays a script; implements `kinesis_efo.kinesis.transport.EventStream`."""

    def __init__(self, clock: Clock, script: Script, room: Quota) -> None:
        self._clock = clock
        self._room = room
        self._steps = list(script)
        self._closing = asyncio.Event()
        self.received = 0
        self.read = 0

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        self._closing.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while self._steps and not self.closed:
            step = self._steps.pop(0)
            match step:
                case bytes():
                    self.received += len(step)
                    self.read += 1
                    return Event(step, read_head(step))
                case Large(content):
                    if not self._room.try_reserve(len(content)):
                        await self._room.reserve(len(content))
                    self._steps.insert(0, content)
                case Wait(seconds):
                    await self._sleep(seconds)
                case Trickle(seconds):
                    for _ in range(seconds):
                        await self._sleep(1)
                        self.received += 1
                case Silence():
                    await self._closing.wait()
                case Exception():
                    raise step
        if self.closed:
            raise ConnectionError("closed")
        raise StopAsyncIteration

    async def _sleep(self, seconds: float) -> None:
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((sleep, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            closing.cancel()


class ScriptedTopology:
    """A topology that plays answers; implements `kinesis_efo.kinesis.topology.Topology`.

    Args:
        answers: One per call of `shards`: shards or their ids, or an exception. The last one is repeated for ever.
        retention: One per call of `summary`: seconds, or an exception. The last one is repeated for ever.
        consumer: One per call of `consumer_exists`: whether it does, or an exception. The last one is repeated for ever.
        created: When the stream was created, epoch seconds.
    """

    def __init__(
        self,
        *answers: Sequence[str | Shard] | Exception,
        retention: Sequence[float | Exception] = (24 * 3600,),
        consumer: Sequence[bool | Exception] = (False,),
        created: int = 1_700_000_000,
    ) -> None:
        self._consumer = list(consumer)
        self._created = created
        self.described = 0
        self._answers = list(answers)
        self._retention = list(retention)
        self.calls = 0

    async def shards(self, stream_arn: str) -> list[Shard]:
        self.calls += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [shard if isinstance(shard, Shard) else Shard(shard, (), (0, 9), first=1) for shard in answer]

    async def shards_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        raise NotImplementedError

    async def distribution(self, stream_arn: str) -> Distribution:
        raise NotImplementedError

    async def consumer_exists(self, consumer_arn: str) -> bool:
        self.described += 1
        await asyncio.sleep(0.01)
        answer = self._consumer.pop(0) if len(self._consumer) > 1 else self._consumer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def summary(self, stream_arn: str) -> StreamSummary:
        answer = self._retention.pop(0) if len(self._retention) > 1 else self._retention[0]
        if isinstance(answer, Exception):
            raise answer
        return StreamSummary(self._created, answer)
