"""A server of HTTP/2 that does what a test tells it to: it answers requests as scripted, and writes anything at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

EVENT_STREAM = {":status": "200", "content-type": "application/vnd.amazon.eventstream"}


@dataclass
class Request:
    """A request that arrived whole.

    Attributes:
        peer: The connection it arrived on.
        stream_id: Its stream.
        headers: Its headers.
        body: Its body.
        sent: Bytes of the answer's body that were sent.
    """

    peer: Peer
    stream_id: int
    headers: dict[str, str]
    body: bytes
    sent: int = 0

    def begin(self, headers: Mapping[str, str] = EVENT_STREAM) -> None:
        """Send the headers of the response."""
        self.peer.h2.send_headers(self.stream_id, list(headers.items()))
        self.peer.flush()

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send a part of the body, as the windows allow."""
        left = memoryview(data)
        while left:
            if self.stream_id in self.peer.resets or self.peer.gone.is_set():
                raise ConnectionResetError
            most = min(self.window, self.peer.h2.max_outbound_frame_size, len(left))
            if most <= 0:
                await self.peer.changed()
                continue
            self.peer.h2.send_data(self.stream_id, left[:most].tobytes())
            self.sent += most
            left = left[most:]
            self.peer.flush()
        if last:
            self.peer.h2.end_stream(self.stream_id)
            self.peer.flush()

    @property
    def window(self) -> int:
        """Bytes that the client allows this stream to send now."""
        return self.peer.h2.local_flow_control_window(self.stream_id)


class Peer:
    """One connection, as the server sees it.

    Attributes:
        h2: The protocol.
        requests: What arrived.
        resets: Streams that the client reset, with their codes.
        pings: PINGs that arrived.
        errors: Codes of the GOAWAYs that arrived.
        gone: Set once the client has closed the connection.
        mute: Whether what arrives is ignored, and nothing is answered.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: dict[Any, int]) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=False, initial_values=settings)
        self.requests: list[Request] = []
        self.resets: dict[int, int] = {}
        self.pings = 0
        self.errors: list[int] = []
        self.gone = asyncio.Event()
        self.mute = False
        self._reader = reader
        self._writer = writer
        self.partial: dict[int, Request] = {}
        self._change = asyncio.Event()

    def flush(self) -> None:
        """Send what `h2` has to send."""
        self.write(self.h2.data_to_send())

    def write(self, data: bytes) -> None:
        """Send any bytes."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def set(self, code: SettingCodes, value: int) -> None:
        """Change a setting, and wait until the client goes by it."""
        self.h2.update_settings({code: value})
        self.flush()
        while self.h2.local_settings[code] != value:
            await self.changed()

    def close(self) -> None:
        """Drop the connection."""
        if not self.gone.is_set():
            self._writer.transport.abort()

    def hang_up(self) -> None:
        """Close the connection after what was sent."""
        self._writer.close()

    def go_away(self, last_stream_id: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Announce the end of the connection, and go on with the streams up to the last one."""
        payload = last_stream_id.to_bytes(4, "big") + int(code).to_bytes(4, "big")
        self.write(len(payload).to_bytes(3, "big") + b"\x07\x00" + bytes(4) + payload)

    async def changed(self) -> None:
        """Wait until something arrives."""
        await self._change.wait()

    async def run(self, answer: Callable[[Request], Awaitable[None]]) -> None:
        """Serve the connection."""
        tasks: set[asyncio.Task[None]] = set()
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 20)
        self.flush()
        try:
            while data := await self._reader.read(1 << 16):
                if self.mute:
                    continue
                for event in self.h2.receive_data(data):
                    request = self._handle(event)
                    if request is not None:
                        self.requests.append(request)
                        tasks.add(asyncio.ensure_future(self._answer(answer, request)))
                self.flush()
                self._change.set()
                self._change = asyncio.Event()
        except (ConnectionError, H2Error):
            pass
        finally:
            self.gone.set()
            self._change.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writer.close()

    async def _answer(self, answer: Callable[[Request], Awaitable[None]], request: Request) -> None:
        with contextlib.suppress(ConnectionError, H2Error):
            await answer(request)

    def _handle(self, event: h2.events.Event) -> Request | None:
        match event:
            case h2.events.RequestReceived(stream_id=stream_id, headers=headers):
                self.partial[stream_id] = Request(self, stream_id, dict(headers), b"")  # type: ignore[arg-type]
            case h2.events.DataReceived(stream_id=stream_id, data=data, flow_controlled_length=length):
                self.partial[stream_id].body += data
                self.h2.acknowledge_received_data(length, stream_id)
            case h2.events.StreamEnded(stream_id=stream_id):
                return self.partial.pop(stream_id)
            case h2.events.StreamReset(stream_id=stream_id, error_code=code):
                self.resets[stream_id] = int(code)
            case h2.events.PingReceived():
                self.pings += 1
            case h2.events.ConnectionTerminated(error_code=code):
                self.errors.append(int(code))
        return None


@dataclass
class Http2Peer:
    """A running server.

    Attributes:
        port: Its port.
        peers: Its connections, in the order in which they came.
        listening: asyncio's server.
    """

    port: int = 0
    peers: list[Peer] = field(default_factory=list)
    listening: Any = None

    @property
    def requests(self) -> list[Request]:
        """All requests of all connections."""
        return [request for peer in self.peers for request in peer.requests]


@contextlib.asynccontextmanager
async def http2_peer(
    answer: Callable[[Request], Awaitable[None]],
    *,
    streams: int | None = 5,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Http2Peer]:
    """Run a server.

    Args:
        answer: Called with each request.
        streams: Requests at a time on each connection; None: it says nothing of them.
        tls: For TLS.
        host: Where it listens.
    """
    server = Http2Peer()
    running: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        peer = Peer(reader, writer, {} if streams is None else {SettingCodes.MAX_CONCURRENT_STREAMS: streams})
        server.peers.append(peer)
        await peer.run(answer)
        running.discard(task)

    listening = await asyncio.start_server(serve, host, 0, ssl=tls, backlog=1024)
    server.listening = listening
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for peer in server.peers:
            peer.close()
        await asyncio.gather(*running)
