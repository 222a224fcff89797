"""Sends for a connection of HTTP/2: collects the bytes of `h2` and window updates, and writes them in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection
from hyperframe.frame import WindowUpdateFrame

from kinesis_efo.http2.faults import ConnectionLost
from kinesis_efo.http2.response import Response

_MOST_UNSENT: Final = 1 << 20


class Outbox:
    """Sends for one connection.

    Args:
        connection: The connection's `h2` object.
        abort: Drops the connection if the other side does not read.

    Attributes:
        room: Set when the service may have opened the window for more of a request.
        holding: Whether to hold back the bytes, as while received frames are handled: the replies to all of them are sent together.
    """

    def __init__(self, connection: H2Connection, abort: Callable[[Exception], None]) -> None:
        self.room: Final = asyncio.Event()
        self.holding = False
        self._h2 = connection
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._unsent = bytearray()

    def open(self, transport: asyncio.Transport) -> None:
        """Start sending."""
        self._transport = transport
        self.flush()

    def close(self) -> None:
        """Stop sending."""
        self._transport = None
        self.room.set()

    async def send(self, response: Response, body: bytes) -> None:
        """Send the bytes collected so far and the body of a request, as the window allows.

        Args:
            response: The response to the request. If it is over before the body is sent, the rest is not sent.
            body: The body.
        """
        view = memoryview(body)
        while view and not response.over:
            self.room.clear()
            most = min(self._h2.local_flow_control_window(response.stream_id), self._h2.max_outbound_frame_size)
            if most <= 0:
                self.flush()
                await self.room.wait()
                continue
            self._h2.send_data(response.stream_id, bytes(view[:most]), end_stream=most >= len(view))
            view = view[most:]
        self.flush()

    def open_window(self, stream_id: int, size: int) -> None:
        """Let the service send `size` more bytes of a stream."""
        # After the headers that open the stream.
        self._unsent += self._h2.data_to_send()
        self._unsent += WindowUpdateFrame(stream_id, window_increment=size).serialize()
        # Many readers wake up together; their updates are sent in one piece.
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the bytes collected so far, unless `holding`."""
        self._flushing = False
        transport = self._transport
        if self.holding or transport is None:
            return
        self._unsent += self._h2.data_to_send()
        if self._unsent:
            transport.write(bytes(self._unsent))
            self._unsent.clear()
            if transport.get_write_buffer_size() > _MOST_UNSENT:
                self._abort(ConnectionLost("the service does not read what it is sent"))
