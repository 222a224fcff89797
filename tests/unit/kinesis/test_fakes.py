"""The fakes in memory do as Kinesis does: the model stream, the polled stream, and the emulator's memory. All in virtual time."""

import asyncio
import itertools
import json
from collections.abc import Coroutine
from hashlib import md5
from typing import Any

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport
from kinesis_efo.manifest import StreamRef
from kinesis_efo.raw_bodies import RAW_BODY
from tests.emulator.memory import MemoryClient
from tests.emulator.memory_world import STREAM, MemoryWorld
from tests.support.kinesis_contract import (
    AnswersContract,
    CalledFake,
    IteratorTimeContract,
    LivingContract,
    LivingFake,
    Scenario,
    ServiceContract,
    SubscriptionTimeContract,
    shard_id,
)
from tests.support.model_stream import ModelStream
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock, run

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


class Model(LivingFake):
    def __init__(self) -> None:
        self.stream = ModelStream(event_records=(7,))
        self.ref = StreamRef("orders", "orders", ARN, f"{ARN}/consumer/lake:1")
        self.transport = self.stream
        self.stream.put(0, *[12] * 24)

    async def put(self, shard: int, count: int) -> None:
        self.stream.put(shard, *[12] * count)

    async def split(self, shard: int) -> None:
        self.stream.split(shard)

    async def merge(self, one: int, other: int) -> None:
        self.stream.merge(one, other)

    async def shards(self) -> list[Shard]:
        return await self.stream.shards(ARN)


class Polled(Model, CalledFake):
    def __init__(self) -> None:
        super().__init__()
        self._client = PolledClient(self.stream, LoopClock())

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        match operation:
            case "GetShardIterator":
                return await self._client.get_shard_iterator(**params)
            case "GetRecords":
                answer: dict[str, Any] = json.loads((await self._client.get_records(**params))[RAW_BODY])
                return answer
        raise NotImplementedError(operation)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Memory(CalledFake):
    def __init__(self) -> None:
        self.world = MemoryWorld(settings={"max_event_records": 7})
        self.world.put_some(24)
        self.ref = self.world.application.ref
        self._client = MemoryClient(self.world.kinesis)
        self.transport = BotoTransport(self._client)

    async def next_turn(self) -> None:
        await asyncio.sleep(5.0)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def put(self, shard: int, count: int) -> None:
        low, high = self.world.kinesis.state.streams[STREAM].shards[shard_id(shard)].hash_range
        keys = (str(number) for number in itertools.count())
        taken = (key for key in keys if low <= int.from_bytes(md5(key.encode()).digest(), "big") <= high)
        for key in itertools.islice(taken, count):
            assert self.world.kinesis.put(STREAM, key, b"data") == shard_id(shard)

    async def split(self, shard: int) -> None:
        at = [each.id for each in self.world.kinesis.state.streams[STREAM].open_shards].index(shard_id(shard))
        self.world.split(at)
        await self._settle()

    async def merge(self, one: int, other: int) -> None:
        self.world.kinesis.call(
            "MergeShards", StreamName=STREAM, ShardToMerge=shard_id(one), AdjacentShardToMerge=shard_id(other)
        )
        await self._settle()

    async def _settle(self) -> None:
        await asyncio.sleep(0.1)
        self.world.kinesis.state.settle()

    async def shards(self) -> list[Shard]:
        return await Topology(self._client, LoopClock()).shards(self.ref.stream_arn)

    async def call(self, operation: str, **params: Any) -> dict[str, Any]:
        answer = await self._client._call(operation, params)
        return json.loads(answer) if isinstance(answer, bytes) else answer


def play(scenario: Scenario, make: type[LivingFake]) -> None:
    async def main() -> None:
        await scenario(make())

    bounded: Coroutine[Any, Any, None] = main()
    run(asyncio.wait_for(bounded, 3600))


class TestModelStream(LivingContract):
    def run(self, scenario: Scenario) -> None:
        play(scenario, Model)


class TestPolledStream(AnswersContract, IteratorTimeContract):
    def run(self, scenario: Scenario) -> None:
        play(scenario, Polled)


class TestMemory(ServiceContract, SubscriptionTimeContract, AnswersContract, IteratorTimeContract):
    def run(self, scenario: Scenario) -> None:
        play(scenario, Memory)
