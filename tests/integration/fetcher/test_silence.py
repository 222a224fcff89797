"""A fetcher that says nothing any more is noticed in time, one that has nothing to send says so, and no call lasts for ever."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from kinesis_efo.calls.address import Listening
from kinesis_efo.calls.tls import fingerprint
from kinesis_efo.calls.wire import Kind, Request, Wire
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.service import FetcherService
from kinesis_efo.fetcher.work import GET, GetTicket
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.records.events import read_head
from kinesis_efo.tasks.client import FetcherClient
from tests.support.messages import raises
from tests.support.world import wait_until

KEYS = [ShardKey("orders", f"shardId-{number:012}") for number in range(2)]
RANGES = [ShardRange(key, Position.after(0), Position.after(20)) for key in KEYS]


def event(number: int, size: int = 0) -> bytes:
    return b'{"Records":[],"ContinuationSequenceNumber":"%d","MillisBehindLatest":0%s}' % (number, b" " * size)


class Slow:
    """Has the events of each range, after a pause before each.

    Attributes:
        open: Reads that were not closed.
    """

    def __init__(self, pause: float, size: int = 0) -> None:
        self.pause = pause
        self.size = size
        self.open = 0
        self.reads: list[ShardRange] = []

    def expect(self, ranges: Iterable[ShardRange]) -> float:
        return time.monotonic()

    async def read(self, wanted: ShardRange, asked_at: float | None = None) -> AsyncGenerator[list[bytes], None]:
        self.open += 1
        self.reads.append(wanted)
        try:
            for number in range(wanted.after.value + 1, wanted.through.value + 1):
                await asyncio.sleep(self.pause)
                yield [event(number, self.size)]
        finally:
            self.open -= 1


class Serving:
    """A service beside this thread."""

    def __init__(self, fetcher: Slow, word_seconds: float) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.service = FetcherService(
            lambda _query: fetcher, self.loop, "secret", Listening(), word_seconds=word_seconds
        )

    def stop(self) -> None:
        self.service.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(fetcher: Slow, word_seconds: float = 0.2) -> Serving:
        started.append(Serving(fetcher, word_seconds))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@contextmanager
def hanging(serving: Serving) -> Iterator[Callable[[], object]]:
    """Makes the loop hang when that is called, until the end."""
    ended = threading.Event()
    try:
        yield lambda: serving.loop.call_soon_threadsafe(ended.wait, 60)
    finally:
        ended.set()


def test_idle_service_sends_keepalives(serve: Callable[..., Serving]) -> None:
    fetcher = Slow(3.0)
    serving = serve(fetcher)
    wanted = [ShardRange(key, Position.after(0), Position.after(1)) for key in KEYS]
    began = time.monotonic()
    with FetcherClient(serving.service.address, "secret", silent_seconds=2.0) as client:
        found = [(part.wanted, [bytes(each) for each in part.payloads]) for part in client.get(wanted)]
    assert [(part, [read_head(each).continuation for each in events]) for part, events in found] == [
        (part, [1]) for part in wanted
    ], "words without rows make no parts of their own"
    assert time.monotonic() - began >= 6
    assert len(fetcher.reads) == 2


def test_hanging_loop_of_a_live_process_is_noticed(serve: Callable[..., Serving]) -> None:
    serving = serve(Slow(1.0))
    with hanging(serving) as hang, FetcherClient(serving.service.address, "secret", silent_seconds=2.0) as client:
        got = client.get(RANGES)
        payloads = next(got).payloads
        assert next(payloads)
        hang()
        began = time.monotonic()
        with raises(
            FetcherUnreachableError,
            "the fetcher at tcp://... has sent nothing for 2 s: it is paused or overloaded, or its host has vanished",
        ):
            list(payloads)
        assert 2 <= time.monotonic() - began < 15


def test_service_that_accepts_no_call_is_noticed(
    serve: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetcherService, "act", lambda *_: time.sleep(4))
    serving = serve(Slow(0))
    with (
        FetcherClient(serving.service.address, "secret", silent_seconds=1.0) as client,
        pytest.raises(FetcherUnreachableError, match="sent nothing"),
    ):
        next(client.get(RANGES))


def test_overlong_call_announces_its_end(serve: Callable[..., Serving]) -> None:
    serving = serve(Slow(60))
    client = FetcherClient(serving.service.address, "secret", call_seconds=1.0, silent_seconds=10.0)
    got = client.get(RANGES)
    with (
        client,
        raises(FetcherUnreachableError, "a call to the fetcher at tcp://... has reached the limit of 1 s"),
    ):
        next(next(got).payloads)


# Shows task frozen.
def test_frozen_task_without_data_releases_its_hold(serve: Callable[..., Serving]) -> None:
    fetcher = Slow(60)
    serving = serve(fetcher)
    with socket.create_connection(("127.0.0.1", serving.service.address.port)) as sock:
        frozen = Wire(sock)
        assert frozen.prove("secret", fingerprint(None), time.monotonic() + 10)
        ticket = msgspec.json.encode(GetTicket(RANGES))
        frozen.send(Kind.REQUEST, msgspec.json.encode(Request(GET, 1.0)), [ticket])
        wait_until(lambda: fetcher.open == 1, 10, "the beginning of the read")
        wait_until(lambda: fetcher.open == 0, 10, "the end of the read")


def test_task_that_reads_nothing_releases_its_hold(serve: Callable[..., Serving]) -> None:
    fetcher = Slow(0, size=2_000_000)
    serving = serve(fetcher)
    client = FetcherClient(serving.service.address, "secret", call_seconds=1.5)
    got = client.get([ShardRange(KEYS[0], Position.after(0), Position.after(200))])
    next(next(got).payloads)
    assert fetcher.open == 1
    wait_until(lambda: fetcher.open == 0, 10, "the end of the read")
    got.close()
    client.close()
