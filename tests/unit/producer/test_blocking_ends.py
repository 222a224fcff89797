"""What `flush`, `close` and `abort` of a producer promise to several threads, to forked processes and to other event loops."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kinesis_efo.errors import ProducerClosedError
from kinesis_efo.producer import BlockingProducer, Producer, ProducerSettings
from tests.support.messages import raises
from tests.unit.producer.test_producer import SOON, Opened, until

FORK = multiprocessing.get_context("fork")


class Paused(threading.Thread):
    """Runs `work` in a thread that stops before it calls a function with the name `before`, until `resume` is set."""

    def __init__(self, work: Callable[[], object], before: str) -> None:
        super().__init__()
        self._work = work
        self._before = before
        self.reached, self.resume = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        sys.settrace(self._pause)
        try:
            self._work()
        except BaseException as error:
            self.error = error

    def _pause(self, frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code.co_name == self._before and not self.reached.is_set():
            self.reached.set()
            assert self.resume.wait(SOON)


def stored(opened: Opened) -> set[bytes]:
    return {record.data for record in opened.stream.seen}


@contextmanager
def paused(work: Callable[[], object], before: str) -> Iterator[Paused]:
    thread = Paused(work, before)
    thread.start()
    assert thread.reached.wait(SOON)
    try:
        yield thread
    finally:
        thread.resume.set()
        thread.join(SOON)


@pytest.mark.parametrize("before", ["_queue", "call_soon_threadsafe"])
def test_flush_writes_the_callers_records_beside_a_paused_put(before: str) -> None:
    opened = Opened()
    producer = BlockingProducer("orders", connect=opened, settings=ProducerSettings(linger=60)).open()
    found: set[bytes] = set()

    def put_and_flush() -> None:
        producer.put(b"mine", "k")
        producer.flush()
        found.update(stored(opened))

    mine = threading.Thread(target=put_and_flush)
    with paused(lambda: producer.put(b"other", "k"), before) as other:
        mine.start()
        mine.join(0.2)
        other.resume.set()
        mine.join(SOON)
        assert b"mine" in found
    producer.close()
    assert stored(opened) == {b"mine", b"other"}


@pytest.mark.parametrize("before", ["_queue", "call_soon_threadsafe"])
def test_a_put_beside_a_close_is_written_or_raises(before: str) -> None:
    opened = Opened()
    producer = BlockingProducer("orders", connect=opened).open()
    with paused(lambda: producer.put(b"other", "k"), before) as other:
        closing = threading.Thread(target=producer.close)
        closing.start()
        closing.join(0.2)
        other.resume.set()
        closing.join(SOON)
    assert isinstance(other.error, ProducerClosedError) or stored(opened) == {b"other"}
    assert producer.metrics.outstanding_records == 0
    producer.close()


def test_closing_again_after_an_abort_names_the_lost_records() -> None:
    opened = Opened()
    producer = BlockingProducer("orders", connect=opened).open()
    opened.service.gate.clear()
    producer.put(b"x", "k")
    producer.abort()
    for _ in range(2):
        with raises(
            ProducerClosedError, "the producer for orders was closed before 1 records were acknowledged; put them again"
        ):
            producer.close()
    with pytest.raises(ProducerClosedError):
        producer.put(b"x", "k")


def test_abort_ends_a_close_that_waits_with_an_error() -> None:
    opened = Opened()
    producer = BlockingProducer("orders", connect=opened).open()
    opened.service.gate.clear()
    producer.put(b"x", "k")
    caught: list[Exception] = []

    def close() -> None:
        try:
            producer.close()
        except ProducerClosedError as error:
            caught.append(error)

    closing = threading.Thread(target=close)
    closing.start()
    while not opened.service.in_flight:
        pass
    producer.abort()
    closing.join(SOON)
    assert len(caught) == 1


def test_close_after_ctrl_c_in_another_close_returns() -> None:
    opened = Opened()
    producer = BlockingProducer("orders", connect=opened).open()
    producer.put(b"x", "k")
    gate = threading.Event()
    caught: list[BaseException] = []

    def interrupt(frame: FrameType, _event: str, _argument: object) -> None:
        if frame.f_code.co_name == "_end_loop":
            # Its thread still runs when Ctrl-C comes.
            frame.f_locals["self"]._loop.call_soon_threadsafe(gate.wait, SOON)
        if frame.f_code.co_name == "join":
            sys.settrace(None)
            raise KeyboardInterrupt

    def close(trace: Any = None) -> None:
        sys.settrace(trace)
        try:
            producer.close()
        except BaseException as error:
            caught.append(error)

    first, second = (threading.Thread(target=close, args=(trace,)) for trace in (interrupt, None))
    first.start()
    first.join(SOON)
    assert [type(error) for error in caught] == [KeyboardInterrupt]
    second.start()
    second.join(0.2)
    gate.set()
    second.join(SOON)
    assert len(caught) == 1
    assert not second.is_alive()
    assert stored(opened) == {b"x"}


def test_flush_after_an_interrupted_abort_waits_for_earlier_records() -> None:
    opened = Opened()
    producer = BlockingProducer("orders", connect=opened, settings=ProducerSettings(linger=0)).open()
    opened.service.gate.clear()
    producer.put(b"x", "k")
    found: list[set[bytes]] = []
    caught: list[BaseException] = []

    def at_return(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "return":
            raise KeyboardInterrupt
        return at_return

    def interrupt(frame: FrameType, _event: str, _argument: object) -> Any:
        return at_return if frame.f_code.co_name == "_end_flushes" else None

    def call(work: Callable[[], object], trace: Any = None) -> threading.Thread:
        def run() -> None:
            sys.settrace(trace)
            try:
                work()
                found.append(stored(opened))
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    first = call(producer.flush)
    while not opened.service.in_flight or not producer._producer.engine._flushes:
        pass
    call(producer.abort, interrupt).join(SOON)
    first.join(SOON)
    assert {type(error) for error in caught} == {KeyboardInterrupt, ProducerClosedError}
    second = call(producer.flush)
    second.join(0.2)
    producer._producer.engine.loop.call_soon_threadsafe(opened.service.gate.set)
    second.join(SOON)
    assert found == [{b"x"}]
    producer.close()


def test_puts_that_wait_while_another_task_closes_raise() -> None:
    async def main() -> None:
        opened = Opened()
        producer = await Producer("orders", connect=opened, settings=ProducerSettings(max_outstanding_records=1)).open()
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
        assert stored(opened) == {b"first"}

    asyncio.run(main())


def texts_of(calls: Sequence[Callable[[], object]]) -> list[str]:
    texts = []
    for call in calls:
        try:
            call()
            texts.append("no error")
        except ProducerClosedError as error:
            texts.append(str(error))
    return texts


def in_child(work: Callable[[], list[str]], way: str) -> list[str]:
    """Run `work` in a forked process, and return its result."""
    receiver, sender = FORK.Pipe(duplex=False)

    def child(sender: Connection) -> None:
        sender.send(work())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if way == "multiprocessing":
            process = FORK.Process(target=child, args=(sender,))
            process.start()
        elif not (pid := os.fork()):
            try:
                child(sender)
            finally:
                os._exit(0)
    assert receiver.poll(SOON), "the forked process hangs"
    texts: list[str] = receiver.recv()
    if way == "multiprocessing":
        process.join(SOON)
    else:
        os.waitpid(pid, 0)
    return texts


@pytest.mark.parametrize("way", ["multiprocessing", "os.fork"])
def test_every_call_in_a_forked_process_names_where_it_was_opened(way: str) -> None:
    opened = Opened()
    with BlockingProducer("orders", connect=opened) as producer:
        producer.put(b"x", "k")
        calls = [
            lambda: producer.put(b"y", "k"), lambda: producer.put_many([(b"y", "k")]), producer.flush, producer.close,
            producer.abort, lambda: producer.__exit__(None, None, None), lambda: producer.metrics,
        ]  # fmt: skip
        texts = in_child(lambda: texts_of(calls), way)
        producer.put(b"z", "k")
    assert stored(opened) == {b"x", b"z"}
    for text in texts:
        assert f"the producer for orders was opened in process {os.getpid()}, at {Path(__file__)}:" in text
        assert "open another one there" in text


def test_every_call_of_the_asyncio_producer_in_a_forked_process_raises() -> None:
    async def main() -> list[str]:
        async with Producer("orders", connect=Opened()) as producer:

            def step(make: Callable[[], Any]) -> Callable[[], object]:
                return lambda: make().send(None)

            calls = [
                step(lambda: producer.put(b"y", "k")), step(lambda: producer.put_many([(b"y", "k")])), step(producer.flush),
                step(producer.close), step(producer.abort),
            ]  # fmt: skip
            return in_child(lambda: texts_of(calls), "os.fork")

    for text in asyncio.run(main()):
        assert f"was opened in process {os.getpid()}, at {Path(__file__)}:" in text


def test_a_producer_cannot_be_pickled_and_names_where_it_was_opened() -> None:
    with BlockingProducer("orders", connect=Opened()) as producer, pytest.raises(ProducerClosedError) as caught:
        pickle.dumps(producer)
    assert f"cannot be pickled (this one was opened in process {os.getpid()}, at {Path(__file__)}:" in str(caught.value)
    with raises(ProducerClosedError, "the producer for orders cannot be pickled; open one where it is used"):
        pickle.dumps(Producer("orders"))


def test_another_event_loop_is_refused() -> None:
    async def main() -> None:
        producer = await Producer("orders", connect=Opened()).open()

        def elsewhere() -> None:
            for call in (producer.flush, producer.close, lambda: producer.put(b"x", "k")):
                with raises(
                    ProducerClosedError,
                    "the producer for orders was opened in process ..., at ... and belongs to the event loop that ran "
                    "there; open another one, or use BlockingProducer",
                ):
                    asyncio.run(call())

        await asyncio.to_thread(elsewhere)
        await producer.close()

    asyncio.run(main())
