"""The producer on streams whose records Kinesis distributes itself, in virtual time: nothing is predicted, nothing is aggregated."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from kinesis_efo.errors import RecordRefusedError
from kinesis_efo.producer import AsyncProducer
from kinesis_efo.producer.record import PutArguments, Record
from kinesis_efo.records.distribution import Distribution
from tests.support.messages import raises
from tests.support.producers import Opened, made
from tests.support.write_model import ModelStream, even_shards


class Writing(Opened):
    """A producer that writes to the model."""

    producer: AsyncProducer

    async def write(self, given: Iterable[PutArguments]) -> None:
        await self.producer.put_many(given)
        assert self.producer.metrics.backpressure_waits == 0, "less than the bound is outstanding"
        await self.producer.flush()

    @property
    def aggregates(self) -> int:
        return sum(not isinstance(parcel, Record) for parcels in self.service.requests for parcel in parcels)

    @property
    def numbers(self) -> list[int]:
        return sorted(map(int, self.stored))


@asynccontextmanager
async def writing_to(stream: ModelStream, request: pytest.FixtureRequest, **settings: Any) -> AsyncIterator[Writing]:
    writing = Writing(stream)
    async with made(writing, request.node.name, **settings) as writing.producer:
        yield writing


def numbered(first: int, count: int, hash_key: int | None = None) -> list[PutArguments]:
    return [(b"%d" % number, f"key-{number % 50}", hash_key) for number in range(first, first + count)]


def auto(shards: int = 8) -> ModelStream:
    return ModelStream(even_shards(shards), Distribution.AUTO)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("aggregate", [False, True])
async def test_nothing_is_listed_predicted_or_aggregated(
    ordered: bool, aggregate: bool, request: pytest.FixtureRequest
) -> None:
    async with writing_to(auto(), request, ordered=ordered, aggregate=aggregate) as writing:
        for number in range(20):
            await writing.write(numbered(500 * number, 500, hash_key=7))
            await asyncio.sleep(1)
        service = writing.service
        assert writing.numbers == list(range(10_000))
        assert (service.lists, service.asked) == (0, 1), "asked once, when it was opened"
        assert len(service.requests) == 20, (
            "order is not Kinesis' to keep there: 500 records of 50 keys share a request"
        )
        assert not any(service.keyed), "no explicit hash keys"
        assert not writing.aggregates
        assert writing.producer.metrics.retries == {}


async def test_ignored_settings_are_named_in_one_warning(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        async with writing_to(auto(), request, ordered=True, aggregate=True) as writing:
            await writing.write(numbered(0, 10))
    (said,) = caplog.messages
    assert said == (
        f"stream {request.node.name}: records are not aggregated or kept in order: Kinesis distributes the stream's records itself "
        "(RecordDistributionStrategy AUTO), whatever their keys are"
    )


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("aggregate", [False, True])
async def test_change_to_auto_while_writing_loses_nothing(
    ordered: bool, aggregate: bool, request: pytest.FixtureRequest
) -> None:
    stream = auto()
    stream.distribution = Distribution.KEYED
    async with writing_to(stream, request, ordered=ordered, aggregate=aggregate) as writing:
        await writing.write(numbered(0, 2_000))
        service, stream = writing.service, writing.stream
        assert bool(writing.aggregates) is aggregate
        stream.distribution = Distribution.AUTO
        await writing.write(numbered(2_000, 2_000))
        assert set(writing.numbers) == set(range(4_000)), "aggregates in the wrong shards are written again"
        service.requests.clear()
        lists = service.lists
        for number in range(8, 20):
            await writing.write(numbered(500 * number, 500))
            await asyncio.sleep(1)
        assert set(writing.numbers) == set(range(10_000))
        assert not writing.aggregates
        assert service.lists == lists <= 3


@pytest.mark.parametrize("placed_by_kinesis", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
async def test_unknown_distribution_disables_aggregation_and_slows_lookups(
    ordered: bool, placed_by_kinesis: bool, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    stream = ModelStream(even_shards(8), Distribution.UNKNOWN, "the role has no permission", placed_by_kinesis)

    caplog.set_level(logging.WARNING)
    async with writing_to(stream, request, aggregate=True, ordered=ordered) as writing:
        for number in range(120):
            await writing.write(numbered(50 * number, 50))
            await asyncio.sleep(1)
        assert writing.numbers == list(range(6_000))
        assert not writing.aggregates
        # Once when it was opened; then, where records go elsewhere, after 0, 2, 4, 8, 16 and 32 s.
        assert writing.service.lists == (7 if placed_by_kinesis else 1)
        assert len(writing.service.requests) <= 240, "a request of 50 keys, also where order is kept"
    (said,) = caplog.messages
    assert said.startswith(f"stream {request.node.name}: records are not aggregated, because it is not known")
    assert said.endswith("the role has no permission")


@pytest.mark.parametrize("aggregate", [False, True])
async def test_reshard_is_found_by_one_call(aggregate: bool, request: pytest.FixtureRequest) -> None:
    stream = ModelStream(even_shards(2))

    async with writing_to(stream, request, aggregate=aggregate) as writing:
        await writing.write(numbered(0, 500))
        stream.split(0)
        await writing.write(numbered(500, 500))
        await asyncio.sleep(5)
        await writing.write(numbered(1_000, 500))
        assert set(writing.numbers) == set(range(1_500))
        assert writing.service.asked == 1, (
            "a thousand producers learn of it at once, and the account has 20 such calls a second"
        )
        assert writing.service.lists <= 3


async def test_failed_refresh_leaves_written_records_acknowledged(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the records would count as unwritten, and be written once more."""
    stream = ModelStream(even_shards(2))

    with caplog.at_level(logging.WARNING):
        async with writing_to(stream, request, aggregate=True) as writing:
            await writing.write(numbered(0, 500))
            known = await writing.service.shards()
            stream.split(0)

            ask = writing.service.traits
            refused = 3

            async def throttled() -> Any:
                nonlocal refused
                refused -= 1
                if refused >= 0:
                    raise TimeoutError("LimitExceededException")
                return await ask()

            writing.service.traits = throttled  # type: ignore[method-assign]
            lists = writing.service.shards

            async def late() -> Any:
                """ListShards does not know the children yet."""
                return known if refused > 0 else await lists()

            writing.service.shards = late  # type: ignore[method-assign]
            await writing.write(numbered(500, 500))
            assert set(writing.numbers) == set(range(1_000))
            assert writing.producer.metrics.outstanding_records == 0
    assert "cannot be refreshed: LimitExceededException" in caplog.text


async def test_record_without_a_key_gets_a_random_one(request: pytest.FixtureRequest) -> None:
    async with writing_to(ModelStream(even_shards(2)), request) as writing:
        await writing.write([(b"0", None), (b"1", "mine"), (b"2", None, 7)])
        source = Random(1)
        # The engine's own draws for jitter come later: nothing has failed.
        drawn = [f"{source.getrandbits(64):016x}" for _ in range(2)]
        sent = {record.data: record.key for parcels in writing.service.requests for record in parcels}
        assert sent == {b"0": drawn[0], b"1": "mine", b"2": drawn[1]}
        with raises(
            RecordRefusedError,
            "record 3 (1 bytes of data): the partition key must be a text of 1 to 256 characters; it has 0 characters: ''",
        ):
            await writing.write([(b"3", "")])
