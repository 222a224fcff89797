"""The producers against a modelled stream: waiting, waking, flushing, failing, closing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from kinesis_efo.producer import BlockingProducer, Producer, ProducerMetrics, ProducerSettings
from kinesis_efo.producer.aggregation import Parcel
from kinesis_efo.producer.service import Service
from tests.support import virtual_time
from tests.support.messages import raises
from tests.support.write_model import Answer, ModelService, ModelStream, even_shards

SOON = 10.0


def gone() -> ClientError:
    return ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no such stream"}}, "PutRecords")


def carried_out(parcels: Sequence[Parcel]) -> None:
    """The script of a stream without faults."""


class Opened:
    """Connects a producer to the model, and records whether the connection was closed."""

    def __init__(self, shards: int = 1, max_bytes: int = 1 << 20) -> None:
        self.stream = ModelStream(even_shards(shards))
        self.max_bytes = max_bytes
        self.closed = False
        self.made = threading.Event()

    def __call__(self) -> AbstractAsyncContextManager[Service]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Service]:
        self.service = ModelService(self.stream, self.max_bytes)
        self.made.set()
        try:
            yield self.service
        finally:
            self.closed = True


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - conditions of many kinds
            await asyncio.sleep(0.001)


def run(scenario: Callable[[Producer, Opened], Awaitable[Any]], shards: int = 1, **wanted: Any) -> Any:
    async def main() -> Any:
        opened = Opened(shards)
        async with asyncio.timeout(30), Producer("orders", settings=ProducerSettings(**wanted), connect=opened) as made:
            return await scenario(made, opened)

    return asyncio.run(main())


def test_put_waits_for_capacity_and_wakes_when_there_is_some() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        for number in range(10):
            await producer.put(b"x", str(number))
        third = asyncio.create_task(producer.put(b"x", "late"))
        await until(lambda: producer.metrics.backpressure_waits == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not third.done()
        assert producer.metrics.outstanding_records == 10
        opened.service.gate.set()
        async with asyncio.timeout(SOON):
            await third
        await producer.flush()
        metrics = producer.metrics
        assert (metrics.outstanding_records, metrics.outstanding_bytes) == (0, 0)
        assert (metrics.records_written, metrics.backpressure_waits) == (11, 1)
        assert metrics.backpressure_seconds > 0

    run(scenario, max_outstanding_records=10, linger=60)


def test_bytes_are_bounded_as_well() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        await producer.put(b"x" * 2_000, "k")
        await producer.put(b"x" * 2_000, "k")
        waiting = asyncio.create_task(producer.put(b"x" * 2_000, "k"))
        await until(lambda: producer.metrics.backpressure_waits)
        assert producer.metrics.outstanding_bytes == 4_002
        opened.service.gate.set()
        await waiting

    run(scenario, max_outstanding_bytes=5_000)


def test_a_record_is_sent_after_the_linger_without_a_flush() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        await producer.put(b"x", "k")
        assert not opened.service.requests
        await until(lambda: producer.metrics.records_written == 1)
        assert producer.metrics.latency_max >= 0.02

    run(scenario, linger=0.02)


def test_flush_does_not_linger_and_waits_only_for_what_was_put_before() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        await producer.put(b"first", "k")
        flush = asyncio.create_task(producer.flush())
        await until(lambda: opened.service.in_flight)
        await producer.put(b"second", "k")
        await asyncio.sleep(0.01)
        assert not flush.done()
        opened.service.gate.set()
        async with asyncio.timeout(SOON):
            await flush
        assert producer.metrics.outstanding_records == 1
        assert [record.data for record in opened.stream.seen] == [b"first"]

    run(scenario, linger=60)


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        for number in range(5_000):
            await producer.put(b"x", str(number))
        await until(lambda: opened.service.in_flight == 3)
        opened.service.gate.set()
        await producer.flush()
        assert opened.service.most_in_flight == 3
        assert len(opened.stream.seen) == 5_000

    run(scenario, max_in_flight=3)


def test_the_first_failure_is_raised_by_everything_that_follows() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        def fail(parcels: Sequence[Parcel]) -> None:
            raise gone()

        opened.service.script = fail
        await producer.put(b"x", "k")
        with pytest.raises(StreamNotFoundError, match="stream orders cannot be written to: ResourceNotFoundException"):
            await producer.flush()
        opened.service.script = carried_out
        for _ in range(2):
            with pytest.raises(StreamNotFoundError):
                await producer.put(b"y", "k")
        with pytest.raises(StreamNotFoundError):
            await producer.flush()
        assert producer.metrics.records_written == 0
        assert producer.metrics.outstanding_records == 1
        for _ in range(2):
            with pytest.raises(StreamNotFoundError):
                await producer.close()
        assert opened.closed

    with pytest.raises(StreamNotFoundError):
        run(scenario)


@pytest.mark.parametrize("fail_on_error", [False, True])
def test_an_outage_longer_than_the_retry_timeout_fails_the_producer(fail_on_error: bool) -> None:
    async def scenario() -> None:
        opened = Opened()
        settings = ProducerSettings(fail_on_error=fail_on_error)
        producer = await Producer("orders", settings=settings, connect=opened, clock=virtual_time.LoopClock()).open()
        opened.service.script = lambda parcels: [Answer(code="InternalFailure", message="x") for _ in parcels]
        for number in range(100):
            await producer.put(b"x", str(number))
        with raises(
            RetriesExhaustedError,
            "stream orders cannot be written to: every record for shardId-000000000000 failed for ... s, beginning with "
            "InternalFailure: x. Remove the cause, or raise the limit (retry_timeout is 300 s)",
        ):
            await producer.flush()
        assert producer.metrics.records_refused == 0

    virtual_time.run(scenario())


def test_a_failure_wakes_a_put_that_waits_and_surfaces_on_the_next_one() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()

        def fail(parcels: Sequence[Parcel]) -> None:
            raise gone()

        opened.service.script = fail
        await producer.put(b"x", "k")
        waiting = asyncio.create_task(producer.put(b"x", "k"))
        await until(lambda: producer.metrics.backpressure_waits)
        opened.service.gate.set()
        with pytest.raises(StreamNotFoundError):
            await waiting
        with pytest.raises(StreamNotFoundError):
            await producer.put(b"x", "k")

    with pytest.raises(StreamNotFoundError):
        run(scenario, max_outstanding_records=1)


def test_a_bug_in_our_own_code_fails_the_producer_instead_of_hanging_it() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.script = lambda parcels: [None] * len(parcels)  # type: ignore[list-item]
        await producer.put(b"x", "k")
        with pytest.raises(WriteError, match="AttributeError"):
            await producer.flush()

    with pytest.raises(WriteError):
        run(scenario)


def test_a_refused_record_leaves_the_others_alone() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        await producer.put(b"good", "k")
        with pytest.raises(RecordRefusedError, match=r"record 1 \(partition key 'k', 1048577 bytes\)"):
            await producer.put(b"x" * (1 << 20), "k")
        await producer.put(b"good", "k")
        await producer.flush()
        assert producer.metrics.records_written == 2

    run(scenario)


def test_put_many_equals_single_puts_even_when_capacity_is_scarce() -> None:
    outstanding = [0]

    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.script = lambda _: outstanding.append(producer.metrics.outstanding_records)
        await producer.put_many((str(number), f"k{number}") for number in range(1_700))
        await producer.put_many([("last", "k0", 7), ("empty", "k1", None)])
        await producer.put_many([])
        await producer.flush()
        seen = opened.stream.seen
        assert Counter(record.position for record in seen) == Counter(range(1_702))
        assert {record.position: record.data for record in seen}[1_699] == b"1699"
        assert next(record for record in seen if record.data == b"last").hash == 7
        assert producer.metrics.backpressure_waits > 0
        assert 30 < max(outstanding) <= 37

    run(scenario, shards=3, max_outstanding_records=37)


def test_put_many_reads_few_large_records_ahead_of_capacity() -> None:
    taken = [0]

    def given() -> Iterator[tuple[bytes, str]]:
        for number in range(40):
            taken[0] += 1
            yield b"x" * 100_000, str(number)

    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        putting = asyncio.create_task(producer.put_many(given()))
        await until(lambda: producer.metrics.backpressure_waits)
        # A mebibyte, rounded up to a whole record.
        assert taken[0] == 11
        assert producer.metrics.outstanding_bytes <= 300_000
        opened.service.gate.set()
        await putting
        await producer.flush()
        assert producer.metrics.records_written == 40

    run(scenario, max_outstanding_bytes=300_000)


def test_put_many_keeps_the_order_of_a_key() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        await producer.put_many((str(number), f"k{number % 3}") for number in range(600))
        await producer.flush()
        for key in ("k0", "k1", "k2"):
            positions = [record.position for record in opened.stream.seen if record.key == key]
            assert positions == sorted(positions)

    run(scenario, shards=2, ordered=True, max_outstanding_records=50)


def test_put_many_writes_the_records_before_a_refused_one_and_none_after_it() -> None:
    def given() -> Iterator[tuple[bytes, str]]:
        for number in range(5):
            yield b"good", f"k{number}"
        yield b"x" * (1 << 20), "large"
        raise AssertionError("asked for more")

    async def scenario(producer: Producer, opened: Opened) -> None:
        with pytest.raises(RecordRefusedError, match=r"record 5 \(partition key 'large'"):
            await producer.put_many(given())
        await producer.flush()
        assert [record.key for record in opened.stream.seen] == [f"k{number}" for number in range(5)]

    run(scenario)


def test_put_many_raises_the_error_of_its_iterable_and_writes_the_records_before_it() -> None:
    def given() -> Iterator[tuple[bytes, str]]:
        yield b"x", "k"
        raise ZeroDivisionError

    async def scenario(producer: Producer, opened: Opened) -> None:
        with pytest.raises(ZeroDivisionError):
            await producer.put_many(given())
        await producer.flush()
        assert len(opened.stream.seen) == 1

    run(scenario)


def test_put_many_skips_refused_records_with_fail_on_error_off() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        await producer.put_many([("a", "k"), ("b", ""), ("c", "k")])
        await producer.flush()
        assert [record.data for record in opened.stream.seen] == [b"a", b"c"]
        assert producer.metrics.records_refused == 1

    run(scenario, fail_on_error=False)


def test_with_fail_on_error_off_refused_records_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        def script(parcels: Sequence[Parcel]) -> list[Answer]:
            return [
                Answer(code="ValidationException", message="bad") if parcel.data == b"bad" else Answer(parcel.key)
                for parcel in parcels
            ]

        opened.service.script = script
        for data in (b"good", b"bad", b"x" * (1 << 20), b"good"):
            await producer.put(data, "k")
        await producer.flush()
        metrics = producer.metrics
        assert (metrics.records_written, metrics.records_refused, metrics.outstanding_records) == (2, 2, 0)

        def fail(parcels: Sequence[Parcel]) -> None:
            raise gone()

        opened.service.script = fail
        await producer.put(b"x", "k")
        with pytest.raises(StreamNotFoundError):
            await producer.flush()

    with pytest.raises(StreamNotFoundError):
        run(scenario, fail_on_error=False)
    assert sum("left out of stream orders" in message for message in caplog.messages) == 2


def test_a_limit_of_the_settings_is_not_blamed_on_the_stream() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        with raises(
            RecordRefusedError,
            "record 0 (partition key 'k', 8001 bytes) is larger than the 8000 bytes that 'max_outstanding_bytes' allows "
            "(partition key included). Make it smaller, or raise 'max_outstanding_bytes'",
        ):
            await producer.put(b"x" * 8_000, "k")

    run(scenario, max_outstanding_bytes=8_000)


def test_leaving_the_context_writes_everything_even_after_an_error() -> None:
    opened = Opened()

    async def main() -> None:
        async with Producer("orders", connect=opened) as producer:
            await producer.put(b"x", "k")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert len(opened.stream.seen) == 1
    assert opened.closed


def test_cancellation_ends_at_once_and_acknowledges_nothing(caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened()

    async def main() -> None:
        async with Producer("orders", connect=opened) as producer:
            opened.service.gate.clear()
            await producer.put(b"x", "k")
            await producer.flush()

    async def outer() -> None:
        task = asyncio.create_task(main())
        await until(lambda: opened.made.is_set() and opened.service.in_flight)
        task.cancel()
        async with asyncio.timeout(SOON):
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(outer())
    assert opened.closed
    assert any("closed with 1 records (2 bytes) that were put and not acknowledged" in text for text in caplog.messages)


def test_a_cancelled_put_gives_its_capacity_back() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        await producer.put(b"first", "k")
        cancelled = asyncio.create_task(producer.put(b"cancelled", "k"))
        last = asyncio.create_task(producer.put(b"last", "k"))
        await until(lambda: producer.metrics.backpressure_waits == 2)
        cancelled.cancel()
        opened.service.gate.set()
        await last
        await producer.flush()
        assert [record.data for record in opened.stream.seen] == [b"first", b"last"]

    run(scenario, max_outstanding_records=1)


def test_a_flush_after_a_cancelled_one_waits_for_its_records_too() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        await producer.put(b"x", "k")
        flush = asyncio.create_task(producer.flush())
        await until(lambda: opened.service.in_flight)
        flush.cancel()
        again = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.01)
        assert not again.done(), "flush returned while a record was not acknowledged"
        opened.service.gate.set()
        await again
        assert producer.metrics.records_written == 1

    run(scenario)


def test_a_producer_that_is_not_open_says_so() -> None:
    async def main() -> None:
        producer = Producer("orders", connect=Opened())
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

    asyncio.run(main())


def test_concurrent_puts_keep_their_order_through_the_wait() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(producer.put(str(number), "k"))
        await producer.flush()
        assert [int(record.data) for record in opened.stream.seen] == list(range(200))

    run(scenario, max_outstanding_records=3, ordered=True)


def test_a_wrong_prediction_is_tolerated_and_the_map_refreshed_once() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.stream.split(0)
        for round_ in range(5):
            for number in range(20):
                await producer.put(b"x", f"{round_}-{number}")
            await producer.flush()
        await until(lambda: opened.service.lists == 2)
        for number in range(20):
            await producer.put(b"x", str(number))
        await producer.flush()
        assert len(opened.stream.seen) == 120
        assert opened.service.lists == 2
        assert producer.metrics.retries == {}

    run(scenario)


def test_an_aggregate_that_missed_a_split_is_written_again_by_the_new_map() -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.stream.split(0)
        for number in range(50):
            await producer.put(b"x", str(number))
        await producer.flush()
        assert sorted(record.position for record in opened.stream.seen) == list(range(50))
        assert producer.metrics.retries == {"WrongShard": 1}
        assert opened.service.lists == 2

    run(scenario, aggregate=True)


def test_one_warning_per_stall_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario(producer: Producer, opened: Opened) -> None:
        opened.service.gate.clear()
        await producer.put(b"x", "k")
        waiting = asyncio.create_task(producer.put(b"x", "k"))
        await until(lambda: caplog.messages)
        await asyncio.sleep(0.35)
        assert len(caplog.messages) == 1, "once per stall"
        opened.service.gate.set()
        await waiting
        await producer.flush()

    run(scenario, max_outstanding_records=1, stall_warning=0.1)
    assert "1 records (2 bytes) are outstanding and none was acknowledged for" in caplog.messages[0]
    assert "continues after" in caplog.messages[1]
    assert len(caplog.messages) == 2


def test_backpressure_with_progress_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(producer: Producer, opened: Opened) -> None:
        async def slow() -> None:
            for _ in range(30):
                opened.service.gate.clear()
                await asyncio.sleep(0.01)
                opened.service.gate.set()
                await asyncio.sleep(0)

        pace = asyncio.create_task(slow())
        while not pace.done():
            await producer.put(b"x", "k")
        await pace

    run(scenario, max_outstanding_records=5, stall_warning=0.2)
    assert caplog.messages == []


class TestBlocking:
    def test_records_of_several_threads_are_all_stored(self) -> None:
        opened = Opened(shards=4)
        with BlockingProducer(
            "orders", connect=opened, settings=ProducerSettings(max_outstanding_records=50)
        ) as producer:

            def work(name: str) -> None:
                for number in range(250):
                    producer.put(b"x", f"{name}-{number}")
                producer.put_many((b"x", f"{name}-{number}") for number in range(250, 500))

            threads = [threading.Thread(target=work, args=(str(name),)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            producer.flush()
            assert producer.metrics.records_written == 2_000
            assert producer.metrics.backpressure_waits > 0
        assert len({record.key for record in opened.stream.seen}) == len(opened.stream.seen) == 2_000
        assert not [thread for thread in threading.enumerate() if thread.name == "kinesis-efo-producer"]

    @pytest.mark.parametrize("many", [False, True])
    def test_one_thread_keeps_its_order(self, many: bool) -> None:
        opened = Opened()
        settings = ProducerSettings(max_outstanding_records=7, ordered=True)
        with BlockingProducer("orders", connect=opened, settings=settings) as producer:
            if many:
                producer.put_many((str(number), "k") for number in range(500))
            else:
                for number in range(500):
                    producer.put(str(number), "k")
        assert [int(record.data) for record in opened.stream.seen] == list(range(500))

    def test_a_failure_reaches_the_thread_that_waits(self) -> None:
        opened = Opened()
        producer = BlockingProducer(
            "orders", connect=opened, settings=ProducerSettings(max_outstanding_records=1)
        ).open()

        def fail(parcels: Sequence[Parcel]) -> None:
            raise gone()

        opened.service.script = fail
        producer.put(b"x", "k")
        # The second put waits for capacity when the failure arrives, or comes after it.
        with pytest.raises(StreamNotFoundError):
            producer.put(b"x", "k")
        with pytest.raises(StreamNotFoundError):
            producer.flush()
        with pytest.raises(StreamNotFoundError):
            producer.close()
        assert opened.closed
        with pytest.raises(StreamNotFoundError):
            producer.close()
        with pytest.raises(StreamNotFoundError):
            producer.put(b"x", "k")

    def test_a_failure_to_open_is_raised_and_leaves_no_thread(self) -> None:
        @asynccontextmanager
        async def broken() -> AsyncIterator[Service]:
            service = ModelService(ModelStream(even_shards(1)))

            async def refuse() -> list[Any]:
                raise gone()

            service.shards = refuse  # type: ignore[method-assign]
            yield service

        with pytest.raises(StreamNotFoundError, match="stream orders cannot be opened for writing"):
            BlockingProducer("orders", connect=broken).open()
        assert not [thread for thread in threading.enumerate() if thread.name == "kinesis-efo-producer"]

    def test_leaving_after_an_error_raises_that_error_and_logs_the_producers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        opened = Opened()

        def fail(parcels: Sequence[Parcel]) -> None:
            raise gone()

        def main() -> None:
            with BlockingProducer("orders", connect=opened) as producer:
                opened.service.script = fail
                producer.put(b"x", "k")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            main()
        assert "producer for orders failed when it was closed after another error" in caplog.text
        assert opened.closed

    def test_aborting_does_not_wait(self) -> None:
        opened = Opened()
        producer = BlockingProducer("orders", connect=opened).open()
        opened.service.gate.clear()
        producer.put(b"x", "k")
        producer.abort()
        assert opened.closed
        with pytest.raises(ProducerClosedError):
            producer.flush()
