"""If the keepalive of a connection fails, the connection is dropped: a dead one would not be noticed."""

from __future__ import annotations

import asyncio
from typing import Any

from kinesis_efo.http2.connection import RECEIVE_BYTES, Connection
from kinesis_efo.http2.keepalive import PING_SECONDS
from tests.support.virtual_time import LoopClock


class Transport(asyncio.Transport):
    """Takes what is written, until it was told to break."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = self.broken = False

    def write(self, data: Any) -> None:
        if self.broken:
            raise RuntimeError("a bug")

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


async def test_a_fault_while_it_is_looked_after_ends_the_connection() -> None:
    transport, changes = Transport(), []
    connection = Connection(LoopClock(), changes.append, bytearray(RECEIVE_BYTES))
    connection.connection_made(transport)
    await asyncio.sleep(PING_SECONDS / 2)
    assert not connection.closed
    transport.broken = True
    await asyncio.sleep(PING_SECONDS)
    assert connection.closed
    assert transport.aborted
    assert "could not be looked after: RuntimeError: a bug" in str(connection.ready.exception())
