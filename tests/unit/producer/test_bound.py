"""The bound on outstanding records: who waits for room, in which order, and how a hot shard delays the records of others."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from random import Random

import pytest

from kinesis_efo.producer import AsyncProducer
from kinesis_efo.producer.aggregation import Parcel
from kinesis_efo.producer.engine import REPLACED_SECONDS
from kinesis_efo.producer.routing import HashRange
from tests.support.producers import Opened, made
from tests.support.write_model import RING, THROTTLE, Answer, ModelService, ModelStream, even_shards

PUT_SECONDS = 0.02
"""How often each caller puts what has come."""


class LimitedService(ModelService):
    """Answers after some milliseconds. Each shard takes 1,000 records and 1 MiB a second, of which it saves up one second."""

    def __init__(self, shards: int, random: Random) -> None:
        super().__init__(ModelStream(even_shards(shards)))
        self.random = random
        self.left: dict[str, tuple[float, float, float]] = defaultdict(lambda: (0.0, 1_000.0, float(1 << 20)))
        self.stored_at: dict[bytes, float] = {}
        self.sent = self.taken = 0

    async def put_records(self, parcels: Sequence[Parcel], *, keyed: bool) -> Sequence[Answer]:
        await asyncio.sleep(self.random.uniform(0.005, 0.03))
        answers = [self.answer(parcel) for parcel in parcels]
        await asyncio.sleep(0.005)
        return answers

    def answer(self, parcel: Parcel) -> Answer:
        now = asyncio.get_running_loop().time()
        shard = self.stream.map.shard_of(parcel.records[0].hash)
        then, records, size = self.left[shard]
        records = min(1_000.0, records + 1_000 * (now - then)) - 1
        size = min(float(1 << 20), size + (1 << 20) * (now - then)) - parcel.size
        self.sent += 1
        if records < 0 or size < 0:
            return Answer(code=THROTTLE, message="Rate exceeded")
        self.taken += 1
        self.left[shard] = (now, records, size)
        self.stored_at.update((record.data[:20], now) for record in parcel.records)
        return self.stream.store(parcel)


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("callers", ["one for each shard", "one for all"])
async def test_neighbors_of_a_hot_shard_are_written_soon(callers: str, aggregate: bool) -> None:
    shards, rates = 4, [2_500, 250, 250, 250]
    service = LimitedService(shards, random := Random(1))
    put_at: dict[bytes, float] = {}

    def record(shard: int) -> tuple[bytes, str, int]:
        number = len(put_at)
        data = f"{shard}:{number}".encode().ljust(20)
        put_at[data] = asyncio.get_running_loop().time()
        return data.ljust(900, b"x"), f"{shard}-{number % 1_000}", RING * shard // shards + number % 1_000

    async def call(producer: AsyncProducer, its_shards: list[int]) -> None:
        for _ in range(round(25 / PUT_SECONDS)):
            await asyncio.sleep(PUT_SECONDS)
            come = [shard for shard in its_shards for _ in range(round(rates[shard] * PUT_SECONDS))]
            random.shuffle(come)
            await producer.put_many([record(shard) for shard in come])

    async with made(Opened(service=service), aggregate=aggregate) as producer:
        its_shards = [list(range(shards))] if callers == "one for all" else [[shard] for shard in range(shards)]
        await asyncio.gather(*(call(producer, its) for its in its_shards))
        assert producer.metrics.backpressure_seconds > 1, "the hot shard must have filled the bound"
        await producer.flush()
    waited = sorted(service.stored_at[data] - at for data, at in put_at.items() if not data.startswith(b"0:"))
    assert len(waited) == 3 * 25 * 250
    assert waited[-1] < 1.0
    assert waited[len(waited) // 2] < 0.1
    assert service.sent < 2 * service.taken, "records are sent again and again"


async def test_record_always_refused_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    opened = Opened()
    service, poisoned = opened.service, True

    def script(parcels: Sequence[Parcel]) -> list[Answer]:
        failure = Answer(code="InternalFailure", message="x")
        return [failure if poisoned and parcel.key == "poison" else service.stream.store(parcel) for parcel in parcels]

    async with made(opened) as producer:
        service.script = script
        await producer.put(b"secret", "poison")
        flush = asyncio.create_task(producer.flush())
        for number in range(400):
            await producer.put(b"x", str(number))
            await asyncio.sleep(1)
        assert not flush.done()
        poisoned = False
        await flush
    named = [text for text in caplog.messages if "is not written yet" in text]
    assert 5 <= len(named) <= 7
    assert named[0].startswith(
        "stream orders: record 0 (partition key 'poison', 12 bytes) is not written yet: Kinesis has refused it for 6"
    )
    assert "InternalFailure: x" in named[0]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("fails", [0, 3])
async def test_idle_producer_finds_the_shards_of_a_recreated_stream(fails: int) -> None:
    opened = Opened()
    service, lists = opened.service, opened.service.shards

    async def shards() -> list[HashRange]:
        nonlocal fails
        if service.lists and fails:
            fails -= 1
            raise TimeoutError("LimitExceededException")
        return await lists()

    service.shards = shards  # type: ignore[method-assign]
    async with made(opened, aggregate=True) as producer:
        await producer.put(b"first", "k")
        await producer.flush()
        assert service.lists == 1
        await asyncio.sleep(REPLACED_SECONDS + 1)
        service.stream.ranges = even_shards(2)
        # Aggregates of both halves of the ring, which Kinesis writes to the first shard.
        await producer.put_many((b"%d" % number, "k", number % 2 * (RING - 1)) for number in range(200))
        await producer.flush()
        assert {record.data for record in service.stream.seen} == {b"first", *(b"%d" % number for number in range(200))}
        assert len(service.stream.seen) == 201, "none is written twice"
