"""HTTP/1.1 connections, served by aiohttp, including the upgrade to HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from .http import Answer, Answerer, Incoming, cut
from .http2 import Http2
from .subscribe import Push, Wire

_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


class Http1:
    """Serves HTTP/1.1 connections.

    `http2` creates the protocol of a connection that is upgraded to HTTP/2. Bodies of more than `max_body` bytes are rejected.
    """

    def __init__(self, answer: Answerer, http2: Callable[[], Http2], max_body: int) -> None:
        self._answer = answer
        self._http2 = http2
        self._pushing: set[asyncio.Task[Any]] = set()
        self._last: list[asyncio.Transport | None] = []
        app = web.Application(client_max_size=max_body)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # With `handler_cancellation`, a subscription closes as soon as its client disconnects.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.5
        )

    async def start(self) -> None:
        """Set up the HTTP server. Must be called before `protocol`."""
        await self._runner.setup()

    def protocol(self) -> asyncio.Protocol:
        """Create the protocol of a new connection."""
        assert self._runner.server is not None
        return self._runner.server()

    async def end_pushes(self) -> None:
        """End all open event streams."""
        # Save the connections for `close`: aiohttp stops tracking a connection whose client has stopped reading.
        if self._runner.server is not None:
            self._last = [connection.transport for connection in self._runner.server.connections]
        pushing = tuple(self._pushing)
        for task in pushing:
            task.cancel()
        await asyncio.gather(*pushing, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections that were open when `end_pushes` was called; running requests get half a second to finish."""
        await self._runner.cleanup()
        for transport in self._last:
            if transport is not None:
                transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        incoming = Incoming(request.method, _origin_form(request.raw_path), request.headers, await request.read())
        if _wants_http2(request):
            return await self._upgrade(request, incoming)
        answer = await self._answer(incoming)
        if isinstance(answer.body, Push):
            return await self._push(request, answer, answer.body)
        response = web.Response(status=answer.status, body=answer.body)
        response.headers.clear()
        response.headers.extend(answer.headers)
        return response

    async def _push(self, request: web.Request, answer: Answer, push: Push) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._pushing.add(task)
        response = web.StreamResponse(status=answer.status, headers=dict(answer.headers))
        try:
            await response.prepare(request)
            if await push.send(_Response(request, response)):
                await response.write_eof()
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            push.close()
            self._pushing.discard(task)
        return response

    async def _upgrade(self, request: web.Request, incoming: Incoming) -> web.StreamResponse:
        """Switch the connection to HTTP/2, and send the response over HTTP/2."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        connection = self._http2()
        try:
            connection.upgrade(request.headers["HTTP2-Settings"], incoming)
        except ValueError as wrong:
            connection.connection_lost(wrong)
            raise web.HTTPBadRequest(text=f"HTTP2-Settings: {wrong}") from None
        # `Http2` handles the connection from now on, but must notify aiohttp when the connection is lost: aiohttp then cancels this task.
        connection.when_lost.append(request.protocol.connection_lost)
        transport.write(_SWITCHING)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        over: asyncio.Future[web.StreamResponse] = asyncio.get_running_loop().create_future()
        return await over


def _wants_http2(request: web.Request) -> bool:
    wanted = request.headers.get("Upgrade", "").lower() == "h2c" and "HTTP2-Settings" in request.headers
    # Over TLS, ALPN has already selected the HTTP version.
    return wanted and not request.secure


class _Response(Wire):
    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response

    async def write(self, data: bytes) -> None:
        await self._response.write(data)

    def cut(self, *, reset: bool) -> None:
        if self._request.transport is not None:
            cut(self._request.transport, reset=reset)


def _origin_form(target: str) -> str:
    """Return the path and query of a request target, which is a full URL if the client uses this server as its HTTP proxy.

    S3 Control clients need a proxy: they put the account ID before the host name, and that name may not be resolvable.
    """
    if target.startswith("/"):
        return target
    url = urlsplit(target)
    return (url.path or "/") + (f"?{url.query}" if url.query else "")
