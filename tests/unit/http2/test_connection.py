"""A connection without a network: what comes before asyncio says that it is up, and what is left when it parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import RstStreamFrame, SettingsFrame

from kinesis_efo.http2.connection import RECEIVE_BYTES, Connection
from kinesis_efo.http2.keepalive import PING_SECONDS
from kinesis_efo.http2.response import ConnectionLost, NotHttp2, NotProcessed
from tests.support.virtual_time import LoopClock

PREFACE = b"PRI * HTTP/2.0"
SETTINGS = SettingsFrame(0, {3: 5}).serialize()
HEAD = ((":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/"))


class Wire(asyncio.Transport):
    """A transport in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ends: list[str] = []

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")


def receive(connection: Connection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def connect() -> Connection:
    return Connection(LoopClock(), lambda _: None, bytearray(RECEIVE_BYTES))


async def test_settings_may_come_before_the_connection_is_said_to_be_up() -> None:
    # As behind a proxy, where TLS is added to a connection that is there.
    connection, wire = connect(), Wire()
    receive(connection, SETTINGS)
    assert connection.ready.done()
    connection.connection_made(wire)
    assert wire.written.startswith(PREFACE)
    assert wire.written.endswith(SettingsFrame(0, flags=["ACK"]).serialize())
    connection.close()
    connection.connection_lost(None)


async def test_garbage_before_the_connection_is_said_to_be_up_leaves_nothing() -> None:
    connection, wire = connect(), Wire()
    receive(connection, b"\xff" * 50)
    connection.connection_made(wire)
    assert wire.ends == ["abort"]
    with pytest.raises(NotHttp2, match="a frame of 16777215 bytes"):
        await connection.ready
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_who_does_not_part_is_dropped() -> None:
    connection, wire = connect(), Wire()
    connection.connection_made(wire)
    receive(connection, SETTINGS)
    connection.close()
    connection.close()
    assert wire.ends == ["close"]
    await asyncio.sleep(PING_SECONDS)
    assert wire.ends == ["close", "abort"]
    connection.connection_lost(None)
    assert connection.gone


async def test_who_parts_in_time_is_not_dropped() -> None:
    connection, wire = connect(), Wire()
    connection.connection_made(wire)
    connection.close()
    connection.connection_lost(None)
    await asyncio.sleep(10 * PING_SECONDS)
    assert wire.ends == ["close"]


async def test_a_place_on_a_connection_that_closed_meanwhile_is_given_back() -> None:
    connection, wire = connect(), Wire()
    connection.connection_made(wire)
    receive(connection, SETTINGS)
    connection.take_place()
    connection.abort(ConnectionLost("gone"))
    with pytest.raises(NotProcessed, match="before the request was sent"):
        await connection.request(HEAD, b"", lambda: 0, None)
    assert (connection.active, connection.places) == (0, 0)


@pytest.mark.parametrize("head", [(*HEAD, ("x", None)), (("x", "y"), *HEAD)])
async def test_a_request_that_cannot_be_sent_gives_its_place_back(head: Any) -> None:
    connection, wire = connect(), Wire()
    connection.connection_made(wire)
    receive(connection, SETTINGS)
    for _ in range(10):
        connection.take_place()
        with pytest.raises((NotProcessed, TypeError, AttributeError)):
            await connection.request(head, b"", lambda: 0, None)
    assert connection.active == 0
    assert connection.places == 5
    connection.close()
    connection.connection_lost(None)


async def test_a_request_that_waits_for_the_window_ends_when_the_service_resets_it() -> None:
    connection, wire = connect(), Wire()
    connection.connection_made(wire)
    receive(connection, SETTINGS)
    connection.take_place()
    sending = asyncio.create_task(connection.request(HEAD, bytes(1 << 20), lambda: 1 << 20, None))
    await asyncio.sleep(1.0)
    assert not sending.done(), "the window has 65,535 bytes"
    receive(connection, RstStreamFrame(1, error_code=ErrorCodes.CANCEL).serialize())
    with pytest.raises(ConnectionResetError, match="the service reset the stream: CANCEL"):
        await asyncio.wait_for(sending, 1.0)
    connection.close()
    connection.connection_lost(None)
