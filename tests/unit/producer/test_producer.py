"""The producers against a modelled stream: waiting, waking, flushing, failing, closing."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo.errors import (
    ProducerClosedError,
    RecordRefusedError,
    RetriesExhaustedError,
    StreamNotFoundError,
    WriteError,
)
from kinesis_efo.producer import AsyncProducer, Producer, ProducerMetrics, ProducerSettings
from kinesis_efo.producer.service import KinesisService
from tests.support.messages import raises
from tests.support.producers import Opened, made, with_parts
from tests.support.write_model import Answer, ModelService, ModelStream, even_shards

SOON = 10.0
LARGE = b"x" * (1 << 20)
"""Data of a record that is too large."""


def gone(_: object = None) -> Any:
    """The script of a stream that was deleted."""
    raise ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no such stream"}}, "PutRecords")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - conditions of many kinds
            await asyncio.sleep(0.001)


@asynccontextmanager
async def producing(**wanted: Any) -> AsyncIterator[tuple[AsyncProducer, Opened]]:
    async with made(opened := Opened(), **wanted) as producer:
        yield producer, opened


@asynccontextmanager
async def failing(
    kind: type[Exception] = StreamNotFoundError, **wanted: Any
) -> AsyncIterator[tuple[AsyncProducer, Opened]]:
    """A producer that raises its failure when it is closed."""
    with pytest.raises(kind):
        async with producing(**wanted) as both:
            yield both


def numbered(count: int, key: str = "k") -> Iterator[tuple[str, str]]:
    return ((str(number), f"{key}{number}") for number in range(count))


# Shows 87.
async def test_put_waits_for_room_and_continues_afterwards() -> None:
    async with producing(max_outstanding_records=10, linger=60) as (producer, opened):
        opened.service.gate.clear()
        await producer.put_many(numbered(10))
        waiting = asyncio.create_task(producer.put(b"x", "late"))
        await until(lambda: producer.metrics.backpressure_waits == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert producer.metrics.outstanding_records == 10
        opened.service.gate.set()
        await asyncio.wait_for(waiting, SOON)
        await producer.flush()
        metrics = producer.metrics
        assert (metrics.outstanding_records, metrics.outstanding_bytes) == (0, 0)
        assert (metrics.records_written, metrics.backpressure_waits) == (11, 1)
        assert metrics.backpressure_seconds > 0


@pytest.mark.parametrize("begun", [False, True])
async def test_cancelled_request_fails_the_producer(begun: bool) -> None:
    """Whoever ends a program cancels all tasks of the loop; a flush after that must not wait for ever."""

    async with failing(WriteError, linger=0) as (producer, opened):
        opened.service.gate.clear()
        sent = await producer.send(b"x", "k")
        while not (opened.service.requests if begun else asyncio.all_tasks() - {asyncio.current_task()}):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(WriteError, match="CancelledError"):
            await asyncio.wait_for(producer.flush(), SOON)
        assert isinstance(sent.exception(), WriteError)


# Shows 87.
async def test_flush_waits_only_for_records_put_before() -> None:
    async with producing(linger=60) as (producer, opened):
        opened.service.gate.clear()
        await producer.put(b"first", "k")
        flush = asyncio.create_task(producer.flush())
        await until(lambda: opened.service.in_flight)
        await producer.put(b"second", "k")
        await asyncio.sleep(0.01)
        assert not flush.done()
        opened.service.gate.set()
        await asyncio.wait_for(flush, SOON)
        assert producer.metrics.outstanding_records == 1
        assert opened.stored == [b"first"]


# Shows 88.
async def test_first_failure_is_raised_by_every_later_call() -> None:
    async with failing() as (producer, opened):
        opened.service.script = gone
        await producer.put(b"x", "k")
        with pytest.raises(StreamNotFoundError, match="stream orders cannot be written to: ResourceNotFoundException"):
            await producer.flush()
        opened.service.script = lambda _: None
        for _ in range(2):
            with pytest.raises(StreamNotFoundError):
                await producer.put(b"y", "k")
        with pytest.raises(StreamNotFoundError):
            await producer.flush()
        assert (producer.metrics.records_written, producer.metrics.outstanding_records) == (0, 1)
        for _ in range(2):
            with pytest.raises(StreamNotFoundError):
                await producer.close()
        assert opened.closed


@pytest.mark.parametrize("fail_on_error", [False, True])
async def test_outage_longer_than_the_retry_timeout_fails(fail_on_error: bool) -> None:
    producer = await made(opened := Opened(), fail_on_error=fail_on_error).open()
    opened.service.script = lambda parcels: [Answer(code="InternalFailure", message="x") for _ in parcels]
    await producer.put_many(numbered(100))
    with raises(
        RetriesExhaustedError,
        "stream orders cannot be written to: every record for shardId-000000000000 failed for ... s, beginning with "
        "InternalFailure: x. Remove the cause, or raise the limit (retry_timeout is 300 s)",
    ):
        await producer.flush()
    assert producer.metrics.records_refused == 0
    # Otherwise, garbage collection logs the lost records in the middle of another test.
    await producer.abort()


@pytest.mark.parametrize("kind", [RecordRefusedError, ZeroDivisionError])
async def test_put_many_writes_the_records_before_an_error(kind: type[Exception]) -> None:
    def given() -> Iterator[tuple[bytes, str]]:
        for number in range(5):
            yield b"%d" % number, f"k{number}"
        if kind is RecordRefusedError:
            yield LARGE, "large"
        raise ZeroDivisionError

    async with producing() as (producer, opened):
        with pytest.raises(kind):
            await producer.put_many(given())
        await producer.flush()
        assert opened.stored == [b"0", b"1", b"2", b"3", b"4"]


async def test_refused_records_are_counted_and_logged_on_request(caplog: pytest.LogCaptureFixture) -> None:
    async with failing(fail_on_error=False) as (producer, opened):
        opened.service.script = lambda parcels: [
            Answer(code="ValidationException", message="bad") if parcel.data == b"bad" else Answer(parcel.key)
            for parcel in parcels
        ]
        for data in (b"good", b"bad", LARGE, b"good"):
            await producer.put(data, "k")
        await producer.put_many([("a", "k"), ("b", ""), ("c", "k")])
        await producer.flush()
        metrics = producer.metrics
        assert (metrics.records_written, metrics.records_refused, metrics.outstanding_records) == (4, 3, 0)
        opened.service.script = gone
        await producer.put(b"x", "k")
        with pytest.raises(StreamNotFoundError):
            await producer.flush()
    assert sum("not written to stream orders" in message for message in caplog.messages) == 3


async def test_record_above_a_setting_names_the_setting() -> None:
    async with producing(max_outstanding_bytes=8000) as (producer, _):
        with raises(
            RecordRefusedError,
            "record 0 (partition key 'k', 8001 bytes) is larger than the 8000 bytes that 'max_outstanding_bytes' allows "
            "(partition key included). Make it smaller, or raise 'max_outstanding_bytes'",
        ):
            await producer.put(b"x" * 8_000, "k")


def test_cancelled_program_ends_at_once_and_names_losses(caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened()

    async def main() -> None:
        async with with_parts(AsyncProducer("orders"), connect=opened) as producer:
            opened.service.gate.clear()
            await producer.put(b"x", "k")
            await producer.flush()

    async def outer() -> None:
        task = asyncio.create_task(main())
        await until(lambda: opened.service.in_flight)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, SOON)

    asyncio.run(outer())
    assert opened.closed
    assert any("closed with 1 records (2 bytes) that were put and not acknowledged" in text for text in caplog.messages)


async def test_producer_that_is_not_open_names_the_remedy() -> None:
    producer = with_parts(AsyncProducer("orders"), connect=Opened())
    assert producer.metrics == ProducerMetrics()
    with raises(ProducerClosedError, "the producer for orders is not open: enter its context or call open()"):
        await producer.put(b"x", "k")
    await producer.close()
    await producer.open()
    with raises(ProducerClosedError, "the producer for orders was opened before; create another one"):
        await producer.open()
    await producer.close()
    await producer.close()
    for call in (producer.put(b"x", "k"), producer.flush()):
        with raises(ProducerClosedError, "the producer for orders is closed; create another one"):
            await call


async def test_aggregate_that_missed_a_split_is_written_again() -> None:
    async with producing(aggregate=True) as (producer, opened):
        opened.stream.split(0)
        await producer.put_many(numbered(50))
        await producer.flush()
        assert sorted(record.position for record in opened.stream.seen) == list(range(50))
        assert producer.metrics.retries == {"WrongShard": 1}
        assert opened.service.lists == 2


async def test_stall_is_logged_when_it_begins_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async with producing(max_outstanding_records=1, stall_warning=0.1) as (producer, opened):
        opened.service.gate.clear()
        await producer.put(b"x", "k")
        waiting = asyncio.create_task(producer.put(b"x", "k"))
        await until(lambda: caplog.messages)
        await asyncio.sleep(0.35)
        assert len(caplog.messages) == 1, "once per stall"
        opened.service.gate.set()
        await waiting
        await producer.flush()
    assert "1 records (2 bytes) are outstanding and none was acknowledged for" in caplog.messages[0]
    assert "continues after" in caplog.messages[1]
    assert len(caplog.messages) == 2


def blocking(opened: Opened, **wanted: Any) -> Producer:
    return with_parts(Producer("orders", settings=ProducerSettings(**wanted)), connect=opened)


def producer_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "kinesis-efo-producer"}


class TestBlocking:
    def test_failure_reaches_the_thread_that_waits(self) -> None:
        producer = blocking(opened := Opened(), max_outstanding_records=1).open()
        opened.service.script = gone
        producer.put(b"x", "k")
        # The second put waits for capacity when the failure arrives, or comes after it.
        with pytest.raises(StreamNotFoundError):
            producer.put(b"x", "k")
        for call in (producer.flush, producer.close, producer.close):
            with pytest.raises(StreamNotFoundError):
                call()
        assert opened.closed
        with pytest.raises(StreamNotFoundError):
            producer.put(b"x", "k")

    def test_failed_open_raises_and_leaves_no_thread(self) -> None:
        @asynccontextmanager
        async def broken() -> AsyncIterator[KinesisService]:
            service = ModelService(ModelStream(even_shards(1)))

            async def refuse() -> list[Any]:
                gone()
                return []

            service.shards = refuse  # type: ignore[method-assign]
            yield service

        others = producer_threads()  # of tests whose producers were never closed
        with pytest.raises(StreamNotFoundError, match="stream orders cannot be opened for writing"):
            with_parts(Producer("orders"), connect=broken).open()
        assert producer_threads() <= others

    def test_error_of_the_program_outranks_the_producers(self, caplog: pytest.LogCaptureFixture) -> None:
        opened = Opened()

        def main() -> None:
            with blocking(opened) as producer:
                opened.service.script = gone
                producer.put(b"x", "k")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            main()
        assert "producer for orders failed when it was closed after another error" in caplog.text
        assert opened.closed


async def test_sent_record_fails_with_the_producer() -> None:
    async with failing(linger=0.001) as (producer, opened):
        written = await producer.send(b"x", "k")
        assert (await written).shard_id == "shardId-000000000000"
        opened.service.script = gone
        with pytest.raises(StreamNotFoundError):
            await (await producer.send(b"y"))


async def test_refused_sent_record_fails_alone() -> None:
    async with producing(fail_on_error=False) as (producer, _):
        with pytest.raises(RecordRefusedError):
            await producer.send(LARGE, "k")
        assert (await (await producer.send(b"x"))).shard_id


def test_unwritten_sent_record_fails_at_abort() -> None:
    opened = Opened()
    producer = with_parts(Producer("orders"), connect=opened).open()
    opened.loop.call_soon_threadsafe(opened.service.gate.clear)
    written = producer.send(b"x")
    assert not written.cancel(), "the record is on its way"
    producer.abort()
    with pytest.raises(ProducerClosedError):
        written.result(SOON)


def test_producer_for_threads_refuses_asyncio() -> None:
    async def enter() -> None:
        async with Producer("orders"):  # type: ignore[attr-defined]
            pass

    async def wait() -> None:
        await with_parts(Producer("orders"), connect=Opened()).open()

    for wrong in (enter, wait):
        with pytest.raises(TypeError, match=r"use kinesis_efo\.AsyncProducer"):
            asyncio.run(wrong())
