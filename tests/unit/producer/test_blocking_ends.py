"""What `flush`, `close` and `abort` of a producer promise to several threads, to forked processes and to other event loops."""

import asyncio
import multiprocessing
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kinesis_efo.errors import ProducerClosedError
from kinesis_efo.producer import AsyncProducer, Producer
from tests.support.messages import raises
from tests.support.producers import Opened, made, with_parts
from tests.unit.producer.test_producer import SOON, blocking, until


class Call(threading.Thread):
    """Runs `work` in a thread at once; `trace` is called when one of its functions is."""

    def __init__(self, work: Callable[[], object], trace: Callable[[FrameType], Any] | None = None) -> None:
        super().__init__()
        self.work, self.trace = work, trace
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        if (trace := self.trace) is not None:
            sys.settrace(lambda frame, _event, _argument: trace(frame))
        try:
            self.work()
        except BaseException as error:
            self.error = error


@contextmanager
def paused(work: Callable[[], object], before: str) -> Iterator[tuple[Call, threading.Event]]:
    """Run `work` in a thread that stops before it calls a function with the name `before`, until the event is set."""
    reached, resume = threading.Event(), threading.Event()

    def pause(frame: FrameType) -> None:
        if frame.f_code.co_name == before and not reached.is_set():
            reached.set()
            assert resume.wait(SOON)

    call = Call(work, pause)
    assert reached.wait(SOON)
    try:
        yield call, resume
    finally:
        resume.set()
        call.join(SOON)


@contextmanager
def waiting() -> Iterator[tuple[Producer, Opened]]:
    """A producer that has sent a record, which is not acknowledged."""
    producer = blocking(opened := Opened(), linger=0).open()
    opened.loop.call_soon_threadsafe(opened.service.gate.clear)
    producer.put(b"x", "k")
    while not opened.service.in_flight:
        pass
    yield producer, opened


@pytest.mark.parametrize("before", ["_queue", "call_soon_threadsafe"])
def test_flush_does_not_depend_on_another_threads_put(before: str) -> None:
    producer = blocking(opened := Opened(), linger=60).open()
    found: list[bytes] = []

    def put_and_flush() -> None:
        producer.put(b"mine", "k")
        producer.flush()
        found.extend(opened.stored)

    with paused(lambda: producer.put(b"other", "k"), before) as (_, resume):
        mine = Call(put_and_flush)
        mine.join(0.2)
        resume.set()
        mine.join(SOON)
        assert b"mine" in found
    producer.close()
    assert set(opened.stored) == {b"mine", b"other"}


def test_close_after_an_abort_counts_the_lost_records() -> None:
    with waiting() as (producer, opened):
        producer.abort()
        assert opened.closed
        for _ in range(2):
            with raises(
                ProducerClosedError,
                "the producer for orders was closed before 1 records were acknowledged; put them again",
            ):
                producer.close()
        for call in (producer.flush, lambda: producer.put(b"x", "k")):
            with pytest.raises(ProducerClosedError):
                call()


async def test_waiting_put_raises_when_another_task_closes() -> None:
    producer = await made(opened := Opened(), max_outstanding_records=1).open()
    opened.service.gate.clear()
    await producer.put(b"first", "k")
    waiting = asyncio.create_task(producer.put(b"second", "k"))
    await until(lambda: producer.metrics.backpressure_waits)
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    with pytest.raises(ProducerClosedError):
        await producer.put(b"third", "k")
    opened.service.gate.set()
    await closing
    with pytest.raises(ProducerClosedError):
        await waiting
    assert opened.stored == [b"first"]


def texts_of(calls: Sequence[Callable[[], object]]) -> list[str]:
    texts = []
    for call in calls:
        try:
            call()
            texts.append("no error")
        except ProducerClosedError as error:
            texts.append(str(error))
    return texts


def in_child(work: Callable[[], list[str]]) -> list[str]:
    """Run `work` in a forked process, and return its result."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if not (pid := os.fork()):
            try:
                sender.send(work())
            finally:
                os._exit(0)
    assert receiver.poll(SOON), "the forked process hangs"
    texts: list[str] = receiver.recv()
    os.waitpid(pid, 0)
    return texts


def test_call_in_a_forked_process_names_the_opening() -> None:
    opened = Opened()
    with with_parts(Producer("orders"), connect=opened) as producer:
        sent = producer.send(b"x", "k")
        calls: list[Callable[[], object]] = [
            sent.result, sent.exception, lambda: producer.put(b"y", "k"), lambda: producer.put_many([(b"y", "k")]), producer.flush, producer.close,
            producer.abort, lambda: producer.__exit__(None, None, None), lambda: producer.metrics,
        ]  # fmt: skip
        texts = in_child(lambda: texts_of(calls))
        producer.put(b"z", "k")
    assert set(opened.stored) == {b"x", b"z"}
    for text in texts:
        assert f"the producer for orders was opened in process {os.getpid()}, at {Path(__file__)}:" in text
        assert "open another one there" in text


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_open_producer_of_an_ending_subprocess_is_closed(context: str, tmp_path: Path) -> None:
    process = multiprocessing.get_context(context).Process(target=_put_and_end, args=(tmp_path / "stored",))  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    process.join(SOON)
    assert process.exitcode == 0 and (tmp_path / "stored").read_text() == "1"


def _put_and_end(stored: Path) -> None:
    opened = Opened()
    producer = blocking(opened, linger=60).open()
    producer.put(b"x", "k")

    (loop,) = (each for each in threading.enumerate() if each.name == "kinesis-efo-producer")

    def note() -> None:
        loop.join(SOON)
        stored.write_text(str(len(opened.stored)))

    threading.Thread(target=note).start()


def test_signal_handler_within_a_put_cannot_call_the_producer() -> None:
    def handle(frame: FrameType) -> None:
        if frame.f_code.co_name == "_put":
            producer.flush()

    producer = blocking(Opened()).open()
    call = Call(lambda: producer.put(b"x", "k"), handle)
    call.join(SOON)
    assert isinstance(call.error, RuntimeError) and "a signal handler interrupted a put" in str(call.error)
    producer.abort()


@pytest.mark.parametrize(("end", "writes"), [("close", True), ("abort", False)])
def test_signal_handler_ends_a_producer_that_closes(end: str, writes: bool) -> None:
    signals = ["SIGTERM"]

    def handle(frame: FrameType) -> None:
        if frame.f_code.co_name == "result" and signals:
            signals.clear()
            getattr(producer, end)()

    producer = blocking(opened := Opened(), linger=60).open()
    if not writes:
        opened.service.gate.clear()
    producer.put(b"x", "k")
    call = Call(producer.close, handle)
    call.join(SOON)
    assert not call.is_alive()
    assert (call.error is None, len(opened.stored)) == (writes, int(writes))


def test_pickling_a_producer_raises() -> None:
    with with_parts(Producer("orders"), connect=Opened()) as producer, pytest.raises(ProducerClosedError) as caught:
        pickle.dumps(producer)
    assert f"cannot be pickled (this one was opened in process {os.getpid()}, at {Path(__file__)}:" in str(caught.value)
    with raises(ProducerClosedError, "the producer for orders cannot be pickled; open one where it is used"):
        pickle.dumps(AsyncProducer("orders"))


def test_call_on_another_event_loop_raises() -> None:
    async def main() -> None:
        producer = await with_parts(AsyncProducer("orders"), connect=Opened()).open()

        def elsewhere() -> None:
            for call in (producer.flush, producer.close, lambda: producer.put(b"x", "k")):
                with raises(
                    ProducerClosedError,
                    "the producer for orders was opened in process ..., at ... and belongs to the event loop that ran "
                    "there; open another one, or use Producer",
                ):
                    asyncio.run(call())

        await asyncio.to_thread(elsewhere)
        await producer.close()

    asyncio.run(main())


@pytest.mark.parametrize("wait", [Producer.flush, Producer.close])
def test_callback_of_send_may_not_wait_for_its_producer(wait: Callable[[Producer], None]) -> None:
    errors: list[BaseException] = []

    def called(_: object) -> None:
        try:
            wait(producer)
        except RuntimeError as error:
            errors.append(error)

    with blocking(Opened(), linger=0) as producer:
        producer.send(b"one").add_done_callback(called)
    assert [str(error)[:37] for error in errors] == ["a callback of a future of `send` must"]
