"""Accepts connections, and detects the HTTP version of each connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from .http import Answerer
from .http1 import Http1
from .http2 import PREFACE, Http2


class Listener:
    """Serves the connections to one or more ports.

    `max_concurrent_streams` limits the open requests of one HTTP/2 connection, `max_body` the bytes of a request body.
    """

    def __init__(self, answer: Answerer, max_concurrent_streams: int, max_body: int) -> None:
        self._answer = answer
        self._max_concurrent_streams = max_concurrent_streams
        self._max_body = max_body
        self._servers: list[asyncio.Server] = []
        self._undecided: set[_FirstBytes] = set()
        self._http2: set[Http2] = set()
        self._http1 = Http1(answer, self.http2, max_body)

    async def start(self) -> None:
        """Set up the HTTP/1.1 server. Must be called before `listen`."""
        await self._http1.start()

    async def listen(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve the connections to a bound socket; `end_pushes` closes the socket.

        Without `tls`, connections are not encrypted.
        """
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(self._accept, sock=listening, ssl=tls, backlog=1024))

    def http2(self) -> Http2:
        """Create the protocol of a new HTTP/2 connection."""
        connection = Http2(self._answer, self._max_concurrent_streams, self._max_body)
        self._http2.add(connection)
        connection.when_lost.append(lambda _: self._http2.discard(connection))
        return connection

    async def end_pushes(self) -> None:
        """Stop accepting connections, abort HTTP/2 connections, and end the event streams over HTTP/1.1."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            # Stop accepting some iterations before the server closes: asyncio loses track of connections that are accepted just before.
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for undecided in tuple(self._undecided):
            undecided.abort()
        for connection in tuple(self._http2):
            await connection.abort()
        await self._http1.end_pushes()

    async def close(self) -> None:
        """Close the remaining connections. Running HTTP/1.1 requests get half a second to finish. Must be called after `end_pushes`."""
        await self._http1.close()
        await asyncio.sleep(0)

    def _accept(self) -> asyncio.Protocol:
        return _FirstBytes(self._http1.protocol, self.http2, self._undecided)


class _FirstBytes(asyncio.Protocol):
    """A connection whose protocol is still unknown: ALPN or the client's first bytes determine it."""

    def __init__(
        self, http1: Callable[[], asyncio.Protocol], http2: Callable[[], Http2], undecided: set[_FirstBytes]
    ) -> None:
        self._http1 = http1
        self._http2 = http2
        self._undecided = undecided
        self._transport: asyncio.Transport | None = None
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._undecided.add(self)
        tls = transport.get_extra_info("ssl_object")
        # Without ALPN, the first bytes decide: the Java SDK does not negotiate HTTP/2, even over TLS.
        if tls is not None and (agreed := tls.selected_alpn_protocol()) is not None:
            self._become(self._http2() if agreed == "h2" else self._http1())

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._seen.startswith(PREFACE):
            self._become(self._http2())
        elif not PREFACE.startswith(self._seen):
            self._become(self._http1())

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002
        self._undecided.discard(self)

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _become(self, protocol: asyncio.Protocol) -> None:
        assert self._transport is not None
        self._undecided.discard(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if self._seen:
            protocol.data_received(self._seen)
