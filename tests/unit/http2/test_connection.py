"""A connection to a service in memory, in virtual time: its start, its places, its signs of life and its end."""

import asyncio
from typing import Any, Self

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from kinesis_efo.http2.connection import PING_SECONDS, RECEIVE_BYTES, Connection
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


async def test_garbage_before_connection_made_aborts() -> None:
    async with Line() as line:
        line.receive(b"\xff" * 50)
        line.connection.connection_made(line)
        assert "abort" in line.ends
        with pytest.raises(NotHttp2, match="a frame of 16777215 bytes"):
            await line.connection.ready


async def test_place_on_closed_connection_is_returned() -> None:
    async with Line() as line:
        connection = line.up()
        connection.take_place()
        connection.abort(ConnectionLost("gone"))
        with pytest.raises(NotProcessed, match="before the request was sent"):
            await connection.request(HEAD, b"", lambda: 0, None)
        assert (connection.active, connection.places) == (0, 0)


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


async def test_fault_of_the_keepalive_ends_the_connection() -> None:
    async with Line() as line:
        line.connection.connection_made(line)
        await asyncio.sleep(PING_SECONDS / 2)
        line.broken = True
        await asyncio.sleep(PING_SECONDS)
        assert "abort" in line.ends
        assert "watching the connection failed: RuntimeError: a bug" in str(line.connection.ready.exception())
