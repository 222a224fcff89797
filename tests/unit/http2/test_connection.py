"""A connection to a service in memory, in virtual time: its start, its places, its signs of life and its end."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from kinesis_efo.http2.connection import IDLE_SECONDS, PING_SECONDS, RECEIVE_BYTES, Connection
from kinesis_efo.http2.response import ConnectionLost, NotHttp2, NotProcessed
from tests.support.virtual_time import LoopClock

SETTINGS = SettingsFrame(0, {3: 5}).serialize()
PING = PingFrame(0, b"still up").serialize()
PONG = PingFrame(0, b"still up", flags=["ACK"]).serialize()
HEAD = ((":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/"))


class Line(asyncio.Transport):
    """A connection, and the transport under it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ends: dict[str, float] = {}
        self.broken = False
        self.unsent = 0
        self.connection = Connection(LoopClock(), lambda _: None, bytearray(RECEIVE_BYTES))

    def up(self) -> Connection:
        self.connection.connection_made(self)
        self.receive(SETTINGS)
        return self.connection

    def receive(self, data: bytes) -> None:
        if not self.connection.gone.is_set():
            self.connection.get_buffer(-1)[: len(data)] = data
            self.connection.buffer_updated(len(data))

    def write(self, data: Any) -> None:
        if self.broken:
            raise RuntimeError("a bug")
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.ends["close"] = LoopClock().monotonic() - 1000

    def abort(self) -> None:
        self.ends["abort"] = LoopClock().monotonic() - 1000
        self.connection.connection_lost(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.connection.gone.is_set():
            self.connection.close()
            self.connection.connection_lost(None)
        await asyncio.sleep(0)


async def test_settings_may_arrive_before_connection_made() -> None:
    # As behind a proxy, where TLS is added to a connection that is there.
    async with Line() as line:
        line.receive(SETTINGS)
        assert line.connection.ready.done()
        line.connection.connection_made(line)
        assert line.written.startswith(b"PRI * HTTP/2.0")
        assert line.written.endswith(SettingsFrame(0, flags=["ACK"]).serialize())


async def test_garbage_before_connection_made_aborts() -> None:
    async with Line() as line:
        line.receive(b"\xff" * 50)
        line.connection.connection_made(line)
        assert "abort" in line.ends
        with pytest.raises(NotHttp2, match="a frame of 16777215 bytes"):
            await line.connection.ready


@pytest.mark.parametrize("prompt", [True, False])
async def test_close_aborts_a_peer_that_lingers(prompt: bool) -> None:
    async with Line() as line:
        connection = line.up()
        connection.close()
        connection.close()
        if prompt:
            connection.connection_lost(None)
        await asyncio.sleep(10 * PING_SECONDS)
        assert line.ends == ({"close": 0} if prompt else {"close": 0, "abort": PING_SECONDS})
        assert connection.gone.is_set()


async def test_place_on_closed_connection_is_returned() -> None:
    async with Line() as line:
        connection = line.up()
        connection.take_place()
        connection.abort(ConnectionLost("gone"))
        with pytest.raises(NotProcessed, match="before the request was sent"):
            await connection.request(HEAD, b"", lambda: 0, None)
        assert (connection.active, connection.places) == (0, 0)


@pytest.mark.parametrize("head", [(*HEAD, ("x", None)), (("x", "y"), *HEAD)])
async def test_unsendable_request_returns_its_place(head: Any) -> None:
    async with Line() as line:
        connection = line.up()
        for _ in range(10):
            connection.take_place()
            with pytest.raises((NotProcessed, TypeError, AttributeError)):
                await connection.request(head, b"", lambda: 0, None)
        assert (connection.active, connection.places) == (0, 5)


@pytest.mark.parametrize("body", [b"", bytes(1 << 20)], ids=["waits for headers", "waits for the window"])
async def test_cancelled_request_frees_its_place(body: bytes) -> None:
    async with Line() as line:
        connection = line.up()
        for stream in (1, 3, 5):
            connection.take_place()
            asking = asyncio.create_task(connection.request(HEAD, body, lambda: 0, None))
            await asyncio.sleep(1)
            asking.cancel()
            await asyncio.wait([asking])
            assert connection.active == 0
            assert line.written.endswith(RstStreamFrame(stream, error_code=ErrorCodes.CANCEL).serialize())


async def test_answer_to_half_a_request_frees_the_place() -> None:
    async with Line() as line:
        connection, encoder = line.up(), Encoder()
        for stream in (1, 3, 5):
            connection.take_place()
            asking = asyncio.create_task(connection.request(HEAD, bytes(1 << 20), lambda: 0, None))
            await asyncio.sleep(1)
            line.receive(HeadersFrame(stream, encoder.encode([(":status", "400")]), flags=["END_HEADERS"]).serialize())
            line.receive(DataFrame(stream, b"enough", flags=["END_STREAM"]).serialize())
            response = await asking
            assert (response.status, await response.read()) == (400, b"enough")
            assert connection.active == 0
            assert line.written.endswith(RstStreamFrame(stream, error_code=ErrorCodes.CANCEL).serialize())


async def test_reset_ends_a_request_that_waits_for_the_window() -> None:
    async with Line() as line:
        connection = line.up()
        connection.take_place()
        sending = asyncio.create_task(connection.request(HEAD, bytes(1 << 20), lambda: 1 << 20, None))
        await asyncio.sleep(1.0)
        assert not sending.done(), "the window has 65,535 bytes"
        line.receive(RstStreamFrame(1, error_code=ErrorCodes.CANCEL).serialize())
        with pytest.raises(ConnectionResetError, match="the service reset the stream: CANCEL"):
            await asyncio.wait_for(sending, 1.0)


async def test_service_that_does_not_read_is_given_up() -> None:
    async with Line() as line:
        connection = line.up()
        connection.take_place()
        waiting = asyncio.create_task(connection.request(HEAD, b"", lambda: 0, None))
        await asyncio.sleep(1)
        for line.unsent in (1 << 20, (1 << 20) + 1):
            assert not line.ends
            line.receive(PingFrame(0, b"are you?").serialize())
        assert "abort" in line.ends
        with pytest.raises(ConnectionLost, match="the service does not read what is sent to it"):
            await waiting


async def test_connection_window_reopens_at_a_quarter() -> None:
    async with Line() as line:
        connection = line.up()
        connection.take_place()
        asking = asyncio.create_task(connection.request(HEAD, b"", lambda: 0, None))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        before = len(line.written)
        data = DataFrame(1, bytes(16 << 10)).serialize()
        for _ in range((256 << 20) // (16 << 10)):
            line.receive(data)
        assert len(line.written) == before
        line.receive(data)
        assert line.written[before:] == WindowUpdateFrame(0, (256 << 20) + (16 << 10)).serialize()


# -- signs of life


@pytest.mark.parametrize(
    ("received", "lost", "pings"),
    [
        ({}, 10, 1),
        ({10.1: PONG}, 10, 1),
        ({10: PONG}, 20, 2),  # it was there in time: this process looked late
        ({5: PONG}, 15, 2),
        ({9: WindowUpdateFrame(0, 1).serialize()}, 19, 2),
        ({5.1 * number: PONG for number in range(1, 20)}, 106.9, 20),
    ],
    ids=["none", "late", "in the last moment", "at once", "other bytes", "always"],
)
async def test_connection_without_a_sign_of_life_is_aborted(
    received: dict[float, bytes], lost: float, pings: int
) -> None:
    async with Line() as line:
        line.up().take_place()
        loop = asyncio.get_running_loop()
        for after, data in received.items():
            # Two turns later than what is due at that time.
            loop.call_later(after, loop.call_soon, loop.call_soon, line.receive, data)
        await asyncio.sleep(200)
        assert line.ends == {"abort": pytest.approx(lost)}
        assert line.written.count(PING) == pings


async def test_process_that_stood_still_blames_no_connection() -> None:
    async with Line() as line:
        line.up().take_place()
        loop: Any = asyncio.get_running_loop()
        await asyncio.sleep(1)
        loop.now += 60
        await asyncio.sleep(1)
        assert line.written.count(PING) == 1
        line.receive(PONG)
        await asyncio.sleep(PING_SECONDS + 1)
        assert (line.written.count(PING), line.ends) == (2, {})


async def test_only_an_idle_connection_is_closed() -> None:
    async with Line() as idle, Line() as used:
        for line in (idle, used):
            line.up().take_place()
        await asyncio.sleep(4)
        idle.connection.give_place()
        for _ in range(30):
            await asyncio.sleep(1)
            idle.receive(PONG)
            used.receive(PONG)
        assert (idle.ends, used.ends) == ({"close": 4 + IDLE_SECONDS, "abort": 4 + IDLE_SECONDS + PING_SECONDS}, {})


async def test_fault_of_the_keepalive_ends_the_connection() -> None:
    async with Line() as line:
        line.connection.connection_made(line)
        await asyncio.sleep(PING_SECONDS / 2)
        line.broken = True
        await asyncio.sleep(PING_SECONDS)
        assert "abort" in line.ends
        assert "watching the connection failed: RuntimeError: a bug" in str(line.connection.ready.exception())
